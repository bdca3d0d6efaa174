#include "layout/source_encode.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "layout/byte_io.h"
#include "layout/weight_type.h"

namespace sluice {
namespace {

constexpr size_t kBlock = 32;

// 1 / step, or 0 for a step so small that its inverse would overflow; the half-float step that is
// stored is zero long before that.
float InverseStep(float step) {
  return std::fabs(step) >= std::numeric_limits<float>::min() ? 1.0f / step : 0.0f;
}

void EncodeQ4_0(const float* x, std::byte* block) {
  float extreme = 0.0f;
  for (size_t i = 0; i < kBlock; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  const float d = extreme / -8.0f;
  const float inverse = InverseStep(d);
  StoreLe(block, FloatToHalf(d));
  uint8_t q[kBlock];
  for (size_t i = 0; i < kBlock; ++i) {
    q[i] = static_cast<uint8_t>(std::clamp(static_cast<int>(x[i] * inverse + 8.5f), 0, 15));
  }
  for (size_t j = 0; j < kBlock / 2; ++j) {
    block[2 + j] = static_cast<std::byte>(q[j] | q[j + kBlock / 2] << 4);
  }
}

void EncodeQ8_0(const float* x, std::byte* block) {
  float largest = 0.0f;
  for (size_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float d = largest / 127.0f;
  const float inverse = InverseStep(d);
  StoreLe(block, FloatToHalf(d));
  for (size_t i = 0; i < kBlock; ++i) {
    block[2 + i] = static_cast<std::byte>(std::clamp<long>(std::lrint(x[i] * inverse), -127, 127));
  }
}

}  // namespace

bool CanEncodeSource(SourceType type) {
  return type == SourceType::kF32 || type == SourceType::kF16 || type == SourceType::kQ4_0 ||
         type == SourceType::kQ8_0;
}

void EncodeSource(SourceType type, std::span<const float> src, std::span<std::byte> dst) {
  if (type == SourceType::kF32) {
    std::memcpy(dst.data(), src.data(), src.size_bytes());
  } else if (type == SourceType::kF16) {
    for (size_t i = 0; i < src.size(); ++i) StoreLe(dst.data() + 2 * i, FloatToHalf(src[i]));
  } else {
    const auto encode = type == SourceType::kQ4_0 ? EncodeQ4_0 : EncodeQ8_0;
    const size_t bytes = BlockBytes(type);
    for (size_t b = 0; b < src.size() / kBlock; ++b) {
      encode(src.data() + b * kBlock, dst.data() + b * bytes);
    }
  }
}

}  // namespace sluice
