// The FFN of one token, neuron by neuron: cached bundles are computed at once, misses as they land.
//
// The active set is taken in rising position, in waves of as many bundles as the cache can hold at
// once (one wave, unless the cache is tiny). In a wave, hits are pinned, so that no miss takes
// their place, and misses are requested, in file order; hits are computed meanwhile; then misses in
// order of arrival. A thread takes a section of the positions (see DownSums) from gate to down; its
// down columns are added in rising position, as far as the prefix of bundles that have arrived
// goes: the sum of each output has one order, whatever came from where and when.
//
// What was read ahead for a layer (see LookAhead) counts as a miss whose read has started, and
// perhaps ended, already.
#ifndef SLUICE_RUNTIME_FFN_DEMAND_H_
#define SLUICE_RUNTIME_FFN_DEMAND_H_

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "cache/wave.h"
#include "runtime/ffn_context.h"
#include "runtime/look_ahead.h"

namespace sluice {

struct DemandStats {
  uint64_t active_neurons = 0, neurons = 0;  // sum over calls of Finish
  uint64_t firing_neurons = 0;               // of the active ones, those whose activation is not 0
  uint64_t touched_rows = 0;                 // rows and columns of bundles that went into sums
};

// Confined to the decode thread. Allocates nothing after construction.
class DemandFfn {
 public:
  // `look_ahead`, on the same context, may be null. `cached_first` false: nothing is computed until
  // all of a wave has landed (what a benchmark compares with).
  DemandFfn(const FfnContext& context, LookAhead* look_ahead, bool cached_first);

  // Where the active set of a layer is to be written: room for all its neurons.
  std::span<uint32_t> active_buffer() { return active_; }
  // The first n_active positions there are the active set, in rising order. Pins or requests the
  // first wave. After an error nothing is begun.
  absl::Status Begin(uint32_t layer, uint32_t n_active);
  // After Begin: all of the active set is in the first wave.
  bool is_whole() const { return count_ == n_active_; }

  // After Begin: adds the FFN's output to y [d_model]. x is the token's normed input in the forms
  // that dots need, `gate` [d_ff] its gate values by position (see FfnObservation); empty: the gate
  // rows of the bundles are used. After an error nothing is begun any more.
  absl::Status Finish(std::span<const float> gate, const VectorView& x, float* y);
  // For observers of a dReLU model (see FfnObservation::gate). After Finish with gate values: those
  // of active neurons that up took out become 0.
  void DropRectified(std::span<float> gate) const;
  // The same of a layer that has not begun, whatever is active: all neurons whose gate fires are
  // computed once. `scratch` [d_model] is overwritten, and so is the active set.
  absl::Status RectifyGate(uint32_t layer, std::span<float> gate, const VectorView& x,
                           std::span<float> scratch);
  // Forgets what was begun or read ahead; waits for its reads, and for all others.
  void Cancel();

  // The active set of the layer that was begun last.
  std::span<const uint32_t> active() const { return std::span(active_).first(n_active_); }
  const DemandStats& stats() const { return stats_; }

  static size_t ScratchBytes(uint32_t d_ff, uint32_t n_slots);

 private:
  // Neighbours among the indices given to Compute whose positions lie in one section.
  struct Part {
    uint32_t section;
    uint32_t begin, end;  // of these indices
  };
  // The wave's share of a section.
  struct SectionState {
    uint32_t end = 0;     // index in active behind its last bundle
    uint32_t cursor = 0;  // index in active of the first one whose down column is not added yet
  };

  absl::Status StartWave();
  void DivideWave();
  void DivideInParts(std::span<const uint32_t> indices);
  void StartMappedWave();
  void RequestMissing(std::span<const uint32_t> positions);
  absl::Status FinishWave(std::span<const float> gate, const VectorView& x);
  // Notes which reads of the wave have landed.
  void SortLanded();
  // Waits until so many of the wave have landed and are not computed yet.
  absl::Status AwaitLanded(size_t least);
  // Dots and, as far as they go, sums of the bundles at these indices in the wave, which rise;
  // those `just_read` are checked.
  absl::Status Compute(std::span<const uint32_t> ready, std::span<const float> gate,
                       const VectorView& x, bool just_read);
  // Returns whether all are intact.
  bool ComputePart(std::span<const uint32_t> ready, std::span<const float> gate,
                   const VectorView& x, bool just_read);
  void ComputeBatch(std::span<const uint32_t> ready, std::span<const float> gate,
                    const VectorView& x);
  // Reads those that are damaged once more.
  absl::Status RepairDamaged(std::span<const uint32_t> ready, std::span<const float> gate,
                             const VectorView& x);
  // Adds down columns of a section as far as its bundles are computed.
  void AdvanceDown(uint32_t section);

  const FfnContext& c_;
  LookAhead* const look_ahead_;
  const bool cached_first_;
  uint32_t layer_ = 0;
  uint32_t n_active_ = 0;
  uint32_t begin_ = 0, count_ = 0;         // of the wave: indices in active
  std::vector<uint32_t> active_;           // positions
  std::vector<float> coefficients_;        // activation(gate) * up, by index in active
  std::vector<uint8_t> computed_;          // by index in active
  std::vector<uint8_t> damaged_;           // by index in the wave
  std::vector<const std::byte*> bundles_;  // by index in active
  std::vector<Pin> pins_;                  // by index in the wave
  Wave wave_;
  std::vector<uint32_t> ready_;       // indices in the wave whose bundles were in the cache
  std::vector<uint32_t> landed_;      // indices in the wave; not computed yet
  std::vector<uint32_t> wave_index_;  // by slot: index in the wave while it is being read
  std::vector<IoRequest> reads_;
  std::vector<SectionState> sections_;
  std::vector<Part> parts_;  // of a call of Compute
  // What AdvanceDown adds: the columns whose coefficient is not 0; each section's at its indices.
  std::vector<const std::byte*> down_;
  std::vector<float> down_coefficients_;
  DemandStats stats_;
  // Of the threads of a call of Compute.
  std::atomic<uint64_t> dot_rows_{0}, firing_{0};
  std::atomic<bool> any_damaged_{false};
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_FFN_DEMAND_H_
