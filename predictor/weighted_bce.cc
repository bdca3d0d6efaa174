#include "predictor/weighted_bce.h"

#include <bit>
#include <cmath>
#include <cstddef>

namespace sluice {
namespace {

// 1 / (1 + exp(-x)) within 2e-7. Written out since the one of a C library differs from machine to
// machine, and keeps the compiler from using vectors.
inline float Sigmoid(float x) {
  const float y = x < 0.0f ? x : -x;                                 // exp(y) cannot overflow
  const float t = (y > -80.0f ? y : -80.0f) * 1.44269504088896341f;  // exp(y) = 2^t
  const int32_t whole = static_cast<int32_t>(t - 0.5f);              // towards 0: the nearest
  const float f = (t - static_cast<float>(whole)) * 0.693147180559945309f;
  const float e_f =
      1.0f + f * (1.0f + f * (0.5f + f * (1.0f / 6 +
                                          f * (1.0f / 24 + f * (1.0f / 120 + f * (1.0f / 720))))));
  const float e = e_f * std::bit_cast<float>((whole + 127) << 23);
  const float p = 1.0f / (1.0f + e);
  return x < 0.0f ? e * p : p;
}

bool IsActive(const uint64_t* labels, size_t i) { return (labels[i / 64] >> (i % 64) & 1) != 0; }

}  // namespace

double WeightedBce(std::span<const float> logits, const uint64_t* labels, float inactive_weight) {
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double z = IsActive(labels, i) ? -logits[i] : logits[i];
    const double loss = (z > 0 ? z : 0) + std::log1p(std::exp(-std::abs(z)));
    sum += IsActive(labels, i) ? loss : loss * inactive_weight;
  }
  return sum;
}

void WeightedBceGradient(std::span<float> logits, const uint64_t* labels, float inactive_weight,
                         float factor) {
  const float inactive = factor * inactive_weight;
  for (float& z : logits) z = Sigmoid(z) * inactive;
  // The few active ones once more: factor * (p - 1).
  for (size_t w = 0; w * 64 < logits.size(); ++w) {
    for (uint64_t bits = labels[w]; bits != 0; bits &= bits - 1) {
      float& z = logits[w * 64 + static_cast<size_t>(std::countr_zero(bits))];
      z = z / inactive_weight - factor;
    }
  }
}

}  // namespace sluice
