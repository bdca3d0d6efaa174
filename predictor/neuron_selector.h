// Which neurons an FFN has to compute for a token: the seam between the decoder and whatever knows
// or guesses it. Asked where single tokens are decoded; where many prompt tokens pass through a
// layer together, nearly every neuron is active for one of them and the whole layer is read.
#ifndef SLUICE_PREDICTOR_NEURON_SELECTOR_H_
#define SLUICE_PREDICTOR_NEURON_SELECTOR_H_

#include <cstdint>
#include <span>

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
// out does not change the result. For activations with exact zeros (ModelConfig::sparse).
class ExactSelector : public NeuronSelector {
 public:
  explicit ExactSelector(const ModelConfig& config);
  uint32_t Select(const SelectorInput& input, std::span<uint32_t> active) const override;

 private:
  const float threshold_;  // active at or above it; for ReLU above zero
};

}  // namespace sluice

#endif  // SLUICE_PREDICTOR_NEURON_SELECTOR_H_
