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

// out[i] = (x[i] - mean(x)) / sqrt(variance(x) + epsilon) * weight[i] + bias[i]. `out` may be `x`.
void LayerNorm(std::span<const float> x, std::span<const float> weight, std::span<const float> bias,
               float epsilon, std::span<float> out);

// The one or, if there is a bias, the other.
void Normalize(std::span<const float> x, std::span<const float> weight, std::span<const float> bias,
               float epsilon, std::span<float> out);

void AddInPlace(std::span<float> x, std::span<const float> y);
// Adds y, which may be empty, to each of n rows as long as it is.
void AddToRows(std::span<const float> y, float* rows, uint32_t n);
// Adds of y, which may be empty, the groups of `size` elements that are named to those of x, which
// lie one after another.
void AddToGroups(std::span<const float> y, std::span<const uint32_t> groups, uint32_t size,
                 float* x);

// x = exp(x - max) / sum.
void SoftmaxInPlace(std::span<float> x);

// Rotates the first rope_dim elements of the heads of one token at `position`, heads of `head_dim`
// one after another. Pair i turns by position * base^(-2i/rope_dim) / divisors[i].
class Rope {
 public:
  Rope(const ModelConfig& config, std::span<const float> divisors);
  // cos_sin has at least rope_dim floats: cosine and sine of each pair.
  void Angles(uint32_t position, std::span<float> cos_sin) const;
  void Apply(std::span<const float> cos_sin, std::span<float> heads) const;

 private:
  const ModelConfig& config_;
  std::span<const float> divisors_;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_TENSOR_OPS_H_
