// The JSON of safetensors files and of their index, read event by event: no tree is built, so that
// a hostile document costs no more memory than the tensors that it lists.
#ifndef SLUICE_LAYOUT_SAFETENSORS_JSON_H_
#define SLUICE_LAYOUT_SAFETENSORS_JSON_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice {

constexpr size_t kMaxSafetensors = 32768;  // tensors in one header or index

// One tensor of a header as it is written, unchecked but for its form.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  // in the data section
  uint64_t end = 0;
};

// Names are unique and every entry has its three fields once. DataLoss naming `path` and the tensor
// otherwise. The text of "__metadata__" is skipped.
absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsJson(std::string_view json,
                                                                   const std::string& path);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_SAFETENSORS_JSON_H_
