// What passes through a layer, for those who want to know which neurons and heads fire, and for
// what input: the profile and the trainer.
#ifndef SLUICE_RUNTIME_FFN_OBSERVER_H_
#define SLUICE_RUNTIME_FFN_OBSERVER_H_

#include <cstdint>
#include <span>

namespace sluice {

// Of the n tokens that pass through a layer together; token after token in each span.
struct FfnObservation {
  uint32_t layer = 0;
  uint32_t n_tokens = 0;
  std::span<const float> residual;  // [n x d_model] what the FFN's norm is applied to
  std::span<const float> normed;    // [n x d_model] what the FFN's matrices are applied to
  // [n x d_ff] gate(normed) by position, before the activation; of an FFN without a gate
  // up(normed) with its bias, which decides there. With dReLU, of neurons whose gate fires and
  // which a negative up takes out all the same: 0, so that a positive value says that the neuron
  // fires.
  std::span<const float> gate;
  // The active set that a predictor gave, positions in rising order; only in predicted mode, where
  // tokens that go neuron by neuron are observed one by one. data() is null if none was asked.
  std::span<const uint32_t> predicted;
};

// The same of the attention of a layer.
struct AttentionObservation {
  uint32_t layer = 0;
  uint32_t n_tokens = 0;
  std::span<const float> residual;  // [n x d_model] what the attention's norm is applied to
  std::span<const float> normed;    // [n x d_model] what Q, K and V are applied to
  std::span<const float> attended;  // [n x heads * head_dim] outputs of all heads, before O
  // The heads that a predictor chose, in rising order; data() is null if none was asked.
  std::span<const uint32_t> predicted;
};

class FfnObserver {
 public:
  virtual ~FfnObserver() = default;
  // On the decode thread, layers in rising order, before the FFN of the layer is added. The spans
  // are valid during the call. A pass that fails, and may be repeated, is observed all the same.
  virtual void Observe(const FfnObservation& observation) = 0;
  // Likewise, before the attention's output is added.
  virtual void ObserveAttention(const AttentionObservation&) {}
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_FFN_OBSERVER_H_
