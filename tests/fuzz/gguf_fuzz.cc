// Any bytes as a GGUF file: the header, typed access to all metadata, the import as a model, and
// both ends of every tensor. And the same bytes as edits of a good file of PowerInfer's, so that
// the checks of models and predictors are come to.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "layout/gguf.h"
#include "layout/model_source.h"
#include "tests/fuzz/memory_file.h"
#include "tests/import_test_files.h"
#include "tests/powerinfer_model.h"
#include "tests/test_paths.h"

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

void Use(const uint8_t* data, size_t size) {
  const MemoryFile memory(data, size);
  const auto file = GgufFile::Open(memory.path());
  if (!file.ok()) return;
  UseMetadata(**file);
  ReadTensors(**file);
  OpenModelSource(memory.path(), {}).status().IgnoreError();
}

std::string PowerInferFile() {
  const TempDir dir;
  TinyGguf model = PowerInferGguf("bamboo", Foresight::kGate);
  model.floats["powerinfer.sparse_threshold"] = 0.5f;
  WritePowerInfer(model, dir.File("model.gguf"));
  if (!OpenModelSource(dir.File("model.gguf"), {}).ok()) std::abort();
  return ReadFile(dir.File("model.gguf"));
}

// Three bytes an edit: the offset, which is in the header, and the new value.
void UseEdited(const uint8_t* data, size_t size) {
  constexpr size_t kEdited = 4096;
  static const std::string good = PowerInferFile();
  std::string bytes = good;
  for (size_t i = 0; i + 3 <= size; i += 3) {
    bytes[(data[i] | size_t{data[i + 1]} << 8) % kEdited] = static_cast<char>(data[i + 2]);
  }
  Use(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace
}  // namespace sluice

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::Use(data, size);
  if (size <= 48) sluice::UseEdited(data, size);
  return 0;
}
