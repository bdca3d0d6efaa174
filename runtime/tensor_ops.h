// The small float operations between matrix products. Each has one fixed order of evaluation, so
// that results do not depend on threads or batching. Plain functions; thread-safe.
#ifndef SLUICE_RUNTIME_TENSOR_OPS_H_
#define SLUICE_RUNTIME_TENSOR_OPS_H_

#include <cstdint>
#include <span>

#include "layout/model_config.h"

namespace sluice {

// out[i] = x[i] / sqrt(mean(x^2) + epsilon) * weight[i]. `out` may be `x`.
void RmsNorm(std::span<const float> x, std::span<const float> weight, float epsilon,
             std::span<float> out);

void AddInPlace(std::span<float> x, std::span<const float> y);

// The FFN activation of one gate value.
float Activate(Activation activation, float threshold, float gate);

// x = exp(x - max) / sum.
void SoftmaxInPlace(std::span<float> x);

// Rotates the heads of one token at `position`, heads of `head_dim` one after another. Pair i turns
// by position * base^(-2i/head_dim) / divisors[i].
class Rope {
 public:
  Rope(const ModelConfig& config, std::span<const float> divisors);
  // cos_sin has head_dim floats: cosine and sine of each pair.
  void Angles(uint32_t position, std::span<float> cos_sin) const;
  void Apply(std::span<const float> cos_sin, std::span<float> heads) const;

 private:
  const ModelConfig& config_;
  std::span<const float> divisors_;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_TENSOR_OPS_H_
