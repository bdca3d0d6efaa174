// The FFN of one token, neuron by neuron: cached bundles are computed at once, misses as they land.
//
// The active set is taken in rising position, in waves of as many bundles as the cache can hold at
// once (one wave, unless the cache is tiny). In a wave, hits are pinned, so that no miss takes
// their place, and misses are requested, in file order; the up dots of hits run meanwhile; then
// those of misses in order of arrival. Down columns are added in rising position, as far as the
// prefix of bundles that have arrived goes: the sum of each output has one order, whatever came
// from where and when.
#ifndef SLUICE_RUNTIME_FFN_DEMAND_H_
#define SLUICE_RUNTIME_FFN_DEMAND_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "cache/wave.h"
#include "predictor/neuron_selector.h"
#include "runtime/ffn_context.h"

namespace sluice {

// Confined to the decode thread. Allocates nothing after construction.
class DemandFfn {
 public:
  DemandFfn(const FfnContext& context, const NeuronSelector& selector);

  // `gate` [d_ff] are the gate values of the token, x its normed input in the forms that dots need;
  // adds the FFN's output to y [d_model].
  absl::Status Run(uint32_t layer, std::span<const float> gate, const VectorView& x, float* y);

  // The active set of the last call: positions in rising order.
  std::span<const uint32_t> active() const { return std::span(active_).first(n_last_); }
  // Sum over calls of the active neurons, and of all neurons.
  uint64_t n_active() const { return n_active_; }
  uint64_t n_neurons() const { return n_neurons_; }

  static size_t ScratchBytes(uint32_t d_ff, uint32_t n_slots);

 private:
  // Pins or requests bundles from `begin` on; returns how many the wave has.
  uint32_t StartWave(uint32_t layer, uint32_t begin, uint32_t end);
  uint32_t StartMappedWave(uint32_t layer, uint32_t begin, uint32_t end);
  absl::Status FinishWave(uint32_t layer, std::span<const float> gate, const VectorView& x,
                          uint32_t begin, uint32_t count, float* y);
  void SetBundle(uint32_t i, const std::byte* bundle);  // by index in active_
  // Up dots of the bundles at these indices in the wave; those `just_read` are checked first.
  absl::Status Compute(std::span<const uint32_t> ready, uint32_t layer, std::span<const float> gate,
                       const VectorView& x, uint32_t begin, bool just_read);
  // Adds down columns from `cursor` to the first bundle of the wave that is not computed yet.
  uint32_t AdvanceDown(uint32_t begin, uint32_t cursor, uint32_t count, uint32_t least, float* y);

  const FfnContext& c_;
  const NeuronSelector& selector_;
  std::vector<uint32_t> active_;           // positions
  std::vector<float> coefficients_;        // activation(gate) * up, by index in active_
  std::vector<uint8_t> computed_;          // by index in active_
  std::vector<uint8_t> damaged_;           // by index in the wave
  std::vector<const std::byte*> bundles_;  // by index in active_
  std::vector<const std::byte*> down_;     // by index in active_
  std::vector<Pin> pins_;                  // by index in the wave
  std::vector<uint32_t> wave_index_;       // by slot: index in the wave
  Wave wave_;
  std::vector<uint32_t> landed_;  // indices in the wave
  std::vector<IoRequest> reads_;
  uint32_t n_last_ = 0;  // of active_, in the last call
  uint64_t n_active_ = 0, n_neurons_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_FFN_DEMAND_H_
