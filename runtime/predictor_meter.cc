#include "runtime/predictor_meter.h"

#include <utility>

namespace sluice {
namespace {

// How many numbers two rising sequences share.
uint64_t NumShared(std::span<const uint32_t> a, std::span<const uint32_t> b) {
  uint64_t n = 0;
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    n += a[i] == b[k];
    const bool advance_a = a[i] <= b[k], advance_b = b[k] <= a[i];
    i += advance_a;
    k += advance_b;
  }
  return n;
}

// Of a token and layer: those that were predicted, against those that are active.
void Count(size_t n, std::span<const uint32_t> active, std::span<const uint32_t> predicted,
           PredictorQuality& q) {
  q.n_neurons += n;
  q.n_active += active.size();
  q.n_predicted += predicted.size();
  q.n_hits += NumShared(active, predicted);
}

}  // namespace

PredictorMeter::PredictorMeter(const ModelConfig& config, std::span<const float> thresholds)
    : selector_(config, thresholds), layers_(config.n_layers), active_(config.d_ff) {}

void PredictorMeter::Observe(const FfnObservation& o) {
  if (o.predicted.data() == nullptr) return;
  const auto active =
      std::span<const uint32_t>(active_).first(selector_.Select({o.layer, o.gate}, active_));
  Count(o.gate.size(), active, o.predicted, layers_[o.layer]);
}

void PredictorMeter::MeasureHeads(HeadNeeds needs) {
  needs_ = std::move(needs);
  head_layers_.resize(layers_.size());
}

void PredictorMeter::ObserveAttention(const AttentionObservation& o) {
  if (!needs_ || o.predicted.data() == nullptr) return;
  Count(needs_->n_heads(), needs_->Select(o.layer, o.attended), o.predicted, head_layers_[o.layer]);
}

PredictorQuality SumOf(std::span<const PredictorQuality> layers) {
  PredictorQuality sum;
  for (const PredictorQuality& q : layers) {
    sum.n_neurons += q.n_neurons;
    sum.n_active += q.n_active;
    sum.n_predicted += q.n_predicted;
    sum.n_hits += q.n_hits;
  }
  return sum;
}

}  // namespace sluice
