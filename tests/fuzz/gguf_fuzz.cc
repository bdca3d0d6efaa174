// Any bytes as a GGUF file: the header, typed access to all metadata, the import as a model, and
// both ends of every tensor.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "layout/gguf.h"
#include "layout/model_source.h"
#include "tests/fuzz/memory_file.h"

namespace sluice {
namespace {

void UseMetadata(const GgufFile& file) {
  for (const auto& [key, value] : file.metadata()) {
    file.GetUint(key).status().IgnoreError();
    file.GetFloat(key).status().IgnoreError();
    file.GetBool(key).status().IgnoreError();
    file.GetString(key).status().IgnoreError();
    file.GetStringArray(key).status().IgnoreError();
    file.GetFloatArray(key).status().IgnoreError();
    file.GetIntArray(key).status().IgnoreError();
  }
}

// What the header promises must be readable.
void ReadTensors(const GgufFile& file) {
  for (const GgufTensor& tensor : file.tensors()) {
    const size_t block = BlockBytes(tensor.type);
    std::vector<std::byte> bytes(block);
    std::vector<float> values(BlockElements(tensor.type));
    for (const uint64_t offset : {uint64_t{0}, tensor.n_bytes - block}) {
      if (!file.ReadTensor(tensor, offset, bytes).ok()) std::abort();
      DecodeSource(tensor.type, bytes, values);
    }
  }
}

}  // namespace
}  // namespace sluice

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const sluice::MemoryFile memory(data, size);
  const auto file = sluice::GgufFile::Open(memory.path());
  if (!file.ok()) return 0;
  sluice::UseMetadata(**file);
  sluice::ReadTensors(**file);
  sluice::OpenModelSource(memory.path(), {}).status().IgnoreError();
  return 0;
}
