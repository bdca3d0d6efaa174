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
  return ScoreBytes(config, size.context, n_threads) + NumAngles(config, size) * sizeof(float);
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
  a->cos_sin_.resize(NumAngles(config, size));
  return a;
}

void Attention::SetPositions(uint32_t first, uint32_t n) {
  first_ = first;
  n_ = n;
  for (uint32_t t = 0; t < n; ++t) rope_.Angles(first + t, angles(first + t));
}

void Attention::StoreHead(uint32_t layer, uint32_t kv_head, uint32_t position, float* k,
                          const float* v) {
  const uint32_t d = config_.head_dim;
  const size_t at = position * row_bytes();
  rope_.Apply(angles(position), {k, d});
  EncodeRow(WeightType::kF16, {k, d}, {keys(layer, kv_head) + at, row_bytes()});
  EncodeRow(WeightType::kF16, {v, d}, {values(layer, kv_head) + at, row_bytes()});
}

void Attention::Store(uint32_t layer, float* k, const float* v) {
  const uint32_t d = config_.head_dim, kv_dim = config_.kv_dim();
  pool_.Run(n_, WorthwhileGrain(2 * kv_dim * sizeof(float), 1), [&](size_t begin, size_t end, int) {
    for (size_t t = begin; t < end; ++t) {
      for (uint32_t h = 0; h < config_.n_kv_heads; ++h) {
        const size_t at = t * kv_dim + size_t{h} * d;
        StoreHead(layer, h, first_ + static_cast<uint32_t>(t), k + at, v + at);
      }
    }
  });
}

void Attention::Attend(uint32_t layer, std::span<const uint32_t> heads, float* q, float* out) {
  const uint32_t d = config_.head_dim;
  const uint32_t group = config_.n_heads / config_.n_kv_heads;
  for (size_t i = 0; i < heads.size(); ++i) {
    if (i > 0 && heads[i] / group == heads[i - 1] / group) continue;
    touched_bytes_ += 2 * (first_ + n_) * row_bytes();
  }
  const size_t grain = WorthwhileGrain(2 * (first_ + n_) * row_bytes() * group, 1);
  pool_.Run(size_t{n_} * config_.n_kv_heads, grain, [&](size_t begin, size_t end, int thread) {
    float* scores =
        reinterpret_cast<float*>(scores_.data()) + static_cast<size_t>(thread) * group * context_;
    for (size_t item = begin; item < end; ++item) {
      const auto t = static_cast<uint32_t>(item / config_.n_kv_heads);
      const auto kv_head = static_cast<uint32_t>(item % config_.n_kv_heads);
      const auto first = std::lower_bound(heads.begin(), heads.end(), kv_head * group);
      const auto of_group =
          std::span(first, std::lower_bound(first, heads.end(), (kv_head + 1) * group));
      if (of_group.empty()) continue;
      const auto place = static_cast<size_t>(first - heads.begin());
      float* q_group = q + (t * heads.size() + place) * d;
      rope_.Apply(angles(first_ + t), {q_group, of_group.size() * d});
      AttendHeads(layer, kv_head, first_ + t + 1, of_group, q_group, scores,
                  out + size_t{t} * config_.q_dim());
    }
  });
}

// q has the heads one after another, out [q_dim] those of a token at their places.
void Attention::AttendHeads(uint32_t layer, uint32_t kv_head, uint32_t n_positions,
                            std::span<const uint32_t> heads, const float* q, float* scores,
                            float* out) const {
  const auto f16 = static_cast<size_t>(WeightType::kF16);
  const uint32_t d = config_.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  RowSet rows;
  rows.stride = row_bytes();
  rows.n_rows = n_positions;
  rows.base = keys(layer, kv_head);
  VectorView views[kMaxGroup];
  const auto n = static_cast<uint32_t>(heads.size());
  for (uint32_t g = 0; g < n; g += kMaxGroup) {
    const uint32_t count = std::min(kMaxGroup, n - g);
    for (uint32_t i = 0; i < count; ++i) views[i].f = q + size_t{g + i} * d;
    kernels_.dot[f16](rows, d, views, count, scores + size_t{g} * context_, context_);
  }
  rows.base = values(layer, kv_head);
  for (uint32_t g = 0; g < n; ++g) {
    const auto head_scores = std::span(scores + size_t{g} * context_, n_positions);
    for (float& s : head_scores) s *= scale;
    SoftmaxInPlace(head_scores);
    float* head_out = out + size_t{heads[g]} * d;
    std::fill_n(head_out, d, 0.0f);
    kernels_.axpy[f16](rows, d, head_scores.data(), 0, d, head_out);
  }
}

}  // namespace sluice
