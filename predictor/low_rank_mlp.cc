#include "predictor/low_rank_mlp.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "layout/counter_rng.h"

namespace sluice {
namespace {

constexpr size_t kElementGrain = 16 * 1024;

void FillRandom(std::span<float> values, float deviation, CounterRng rng) {
  for (float& v : values) v = deviation * rng.Normal();
}

float InputDeviation(uint32_t d_in) { return std::sqrt(2.0f / static_cast<float>(d_in)); }

}  // namespace

LowRankMlp LowRankMlp::Random(uint32_t d_in, uint32_t rank, uint32_t d_out, uint64_t seed,
                              uint64_t stream) {
  LowRankMlp m{d_in, rank, d_out, std::vector<float>(size_t{rank} * d_in),
               std::vector<float>(size_t{d_out} * rank)};
  FillRandom(m.fc1, InputDeviation(d_in), CounterRng(seed, stream, 0));
  FillRandom(m.fc2, std::sqrt(1.0f / static_cast<float>(rank)), CounterRng(seed, stream, 1));
  return m;
}

LowRankMlp LowRankMlp::Resized(uint32_t new_rank, uint64_t seed, uint64_t stream) const {
  std::vector<double> weight(rank);
  for (uint32_t j = 0; j < rank; ++j) {
    double in = 0, out = 0;
    for (uint32_t k = 0; k < d_in; ++k) in += std::pow(fc1[size_t{j} * d_in + k], 2);
    for (uint32_t i = 0; i < d_out; ++i) out += std::pow(fc2[size_t{i} * rank + j], 2);
    weight[j] = in * out;
  }
  std::vector<uint32_t> units(rank);
  std::iota(units.begin(), units.end(), 0u);
  std::stable_sort(units.begin(), units.end(),
                   [&](uint32_t a, uint32_t b) { return weight[a] > weight[b]; });
  units.resize(std::min(rank, new_rank));

  LowRankMlp m{d_in, new_rank, d_out, std::vector<float>(size_t{new_rank} * d_in),
               std::vector<float>(size_t{d_out} * new_rank)};
  FillRandom(m.fc1, InputDeviation(d_in), CounterRng(seed, stream, 2 + new_rank));
  for (uint32_t j = 0; j < units.size(); ++j) {
    std::copy_n(&fc1[size_t{units[j]} * d_in], d_in, &m.fc1[size_t{j} * d_in]);
    for (uint32_t i = 0; i < d_out; ++i) {
      m.fc2[size_t{i} * new_rank + j] = fc2[size_t{i} * rank + units[j]];
    }
  }
  return m;
}

std::span<float> MlpPass::Forward(const LowRankMlp& mlp, std::span<const float> inputs, size_t n) {
  hidden_.resize(n * mlp.rank);
  logits_.resize(n * mlp.d_out);
  products_.MultiplyTransposed(inputs.data(), n, mlp.fc1.data(), mlp.rank, mlp.d_in,
                               hidden_.data());
  products_.parallel()(hidden_.size(), kElementGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) hidden_[i] = hidden_[i] > 0.0f ? hidden_[i] : 0.0f;
  });
  products_.MultiplyTransposed(hidden_.data(), n, mlp.fc2.data(), mlp.d_out, mlp.rank,
                               logits_.data());
  return logits_;
}

void MlpPass::Backward(const LowRankMlp& mlp, std::span<const float> inputs, size_t n,
                       std::span<const float> d_logits) {
  const size_t d = mlp.d_in, r = mlp.rank, m = mlp.d_out;
  hidden_t_.resize(r * n);
  d_logits_t_.resize(m * n);
  products_.Transpose(hidden_.data(), n, r, hidden_t_.data());
  products_.Transpose(d_logits.data(), n, m, d_logits_t_.data());
  d_fc2_.resize(m * r);
  products_.MultiplyTransposed(d_logits_t_.data(), m, hidden_t_.data(), r, n, d_fc2_.data());

  fc2_t_.resize(r * m);
  d_hidden_.resize(n * r);
  products_.Transpose(mlp.fc2.data(), m, r, fc2_t_.data());
  products_.MultiplyTransposed(d_logits.data(), n, fc2_t_.data(), r, m, d_hidden_.data());
  products_.parallel()(d_hidden_.size(), kElementGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) d_hidden_[i] = hidden_[i] > 0.0f ? d_hidden_[i] : 0.0f;
  });

  d_hidden_t_.resize(r * n);
  inputs_t_.resize(d * n);
  products_.Transpose(d_hidden_.data(), n, r, d_hidden_t_.data());
  products_.Transpose(inputs.data(), n, d, inputs_t_.data());
  d_fc1_.resize(r * d);
  products_.MultiplyTransposed(d_hidden_t_.data(), r, inputs_t_.data(), d, n, d_fc1_.data());
}

}  // namespace sluice
