#include "predictor/neuron_selector.h"

#include <limits>

namespace sluice {

ExactSelector::ExactSelector(const ModelConfig& config)
    : threshold_(config.activation == Activation::kFatRelu && config.activation_threshold > 0.0f
                     ? config.activation_threshold
                     : std::numeric_limits<float>::denorm_min()) {}

uint32_t ExactSelector::Select(const SelectorInput& input, std::span<uint32_t> active) const {
  uint32_t n = 0;
  for (uint32_t p = 0; p < input.gate.size(); ++p) {
    active[n] = p;
    n += !(input.gate[p] < threshold_);  // a NaN counts as active: errors must not be hidden
  }
  return n;
}

}  // namespace sluice
