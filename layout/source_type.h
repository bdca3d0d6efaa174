// Element types of source models (GGUF block formats and the plain floats of safetensors) and their
// decoding to float. Block layouts follow the public GGUF specification.
#ifndef SLUICE_LAYOUT_SOURCE_TYPE_H_
#define SLUICE_LAYOUT_SOURCE_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace sluice {

// Values are GGUF's type ids.
enum class SourceType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

// Nothing for an id that is not in the enum.
std::optional<SourceType> SourceTypeFromGgufId(uint32_t id);
std::string_view SourceTypeName(SourceType type);

// A block is the smallest decodable unit: this many elements ...
uint32_t BlockElements(SourceType type);
// ... in this many bytes.
uint32_t BlockBytes(SourceType type);

// Bytes of a tensor of this shape (outermost first). Nothing if it has no dimension, one that is
// zero, rows that are not whole blocks, or a size beyond 64 bits.
std::optional<uint64_t> SourceTensorBytes(SourceType type, std::span<const uint64_t> shape);

// Decodes dst.size() elements; dst.size() must be a multiple of BlockElements and src.size() the
// matching number of bytes.
void DecodeSource(SourceType type, std::span<const std::byte> src, std::span<float> dst);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_SOURCE_TYPE_H_
