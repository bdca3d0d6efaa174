// The text that comes with safetensors models. The first byte chooses what the rest is: a
// safetensors file, an index of shards, or config.json.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "layout/hf_config.h"
#include "layout/safetensors.h"
#include "tests/fuzz/memory_file.h"

namespace sluice {
namespace {

void FuzzFile(const uint8_t* data, size_t size) {
  const MemoryFile memory(data, size);
  const auto file = SafetensorsFile::Open(memory.path());
  if (!file.ok()) return;
  uint64_t total = 0;
  for (const SafetensorsTensor& tensor : (*file)->tensors()) {
    std::vector<std::byte> bytes(BlockBytes(tensor.type));
    if (!(*file)->ReadTensor(tensor, tensor.n_bytes - bytes.size(), bytes).ok()) std::abort();
    total += tensor.n_bytes;
  }
  if (total >= size) std::abort();  // they cover the data exactly, and there is a header
}

// A config that is accepted is one that everything may be sized from.
void FuzzConfig(std::string_view text) {
  auto config = ParseHfConfig(text, "config.json", {});
  if (!config.ok()) return;
  if (config->model.vocab_size == 0) config->model.vocab_size = 1;
  if (!ValidateConfig(config->model).ok()) std::abort();
}

}  // namespace
}  // namespace sluice

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      sluice::FuzzFile(data + 1, size - 1);
      break;
    case 1:
      sluice::ParseSafetensorsIndex(text, "index.json").status().IgnoreError();
      break;
    default:
      sluice::FuzzConfig(text);
  }
  return 0;
}
