// Which neurons an FFN has to compute for a token: the seam between the decoder and whatever knows
// or guesses it.
#ifndef SLUICE_PREDICTOR_NEURON_SELECTOR_H_
#define SLUICE_PREDICTOR_NEURON_SELECTOR_H_

#include <cstdint>
#include <span>
#include <string_view>

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
  virtual std::string_view name() const = 0;
  // Writes the active set, positions in rising order, and returns how many there are. `active` has
  // room for every neuron of the layer.
  virtual uint32_t Select(const SelectorInput& input, std::span<uint32_t> active) const = 0;
};

// The gate decides: a neuron is active if its activation is not exactly zero, so leaving the others
// out does not change the result.
class ExactSelector : public NeuronSelector {
 public:
  explicit ExactSelector(const ModelConfig& config);
  std::string_view name() const override { return "exact"; }
  uint32_t Select(const SelectorInput& input, std::span<uint32_t> active) const override;

 private:
  bool every_neuron_ = false;  // SiLU: no exact zeros
  float threshold_ = 0.0f;     // active at or above it; for ReLU above zero
};

// Every neuron.
class DenseSelector : public NeuronSelector {
 public:
  std::string_view name() const override { return "dense"; }
  uint32_t Select(const SelectorInput& input, std::span<uint32_t> active) const override;
};

}  // namespace sluice

#endif  // SLUICE_PREDICTOR_NEURON_SELECTOR_H_
