#include "layout/weight_type.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_format.h"
#include "layout/byte_io.h"

namespace sluice {
namespace {

// Calls f(first element, group size) for each nibble group of a q4 row.
template <typename F>
void ForEachNibbleGroup(size_t n, F f) {
  size_t at = 0;
  for (; at + 128 <= n; at += 128) f(at, 128);
  if (at + 64 <= n) {
    f(at, 64);
    at += 64;
  }
  if (at + 32 <= n) f(at, 32);
}

// What elements are multiplied with to make quants; 0 where the stored scale vanishes, so that no
// division overflows.
float ScaleInverse(float scale, uint16_t stored) {
  return (stored & 0x7fff) != 0 ? 1.0f / scale : 0.0f;
}

using Block = std::span<const float, kQuantBlock>;

Block BlockOf(std::span<const float> row, size_t b) {
  return Block(row.data() + b * kQuantBlock, kQuantBlock);
}

struct Extremes {
  float min = 0.0f, max = 0.0f;  // 0 included

  float largest() const { return std::max(-min, max); }  // magnitude
};

Extremes ExtremesOf(Block x) {
  Extremes e;
  for (const float v : x) {
    e.min = std::min(e.min, v);
    e.max = std::max(e.max, v);
  }
  return e;
}

// The largest number of which every element of `x` is a whole multiple, if that makes `largest`,
// the largest magnitude in `x` and not 0, at most `most` of it; else 0. Euclid's algorithm: the
// quotients are small, so that in double every step is exact. Elements that were never quantised
// end it after a few of them.
double CommonMeasure(Block x, double largest, double most) {
  double measure = largest;
  for (const float v : x) {
    double above = std::fabs(v);
    while (above != 0.0) {
      const double rest = above - static_cast<int>(above / measure) * measure;
      if (rest == 0.0) break;
      if (largest > most * rest) return 0.0;
      above = measure;
      measure = rest;
    }
  }
  return measure;
}

// A step that a half holds and that gives every element back, at most `below` steps down and
// `above` up, where below >= above; 0 if there is none. It is the common measure or, where that has
// too many digits for a half (all quants have a common factor), a whole part of it.
float ExactStep(Block x, const Extremes& extremes, float below, float above) {
  const float largest = extremes.largest();
  if (largest == 0.0f) return 0.0f;
  const auto measure = static_cast<float>(CommonMeasure(x, largest, below));
  if (measure == 0.0f) return 0.0f;
  for (float parts = 1.0f; parts * largest <= below * measure; ++parts) {
    const float step = measure / parts;
    if (HalfToFloat(FloatToHalf(step)) != step || step * parts != measure) continue;
    const float down = -extremes.min / step, up = extremes.max / step;
    if (down <= below && up <= above) return step;
    if (up <= below && down <= above) return -step;
  }
  return 0.0f;
}

void EncodeQ8Row(std::span<const float> src, std::byte* quants, std::byte* scales) {
  for (size_t b = 0; b < src.size() / kQuantBlock; ++b) {
    const Block x = BlockOf(src, b);
    const Extremes extremes = ExtremesOf(x);
    float scale = ExactStep(x, extremes, 128.0f, 127.0f);
    if (scale == 0.0f) scale = extremes.largest() / 127.0f;
    const uint16_t half = FloatToHalf(scale);
    const float inverse = ScaleInverse(scale, half);
    StoreLe(scales + 2 * b, half);
    for (size_t i = 0; i < kQuantBlock; ++i) {
      quants[b * kQuantBlock + i] = static_cast<std::byte>(std::lrint(x[i] * inverse));
    }
  }
}

void EncodeQ4Row(std::span<const float> src, std::byte* nibbles, std::byte* scales) {
  const size_t n = src.size();
  std::memset(nibbles, 0, n / 2);
  const auto quantize_block = [&](size_t b, std::byte* dst, int shift) {
    const Block x = BlockOf(src, b);
    const Extremes extremes = ExtremesOf(x);
    float scale = ExactStep(x, extremes, 8.0f, 7.0f);
    if (scale == 0.0f) {
      // Of two extremes of one magnitude the first.
      const float largest = extremes.largest();
      const auto extreme =
          std::find_if(x.begin(), x.end(), [=](float v) { return std::fabs(v) == largest; });
      scale = *extreme / -8.0f;
    }
    const uint16_t half = FloatToHalf(scale);
    const float inverse = ScaleInverse(scale, half);
    StoreLe(scales + 2 * b, half);
    for (size_t i = 0; i < kQuantBlock; ++i) {
      const auto nibble = static_cast<int>(std::fmin(15.0f, x[i] * inverse + 8.5f));
      dst[i] |= static_cast<std::byte>(nibble << shift);
    }
  };
  ForEachNibbleGroup(n, [&](size_t first, size_t group) {
    std::byte* dst = nibbles + first / 2;
    if (group == kQuantBlock) {  // one block: its halves share the bytes
      std::byte unpacked[kQuantBlock] = {};
      quantize_block(first / kQuantBlock, unpacked, 0);
      for (size_t j = 0; j < 16; ++j) dst[j] = unpacked[j] | (unpacked[j + 16] << 4);
      return;
    }
    for (size_t i = 0; i < group; i += kQuantBlock) {
      quantize_block((first + i) / kQuantBlock, dst + i % (group / 2), i < group / 2 ? 0 : 4);
    }
  });
}

}  // namespace

std::string_view WeightTypeName(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return "f32";
    case WeightType::kF16:
      return "f16";
    case WeightType::kQ8:
      return "q8";
    case WeightType::kQ4:
      return "q4";
  }
  return "?";
}

