// Holds what the predictors of a running model choose against what the gate would have chosen, and
// those of heads against the heads that are needed: see DecoderOptions::observer. Every gate and
// every head is computed as well, so such a run says nothing about speed.
#ifndef SLUICE_RUNTIME_PREDICTOR_METER_H_
#define SLUICE_RUNTIME_PREDICTOR_METER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "layout/model_config.h"
#include "predictor/neuron_selector.h"
#include "predictor/packed_predictor.h"
#include "runtime/ffn_observer.h"
#include "runtime/head_needs.h"

namespace sluice {

// Confined to the decode thread.
class PredictorMeter : public FfnObserver {
 public:
  // With the activation thresholds of the model's file, if it has any.
  explicit PredictorMeter(const ModelConfig& config, std::span<const float> thresholds = {});

  // Tokens for which no predictor was asked, those of prompts, do not count.
  void Observe(const FfnObservation& observation) override;

  // Heads are to be measured, too. `needs` is of all layers.
  void MeasureHeads(HeadNeeds needs);
  void ObserveAttention(const AttentionObservation& observation) override;

  // Of each layer, over all tokens so far.
  std::span<const PredictorQuality> layers() const { return layers_; }
  // Of heads, not of neurons; empty unless they are measured.
  std::span<const PredictorQuality> head_layers() const { return head_layers_; }

 private:
  const ExactSelector selector_;
  std::optional<HeadNeeds> needs_;
  std::vector<PredictorQuality> layers_, head_layers_;
  std::vector<uint32_t> active_;  // of the token and layer
};

// The qualities of several layers taken together.
PredictorQuality SumOf(std::span<const PredictorQuality> layers);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_PREDICTOR_METER_H_
