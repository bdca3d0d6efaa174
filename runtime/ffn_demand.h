// The FFN of one token, neuron by neuron: cached bundles are computed at once, misses as they land.
//
// The active set is taken in rising position, in waves of as many bundles as the cache can hold at
// once (one wave, unless the cache is tiny). In a wave, hits are pinned, so that no miss takes
// their place, and misses are requested, in file order; the dots of hits run meanwhile; then those
// of misses in order of arrival. Down columns are added in rising position, as far as the prefix of
// bundles that have arrived goes: the sum of each output has one order, whatever came from where
// and when.
//
// The first wave of a layer may begin while the layer before is computed (look-ahead): its reads go
// behind those that are waited for.
#ifndef SLUICE_RUNTIME_FFN_DEMAND_H_
#define SLUICE_RUNTIME_FFN_DEMAND_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "cache/wave.h"
#include "io/io_thread.h"
#include "runtime/ffn_context.h"

namespace sluice {

struct DemandStats {
  uint64_t active_neurons = 0, neurons = 0;  // sum over calls of Finish
  uint64_t firing_neurons = 0;               // of the active ones, those whose activation is not 0
  // Bundles that were read a layer ahead, and how many of them were there when they were needed.
  uint64_t looked_ahead = 0, in_time = 0;
};

// Confined to the decode thread. Allocates nothing after construction.
class DemandFfn {
 public:
  explicit DemandFfn(const FfnContext& context);

  // Where the active set of a layer is to be written: room for all its neurons.
  std::span<uint32_t> active_buffer(uint32_t layer) { return work(layer).active; }
  // The first n_active positions there are the active set, in rising order. Pins or requests the
  // first wave. Of the layers begun and not finished there may be two, one after the other, the
  // later one only if whole() is true of the earlier one.
  void Begin(uint32_t layer, uint32_t n_active, IoPriority priority);
  bool has_begun(uint32_t layer) const {
    return works_[layer % 2].begun && works_[layer % 2].layer == layer;
  }
  // All of the layer's active set is in its first wave.
  bool is_whole(uint32_t layer) const {
    return works_[layer % 2].count == works_[layer % 2].n_active;
  }

  // After Begin: adds the FFN's output to y [d_model]. x is the token's normed input in the forms
  // that dots need, `gate` [d_ff] its gate values by position (see FfnObservation); empty: the gate
  // rows of the bundles are used. After an error nothing is begun any more.
  absl::Status Finish(uint32_t layer, std::span<const float> gate, const VectorView& x, float* y);
  // For observers of a dReLU model (see FfnObservation::gate). After Finish with gate values: those
  // of active neurons that up took out become 0.
  void DropRectified(uint32_t layer, std::span<float> gate) const;
  // The same of a layer that has not begun, whatever is active: all neurons whose gate fires are
  // computed once. `scratch` [d_model] is overwritten. Allocates.
  absl::Status RectifyGate(uint32_t layer, std::span<float> gate, const VectorView& x,
                           std::span<float> scratch);
  // Forgets what was begun; waits for its reads.
  void Cancel();

  // The active set of a layer that was finished last.
  std::span<const uint32_t> active(uint32_t layer) const {
    return std::span(works_[layer % 2].active).first(works_[layer % 2].n_active);
  }
  const DemandStats& stats() const { return stats_; }

  static size_t ScratchBytes(uint32_t d_ff, uint32_t n_slots);

 private:
  // Of a layer that has begun.
  struct Work {
    bool begun = false;
    bool is_ahead = false;  // its wave was read ahead, and is not computed yet
    uint32_t layer = 0;
    uint32_t n_active = 0;
    uint32_t begin = 0, count = 0;          // of the wave: indices in active
    std::vector<uint32_t> active;           // positions
    std::vector<float> coefficients;        // activation(gate) * up, by index in active
    std::vector<uint8_t> computed;          // by index in active
    std::vector<uint8_t> damaged;           // by index in the wave
    std::vector<const std::byte*> bundles;  // by index in active
    std::vector<Pin> pins;                  // by index in the wave
    Wave wave;
    std::vector<uint32_t> landed;  // indices in the wave; not computed yet
  };
  Work& work(uint32_t layer) { return works_[layer % 2]; }

  void StartWave(Work& work, IoPriority priority);
  void StartMappedWave(Work& work);
  absl::Status FinishWave(Work& work, std::span<const float> gate, const VectorView& x, float* y);
  // Tells each work which of its reads have landed.
  void SortLanded();
  // The coefficients of the bundles at these indices in the wave; those `just_read` are checked.
  absl::Status Compute(Work& work, std::span<const uint32_t> ready, std::span<const float> gate,
                       const VectorView& x, bool just_read);
  void ComputeBatch(Work& work, std::span<const uint32_t> ready, std::span<const float> gate,
                    const VectorView& x) const;
  // Adds down columns from `cursor` to the first bundle of the wave that is not computed yet.
  uint32_t AdvanceDown(Work& work, uint32_t cursor, uint32_t least, float* y);

  const FfnContext& c_;
  Work works_[2];                     // by layer, even and odd
  std::vector<uint32_t> wave_index_;  // by slot: index in the wave, and kOddWork
  std::vector<IoRequest> reads_;
  // What AdvanceDown adds: the columns whose coefficient is not 0.
  std::vector<const std::byte*> down_;
  std::vector<float> down_coefficients_;
  DemandStats stats_;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_FFN_DEMAND_H_
