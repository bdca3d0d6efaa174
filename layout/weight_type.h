// How weights are packed in a `.sluice` file and in DRAM. A packing is a closed, named format,
// independent of the machine that wrote it; kernels read rows as they lie on flash.
//
// A row of n elements (n a multiple of 32; 1 for f32 and f16):
//   f32  n floats.
//   f16  n IEEE half floats.
//   q8   n int8 quants, then n/32 half-float scales: w[i] = scale[i/32] * q[i].
//   q4   n/2 bytes of nibbles, then n/32 half-float scales: w[i] = scale[i/32] * (nibble[i] - 8).
//        Nibbles come in groups of 128 elements (64 bytes: byte j holds element j low and element
//        64 + j high), then at the end of the row at most one group of 64 (32 bytes, j and 32 + j)
//        and at most one of 32 (16 bytes, j and 16 + j), so that a vector register of any width
//        unpacks with one mask and one shift.
#ifndef SLUICE_LAYOUT_WEIGHT_TYPE_H_
#define SLUICE_LAYOUT_WEIGHT_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"

namespace sluice {

// Values are stored in files.
enum class WeightType : uint8_t { kF32 = 0, kF16 = 1, kQ8 = 2, kQ4 = 3 };

constexpr uint32_t kQuantBlock = 32;  // elements that share a scale in q8 and q4

constexpr size_t RowBytes(WeightType type, size_t n) {
  switch (type) {
    case WeightType::kF32:
      return 4 * n;
    case WeightType::kF16:
      return 2 * n;
    case WeightType::kQ8:
      return n + n / kQuantBlock * 2;
    case WeightType::kQ4:
      return n / 2 + n / kQuantBlock * 2;
  }
  return 0;
}

std::string_view WeightTypeName(WeightType type);
// Accepts "f32", "f16", "q8", "q4".
absl::StatusOr<WeightType> ParseWeightType(std::string_view name);

// The largest magnitude that a row of the type can hold; of q8 and q4 through their half scales.
float LargestWeight(WeightType type);

// Packs one row; dst.size() must be RowBytes(type, src.size()). q8 and q4 need finite numbers.
// A block whose elements are whole multiples of one step that a half holds (with q8 at most 128 one
// way and 127 the other, with q4 8 and 7) is packed with such a step, so that a row which was
// quantised with blocks of 32 before, whoever chose the scales, loses nothing. Of any other block
// the element of largest magnitude becomes quant 127 or -127 with q8, nibble 0 with q4.
void EncodeRow(WeightType type, std::span<const float> src, std::span<std::byte> dst);
void DecodeRow(WeightType type, std::span<const std::byte> src, std::span<float> dst);

float HalfToFloat(uint16_t h);
uint16_t FloatToHalf(float f);  // round to nearest even; overflow gives infinity

}  // namespace sluice

#endif  // SLUICE_LAYOUT_WEIGHT_TYPE_H_
