#include "predictor/neuron_selector.h"

#include <limits>

namespace sluice {
namespace {

constexpr float kLeast = std::numeric_limits<float>::denorm_min();  // above zero

}  // namespace

ExactSelector::ExactSelector(const ModelConfig& config, std::span<const float> thresholds)
    : activation_(config.activation),
      fatrelu_threshold_(config.activation_threshold),
      least_gate_(activation_ == Activation::kFatRelu && fatrelu_threshold_ > 0.0f
                      ? fatrelu_threshold_
                      : kLeast),
      thresholds_(thresholds.begin(), thresholds.end()) {
  if (thresholds.empty()) thresholds_.assign(config.n_layers, kLeast);
}

uint32_t ExactSelector::Select(const SelectorInput& input, std::span<uint32_t> active) const {
  uint32_t n = 0;
  if (activation_ != Activation::kSilu) {  // the gate says it without being activated
    for (uint32_t p = 0; p < input.gate.size(); ++p) {
      active[n] = p;
      n += !(input.gate[p] < least_gate_);  // a NaN is active
    }
    return n;
  }
  for (uint32_t p = 0; p < input.gate.size(); ++p) {
    active[n] = p;
    n += IsActive(input.layer, Activate(activation_, fatrelu_threshold_, input.gate[p]));
  }
  return n;
}

}  // namespace sluice
