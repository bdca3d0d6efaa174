#include "runtime/attention.h"

#include <algorithm>
#include <cmath>

#include "io/status.h"
#include "layout/weight_type.h"

namespace sluice {
namespace {

constexpr uint32_t kMaxGroup = 32;  // query heads that one dot call takes

size_t ScoreBytes(const ModelConfig& config, uint32_t context, int n_threads) {
  const size_t group = config.n_heads / config.n_kv_heads;
  return static_cast<size_t>(n_threads) * group * context * sizeof(float);
}

}  // namespace

size_t Attention::KvBytes(const ModelConfig& config, uint32_t context) {
  return size_t{config.n_layers} * config.n_kv_heads * 2 * context *
         RowBytes(WeightType::kF16, config.head_dim);
}

size_t Attention::ScratchBytes(const ModelConfig& config, const Size& size, int n_threads) {
  return ScoreBytes(config, size.context, n_threads) +
         size_t{size.max_tokens} * config.head_dim * sizeof(float);
}

absl::StatusOr<std::unique_ptr<Attention>> Attention::Create(const ModelConfig& config,
                                                             const Size& size,
                                                             std::span<const float> rope_divisors,
                                                             const KernelTable& kernels,
                                                             ThreadPool& pool) {
  auto a = std::unique_ptr<Attention>(new Attention(config, size, rope_divisors, kernels, pool));
  SLUICE_ASSIGN_OR_RETURN(a->kv_, AlignedBuffer::Allocate(KvBytes(config, size.context)));
  SLUICE_ASSIGN_OR_RETURN(
      a->scores_, AlignedBuffer::Allocate(ScoreBytes(config, size.context, pool.n_threads())));
  a->cos_sin_.resize(size_t{size.max_tokens} * config.head_dim);
  return a;
}

void Attention::Store(uint32_t layer, uint32_t position, const float* k, const float* v) {
  for (uint32_t h = 0; h < config_.n_kv_heads; ++h) {
    const size_t at = position * row_bytes();
    EncodeRow(WeightType::kF16, {k + h * config_.head_dim, config_.head_dim},
              {keys(layer, h) + at, row_bytes()});
    EncodeRow(WeightType::kF16, {v + h * config_.head_dim, config_.head_dim},
              {values(layer, h) + at, row_bytes()});
  }
}

void Attention::SetPositions(uint32_t first, uint32_t n) {
  first_ = first;
  n_ = n;
  const size_t d = config_.head_dim;
  for (uint32_t t = 0; t < n; ++t) {
    rope_.Angles(first + t, std::span(cos_sin_).subspan(t * d, d));
  }
}

void Attention::Run(uint32_t layer, float* q, float* k, const float* v, float* out) {
  const uint32_t q_dim = config_.q_dim(), kv_dim = config_.kv_dim();
  const size_t token_grain = WorthwhileGrain((q_dim + 2 * kv_dim) * sizeof(float), 1);
  pool_.Run(n_, token_grain, [&](size_t begin, size_t end, int) {
    for (size_t t = begin; t < end; ++t) {
      const uint32_t position = first_ + static_cast<uint32_t>(t);
      const auto cos_sin = std::span(cos_sin_).subspan(t * config_.head_dim, config_.head_dim);
      rope_.Apply(cos_sin, {q + t * q_dim, q_dim});
      rope_.Apply(cos_sin, {k + t * kv_dim, kv_dim});
      Store(layer, position, k + t * kv_dim, v + t * kv_dim);
    }
  });
  const uint32_t group = config_.n_heads / config_.n_kv_heads;
  const size_t head_grain = WorthwhileGrain(2 * (first_ + n_) * row_bytes() * group, 1);
  pool_.Run(size_t{n_} * config_.n_kv_heads, head_grain, [&](size_t begin, size_t end, int thread) {
    float* scores =
        reinterpret_cast<float*>(scores_.data()) + static_cast<size_t>(thread) * group * context_;
    for (size_t item = begin; item < end; ++item) {
      const auto t = static_cast<uint32_t>(item / config_.n_kv_heads);
      const auto head = static_cast<uint32_t>(item % config_.n_kv_heads);
      const size_t at = size_t{t} * q_dim + size_t{head} * group * config_.head_dim;
      AttendHeads(layer, head, first_ + t + 1, q + at, scores, out + at);
    }
  });
}

void Attention::AttendHeads(uint32_t layer, uint32_t kv_head, uint32_t n_positions, const float* q,
                            float* scores, float* out) const {
  const auto f16 = static_cast<size_t>(WeightType::kF16);
  const uint32_t d = config_.head_dim;
  const uint32_t group = config_.n_heads / config_.n_kv_heads;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  RowSet rows;
  rows.stride = row_bytes();
  rows.n_rows = n_positions;
  rows.base = keys(layer, kv_head);
  VectorView views[kMaxGroup];
  for (uint32_t g = 0; g < group; g += kMaxGroup) {
    const uint32_t count = std::min(kMaxGroup, group - g);
    for (uint32_t i = 0; i < count; ++i) views[i].f = q + (g + i) * d;
    kernels_.dot[f16](rows, d, views, count, scores + size_t{g} * context_, context_);
  }
  rows.base = values(layer, kv_head);
  for (uint32_t g = 0; g < group; ++g) {
    const auto head_scores = std::span(scores + size_t{g} * context_, n_positions);
    for (float& s : head_scores) s *= scale;
    SoftmaxInPlace(head_scores);
    std::fill_n(out + g * d, d, 0.0f);
    kernels_.axpy[f16](rows, d, head_scores.data(), 0, d, out + g * d);
  }
}

}  // namespace sluice