absl::StatusOr<WeightType> ParseWeightType(std::string_view name) {
  for (const WeightType t :
       {WeightType::kF32, WeightType::kF16, WeightType::kQ8, WeightType::kQ4}) {
    if (name == WeightTypeName(t)) return t;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("unknown weight type \"%s\"; known are f32, f16, q8, q4", name));
}

float LargestWeight(WeightType type) {
  constexpr float kLargestHalf = 65504.0f;
  switch (type) {
    case WeightType::kF32:
      break;
    case WeightType::kF16:
      return kLargestHalf;
    case WeightType::kQ8:
      return kLargestHalf * 127.0f;
    case WeightType::kQ4:
      return kLargestHalf * 8.0f;
  }
  return std::numeric_limits<float>::max();
}

void EncodeRow(WeightType type, std::span<const float> src, std::span<std::byte> dst) {
  const size_t n = src.size();
  switch (type) {
    case WeightType::kF32:
      if (n > 0) std::memcpy(dst.data(), src.data(), 4 * n);
      return;
    case WeightType::kF16:
      for (size_t i = 0; i < n; ++i) StoreLe(dst.data() + 2 * i, FloatToHalf(src[i]));
      return;
    case WeightType::kQ8:
      return EncodeQ8Row(src, dst.data(), dst.data() + n);
    case WeightType::kQ4:
      return EncodeQ4Row(src, dst.data(), dst.data() + n / 2);
  }
}

void DecodeRow(WeightType type, std::span<const std::byte> src, std::span<float> dst) {
  const size_t n = dst.size();
  switch (type) {
    case WeightType::kF32:
      if (n > 0) std::memcpy(dst.data(), src.data(), 4 * n);
      return;
    case WeightType::kF16:
      for (size_t i = 0; i < n; ++i) dst[i] = HalfToFloat(LoadLe<uint16_t>(src.data() + 2 * i));
      return;
    case WeightType::kQ8:
      for (size_t i = 0; i < n; ++i) {
        const float scale = HalfToFloat(LoadLe<uint16_t>(src.data() + n + i / kQuantBlock * 2));
        dst[i] = scale * static_cast<float>(static_cast<int8_t>(src[i]));
      }
      return;
    case WeightType::kQ4:
      ForEachNibbleGroup(n, [&](size_t first, size_t group) {
        const std::byte* nibbles = src.data() + first / 2;
        for (size_t i = 0; i < group; ++i) {
          const auto byte = static_cast<unsigned>(nibbles[i % (group / 2)]);
          const int q = static_cast<int>(i < group / 2 ? byte & 15 : byte >> 4) - 8;
          const size_t block = (first + i) / kQuantBlock;
          dst[first + i] =
              HalfToFloat(LoadLe<uint16_t>(src.data() + n / 2 + 2 * block)) * static_cast<float>(q);
        }
      });
      return;
  }
}

float HalfToFloat(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 31;
  const uint32_t mantissa = h & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t FloatToHalf(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;   // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds beyond 65504
  if (magnitude < 0x38800000) {                       // below 2^-14: subnormal half
    // Adding 0.5 places the rounded subnormal mantissa in the low bits of the float.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - 0x3f000000);
  }
  const uint32_t odd = (magnitude >> 13) & 1;
  return sign | static_cast<uint16_t>((magnitude - 0x38000000 + 0xfff + odd) >> 13);
}

}  // namespace sluice
