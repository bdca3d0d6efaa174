#include "layout/synth_weights.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "layout/counter_rng.h"
#include "layout/synth_streams.h"
#include "layout/synth_vocab.h"

namespace sluice {
namespace {

// Amplitudes, relative to the unit variance of code and context. None of them is delicate: they
// only keep what is not planted from disturbing what is.
constexpr float kFreeEmbedding = 0.1f;       // an embedding's free dimensions
constexpr float kFaint = 0.02f;              // dimensions that should be nearly zero
constexpr double kSelectorNoise = 0.03;      // around the planted entries of the first attention
constexpr double kAttentionVariance = 0.02;  // what all layers' attention adds to a free dimension
constexpr double kFfnVariance = 0.04;        // what all layers' FFN adds to a free dimension
constexpr float kLeak = 1.0f / 64.0f;        // amplitude with which both reach the other dimensions
constexpr float kFreeGate = 0.5f;            // a gate's weights on free dimensions
constexpr double kMeanVariance = 0.15;       // of attention outputs: means of unit-variance values

// Scores of the head: the successor's, and that of tokens which must never win. The other tokens'
// scatter around 0 with a deviation of kSuccessorLogit / sqrt(code dimensions).
constexpr float kSuccessorLogit = 20.0f;
constexpr float kSpecialLogit = -20.0f;
constexpr float kHeadNoise = 0.25f;  // on context and free dimensions, relative to the code's

// How much of the code of a control or byte token is its alias's, and how much its own.
constexpr float kAliasPart = 0.8f;
constexpr float kOwnPart = 0.6f;

std::span<float> Slice(std::span<float> values, DimRange range) {
  return values.subspan(range.begin, range.size);
}

void FillNoise(std::span<float> values, float deviation, CounterRng rng) {
  for (float& v : values) v = deviation * rng.Normal();
}

// Scales `values` to a squared norm of `energy`.
void Normalize(std::span<float> values, double energy) {
  double sum = 0.0;
  for (const float v : values) sum += static_cast<double>(v) * v;
  const auto scale = static_cast<float>(std::sqrt(energy / sum));
  for (float& v : values) v *= scale;
}

CounterRng RowRng(const SynthPlan& plan, SynthRandom what, uint32_t layer, uint32_t row) {
  return CounterRng(plan.options().seed, SynthStream(what, layer), row);
}

// All codes have the same norm: a short one would make a key louder after RMSNorm, and the planted
// attention scores are sharp.
void FillCode(const SynthPlan& plan, uint32_t token, std::span<float> code) {
  FillNoise(code, 1.0f, RowRng(plan, SynthRandom::kCode, 0, token));
  if (token < kFirstSynthOrdinaryToken) {
    CounterRng alias = RowRng(plan, SynthRandom::kCode, 0, plan.Alias(token));
    for (float& v : code) v = kOwnPart * v + kAliasPart * alias.Normal();
  }
  Normalize(code, static_cast<double>(code.size()));
}

RowFiller EmbeddingFiller(const SynthPlan& plan) {
  return [&plan](uint32_t token, std::span<float> row) {
    const ResidualLayout& residual = plan.residual();
    CounterRng rng = RowRng(plan, SynthRandom::kEmbeddingNoise, 0, token);
    std::ranges::fill(Slice(row, residual.constant), 1.0f);
    FillCode(plan, token, Slice(row, residual.code));
    for (float& v : Slice(row, residual.context)) v = kFaint * rng.Normal();
    for (float& v : Slice(row, residual.free)) v = kFreeEmbedding * rng.Normal();
  };
}

RowFiller HeadFiller(const SynthPlan& plan) {
  return [&plan](uint32_t token, std::span<float> row) {
    const ResidualLayout& residual = plan.residual();
    const auto rms = static_cast<float>(plan.residual_rms());
    const float scale = kSuccessorLogit * rms / static_cast<float>(residual.code.size);
    FillNoise(row, kHeadNoise * scale, RowRng(plan, SynthRandom::kHeadNoise, 0, token));
    std::ranges::fill(Slice(row, residual.constant), 0.0f);
    if (token < kFirstSynthOrdinaryToken) {
      std::ranges::fill(Slice(row, residual.constant),
                        kSpecialLogit * rms / static_cast<float>(residual.constant.size));
      return;
    }
    const std::span<float> code = Slice(row, residual.code);
    FillCode(plan, plan.Predecessor(token), code);
    for (float& v : code) v *= scale;
  };
}

// A matrix whose outputs have unit variance for an RMS-normalised input.
RowFiller NoiseFiller(const SynthPlan& plan, SynthRandom what, uint32_t layer) {
  return [&plan, what, layer](uint32_t row, std::span<float> values) {
    const auto deviation = static_cast<float>(1.0 / std::sqrt(plan.config().d_model));
    FillNoise(values, deviation, RowRng(plan, what, layer, row));
  };
}

// Queries or keys of the first layer: the same for every token and head.
RowFiller RecencyFiller(const SynthPlan& plan, SynthRandom what) {
  return [&plan, what](uint32_t row, std::span<float> values) {
    const RecencyKernel& kernel = plan.kernel();
    const DimRange constant = plan.residual().constant;
    FillNoise(
        values,
        static_cast<float>(kSelectorNoise * kernel.amplitude / std::sqrt(plan.config().d_model)),
        RowRng(plan, what, 0, row));
    // One element of each pair is enough: its turning by the distance is what the score sees.
    const uint32_t element = row % plan.config().head_dim;
    const uint32_t pair = element / 2;
    const bool planted =
        element % 2 == 0 && pair >= kernel.first_pair && pair < kernel.first_pair + kernel.n_pairs;
    const double value = planted ? kernel.amplitude * plan.embedding_rms() / constant.size : 0.0;
    std::ranges::fill(Slice(values, constant), static_cast<float>(value));
  };
}

// Values of the first layer: element j of the KV width copies dimension j of the code.
RowFiller CodeCopyFiller(const SynthPlan& plan) {
  return [&plan](uint32_t row, std::span<float> values) {
    const auto one = static_cast<float>(plan.embedding_rms());  // undoes the RMSNorm
    const auto noise = static_cast<float>(kSelectorNoise / std::sqrt(plan.config().d_model));
    FillNoise(values, noise * one, RowRng(plan, SynthRandom::kValue, 0, row));
    if (row < plan.residual().context.size) values[plan.residual().code.begin + row] = one;
  };
}

// Rows of attention output and FFN down: free dimensions get `deviation`, the others a leak of it.
float OutputDeviation(const SynthPlan& plan, uint32_t dim, double deviation) {
  const bool is_free = dim >= plan.residual().free.begin;
  return static_cast<float>(deviation) * (is_free ? 1.0f : kLeak);
}

RowFiller AttentionOutFiller(const SynthPlan& plan, uint32_t layer) {
  const ModelConfig& c = plan.config();
  const double deviation = std::sqrt(kAttentionVariance / (c.n_layers * c.d_model * kMeanVariance));
  return [&plan, layer, deviation](uint32_t dim, std::span<float> row) {
    const ModelConfig& config = plan.config();
    const DimRange context = plan.residual().context;
    CounterRng rng = RowRng(plan, SynthRandom::kAttentionOut, layer, dim);
    FillNoise(row, OutputDeviation(plan, dim, deviation), rng);
    if (layer != 0 || dim < context.begin || dim >= context.end()) return;
    // The mean over the query heads that share the KV head of this context dimension.
    const uint32_t kv_element = dim - context.begin;
    const uint32_t sharing = config.n_heads / config.n_kv_heads;
    const uint32_t first_head = kv_element / config.head_dim * sharing;
    for (uint32_t head = first_head; head < first_head + sharing; ++head) {
      row[head * config.head_dim + kv_element % config.head_dim] =
          static_cast<float>(plan.kernel().gain / sharing);
    }
  };
}

RowFiller GateFiller(const SynthPlan& plan, uint32_t layer) {
  // Code and context lie side by side; a group's direction covers both.
  const ResidualLayout& residual = plan.residual();
  const uint32_t width = residual.code.size + residual.context.size;
  std::vector<float> directions(size_t{plan.n_groups()} * width);
  for (uint32_t g = 0; g < plan.n_groups(); ++g) {
    FillNoise(std::span(directions).subspan(size_t{g} * width, width), 1.0f,
              RowRng(plan, SynthRandom::kGateGroup, layer, g));
  }
  const double share = plan.context_share();
  const double correlation = plan.options().group_correlation;
  const double rms = plan.residual_rms();  // undoes the RMSNorm, so that gates have unit variance
  return [&plan, layer, share, correlation, rms, width, directions = std::move(directions),
          neurons = plan.Neurons(layer)](uint32_t neuron, std::span<float> row) {
    const ResidualLayout& layout = plan.residual();
    FillNoise(row, 1.0f, RowRng(plan, SynthRandom::kGateOwn, layer, neuron));
    if (!neurons.group.empty()) {
      const float own = static_cast<float>(std::sqrt(1.0 - correlation));
      const float shared = static_cast<float>(std::sqrt(correlation));
      const float* direction = directions.data() + size_t{neurons.group[neuron]} * width;
      float* signal = row.data() + layout.code.begin;
      for (uint32_t i = 0; i < width; ++i) signal[i] = own * signal[i] + shared * direction[i];
    }
    Normalize(Slice(row, layout.code), (1.0 - share) * rms * rms);
    Normalize(Slice(row, layout.context), share * rms * rms);
    const float free = kFreeGate * static_cast<float>(rms / std::sqrt(width));
    for (float& v : Slice(row, layout.free)) v *= free;
    const double threshold = plan.threshold()[neurons.rank[neuron]];
    std::ranges::fill(Slice(row, layout.constant),
                      static_cast<float>(-threshold * rms / layout.constant.size));
  };
}

RowFiller DownFiller(const SynthPlan& plan, uint32_t layer) {
  const double deviation =
      std::sqrt(kFfnVariance / (plan.config().n_layers * plan.activation_energy()));
  return [&plan, layer, deviation](uint32_t dim, std::span<float> row) {
    FillNoise(row, OutputDeviation(plan, dim, deviation),
              RowRng(plan, SynthRandom::kDown, layer, dim));
  };
}

}  // namespace

std::vector<SynthTensor> ListSynthTensors(const SynthPlan& plan) {
  using Kind = SynthTensorKind;
  const ModelConfig& c = plan.config();
  std::vector<SynthTensor> tensors = {
      {"token_embd.weight", Kind::kEmbedding, 0, c.vocab_size, c.d_model}};
  for (uint32_t layer = 0; layer < c.n_layers; ++layer) {
    const auto add = [&](const char* name, Kind kind, uint32_t rows, uint32_t columns) {
      tensors.push_back(
          {absl::StrFormat("blk.%d.%s.weight", layer, name), kind, layer, rows, columns});
    };
    add("attn_norm", Kind::kNorm, 1, c.d_model);
    add("attn_q", Kind::kQuery, c.q_dim(), c.d_model);
    add("attn_k", Kind::kKey, c.kv_dim(), c.d_model);
    add("attn_v", Kind::kValue, c.kv_dim(), c.d_model);
    add("attn_output", Kind::kAttentionOut, c.d_model, c.q_dim());
    add("ffn_norm", Kind::kNorm, 1, c.d_model);
    add("ffn_gate", Kind::kGate, c.d_ff, c.d_model);
    add("ffn_up", Kind::kUp, c.d_ff, c.d_model);
    add("ffn_down", Kind::kDown, c.d_model, c.d_ff);
  }
  tensors.push_back({"output_norm.weight", Kind::kNorm, 0, 1, c.d_model});
  tensors.push_back({"output.weight", Kind::kHead, 0, c.vocab_size, c.d_model});
  return tensors;
}

RowFiller MakeRowFiller(const SynthPlan& plan, const SynthTensor& tensor) {
  const uint32_t layer = tensor.layer;
  switch (tensor.kind) {
    case SynthTensorKind::kNorm:
      return [](uint32_t, std::span<float> row) { std::ranges::fill(row, 1.0f); };
    case SynthTensorKind::kEmbedding:
      return EmbeddingFiller(plan);
    case SynthTensorKind::kHead:
      return HeadFiller(plan);
    case SynthTensorKind::kQuery:
      return layer == 0 ? RecencyFiller(plan, SynthRandom::kQuery)
                        : NoiseFiller(plan, SynthRandom::kQuery, layer);
    case SynthTensorKind::kKey:
      return layer == 0 ? RecencyFiller(plan, SynthRandom::kKey)
                        : NoiseFiller(plan, SynthRandom::kKey, layer);
    case SynthTensorKind::kValue:
      return layer == 0 ? CodeCopyFiller(plan) : NoiseFiller(plan, SynthRandom::kValue, layer);
    case SynthTensorKind::kAttentionOut:
      return AttentionOutFiller(plan, layer);
    case SynthTensorKind::kGate:
      return GateFiller(plan, layer);
    case SynthTensorKind::kUp:
      return NoiseFiller(plan, SynthRandom::kUp, layer);
    case SynthTensorKind::kDown:
      return DownFiller(plan, layer);
  }
  return nullptr;
}

}  // namespace sluice
