// Which neurons an FFN has to compute for a token: the seam between the decoder and whatever knows
// or guesses it. Asked where single tokens are decoded; where many prompt tokens pass through a
// layer together, nearly every neuron is active for one of them and the whole layer is read.
#ifndef SLUICE_PREDICTOR_NEURON_SELECTOR_H_
#define SLUICE_PREDICTOR_NEURON_SELECTOR_H_

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "layout/model_config.h"

namespace sluice {

struct SelectorInput {
  uint32_t layer = 0;
  // gate(x) of every neuron of the layer, by position, before the activation.
  std::span<const float> gate;
};

// Thread-safe; allocates nothing.
class NeuronSelector {
 public:
  virtual ~NeuronSelector() = default;
  // Writes the active set, positions in rising order, and returns how many there are. `active` has
  // room for every neuron of the layer.
  virtual uint32_t Select(const SelectorInput& input, std::span<uint32_t> active) const = 0;
};

// The gate decides: a neuron is active if its activation is not exactly zero, so leaving the others
// out does not change the result; or, with thresholds by layer (CATS), if the magnitude of its
// activation reaches that of the layer. What exact mode computes, what a profile counts, what
// predictors learn and what they are held against: all of it is asked here.
class ExactSelector : public NeuronSelector {
 public:
  // `thresholds` are SluiceFile::thresholds() or ActivationProfile::thresholds().
  explicit ExactSelector(const ModelConfig& config, std::span<const float> thresholds = {});
  uint32_t Select(const SelectorInput& input, std::span<uint32_t> active) const override;
  // For a neuron with activation(gate). A NaN counts as active: errors must not be hidden.
  bool IsActive(uint32_t layer, float activated) const {
    return !(std::fabs(activated) < thresholds_[layer]);
  }

 private:
  const Activation activation_;
  const float fatrelu_threshold_;
  // Of an activation with exact zeros: active where the gate is at or above it; for ReLU above
  // zero.
  const float least_gate_;
  std::vector<float> thresholds_;  // by layer, of the magnitude of the activation
};

}  // namespace sluice

#endif  // SLUICE_PREDICTOR_NEURON_SELECTOR_H_
