// Parses the header of one GGUF file; GgufFile puts the parts of a split together.
//
//   u8[4] "GGUF", or "PWRI" where PowerInfer wrote it; u32 version, u64 number of tensors, u64
//   number of metadata entries per entry:  string key, u32 value type, value per tensor: string
//   name, u32 number of dimensions, u64 each (innermost first), u32 element
//               type, u64 offset in the data section
//   padding to the alignment ("general.alignment", 32 by default), then the data section
// A string is a u64 length and its bytes; an array is a u32 element type, a u64 count, elements.
//
// Nothing is allocated for a count before it is bounded by the bytes left in the file and by an
// absolute cap, so a hostile file of any size costs less than 64 MiB, as do all parts of a split
// together.
#ifndef SLUICE_LAYOUT_GGUF_PARSER_H_
#define SLUICE_LAYOUT_GGUF_PARSER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "layout/gguf.h"
#include "layout/input_file.h"

namespace sluice {

// More than any model of the Llama family has, over all parts of a split.
constexpr uint64_t kMaxGgufTensors = 32768;

struct GgufHeader {
  bool is_powerinfer = false;  // by its magic
  absl::flat_hash_map<std::string, GgufValue> metadata;
  // Names are unique; `offset` is from the start of the file; every range is inside the file and
  // overlaps no other. `part` is 0.
  std::vector<GgufTensor> tensors;
};

// Of later parts of a split only what places them is kept: "split.*" and the alignment.
enum class GgufPart { kFirst, kLater };

absl::StatusOr<GgufHeader> ParseGgufHeader(const InputFile& file, GgufPart part);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_GGUF_PARSER_H_
