#include "runtime/tensor_ops.h"

#include <algorithm>
#include <cmath>

namespace sluice {

namespace {

constexpr size_t kLanes = 8;  // a chain of adds each; vectors have a multiple of 32 elements

// The sum of term(x[i]).
template <typename Term>
double SumOf(std::span<const float> x, Term term) {
  double lanes[kLanes] = {};
  for (size_t i = 0; i < x.size(); i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) lanes[l] += term(static_cast<double>(x[i + l]));
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

void RmsNorm(std::span<const float> x, std::span<const float> weight, float epsilon,
             std::span<float> out) {
  const double sum = SumOf(x, [](double v) { return v * v; });
  const auto scale = static_cast<float>(
      1.0 / std::sqrt(sum / static_cast<double>(x.size()) + static_cast<double>(epsilon)));
  for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] * scale * weight[i];
}

void LayerNorm(std::span<const float> x, std::span<const float> weight, std::span<const float> bias,
               float epsilon, std::span<float> out) {
  const auto n = static_cast<double>(x.size());
  const double mean = SumOf(x, [](double v) { return v; }) / n;
  const double squares = SumOf(x, [mean](double v) { return (v - mean) * (v - mean); });
  const double scale = 1.0 / std::sqrt(squares / n + static_cast<double>(epsilon));
  for (size_t i = 0; i < x.size(); ++i) {
    const auto normed = static_cast<float>((static_cast<double>(x[i]) - mean) * scale);
    out[i] = normed * weight[i] + bias[i];
  }
}

void Normalize(std::span<const float> x, std::span<const float> weight, std::span<const float> bias,
               float epsilon, std::span<float> out) {
  if (bias.empty()) return RmsNorm(x, weight, epsilon, out);
  LayerNorm(x, weight, bias, epsilon, out);
}

void AddInPlace(std::span<float> x, std::span<const float> y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

void AddToRows(std::span<const float> y, float* rows, uint32_t n) {
  for (uint32_t t = 0; t < n && !y.empty(); ++t) AddInPlace({rows + t * y.size(), y.size()}, y);
}

void AddToGroups(std::span<const float> y, std::span<const uint32_t> groups, uint32_t size,
                 float* x) {
  for (size_t i = 0; i < groups.size() && !y.empty(); ++i) {
    AddInPlace({x + i * size, size}, y.subspan(size_t{groups[i]} * size, size));
  }
}

void SoftmaxInPlace(std::span<float> x) {
  const float max = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (float& v : x) {
    v = std::exp(v - max);
    sum += static_cast<double>(v);
  }
  const auto inverse = static_cast<float>(1.0 / sum);
  for (float& v : x) v *= inverse;
}

Rope::Rope(const ModelConfig& config, std::span<const float> divisors)
    : config_(config), divisors_(divisors) {}

void Rope::Angles(uint32_t position, std::span<float> cos_sin) const {
  for (uint32_t i = 0; i < config_.rope_dim() / 2; ++i) {
    const double exponent = -2.0 * i / config_.rope_dim();
    const double angle = position * std::pow(static_cast<double>(config_.rope_base), exponent) /
                         static_cast<double>(divisors_[i]);
    cos_sin[2 * i] = static_cast<float>(std::cos(angle));
    cos_sin[2 * i + 1] = static_cast<float>(std::sin(angle));
  }
}

void Rope::Apply(std::span<const float> cos_sin, std::span<float> heads) const {
  const uint32_t half = config_.rope_dim() / 2;
  const bool interleaved = config_.rope_style == RopeStyle::kInterleaved;
  for (size_t head = 0; head < heads.size(); head += config_.head_dim) {
    for (uint32_t i = 0; i < half; ++i) {
      float& a = heads[head + (interleaved ? 2 * i : i)];
      float& b = heads[head + (interleaved ? 2 * i + 1 : i + half)];
      const float c = cos_sin[2 * i], s = cos_sin[2 * i + 1];
      const float turned = a * c - b * s;
      b = a * s + b * c;
      a = turned;
    }
  }
}

}  // namespace sluice
