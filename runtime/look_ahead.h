// Bundles that a later layer will most likely need, read into the neuron cache before it asks.
//
// What is expected decides nothing: a bundle that was read ahead and is needed is found in its slot
// (or on its way there), one that is not needed is forgotten as soon as its read has ended, and one
// that was not foreseen is read when it is asked for. Reads go behind those that are waited for.
//
// Whether it pays is watched: of a layer of whose reads fewer than half are needed, reading ahead
// pauses, since what it pushes out is needed more, and what is waited for comes later.
//
// Confined to the decode thread. Allocates nothing after construction.
#ifndef SLUICE_RUNTIME_LOOK_AHEAD_H_
#define SLUICE_RUNTIME_LOOK_AHEAD_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/wave.h"
#include "io/io_request.h"
#include "runtime/ffn_context.h"
#include "runtime/pause_rule.h"

namespace sluice {

// Of bundles.
struct LookAheadStats {
  uint64_t reads = 0;
  uint64_t needed = 0;   // of the reads
  uint64_t in_time = 0;  // of the needed ones: had landed when they were asked for
  uint64_t paused = 0;   // no bundles: layers of a token for which nothing was read, since it does
                         // not pay
};

class LookAhead {
 public:
  // Not for mapped weights.
  explicit LookAhead(const FfnContext& context);

  // Asked once for each layer of a token, before Begin: whether reading for it is worth while.
  bool Pays(uint32_t layer);

  // Starts to read those of the bundles at `positions` (in rising order) of the layer that are not
  // in the cache, from the first one on, as far as slots and the queue reach; the others count as
  // used. Forgets what was read ahead earlier, has landed and was not needed.
  void Begin(uint32_t layer, std::span<const uint32_t> positions);

  // Hands over a slot that is loading, on which the caller has a pin: its bundle is to be used as
  // one that was just read. False if its read has not landed yet, of which the caller will be told.
  bool Take(uint32_t slot);
  // To be told of every slot that has landed and was not handed over.
  void Landed(uint32_t slot) { states_[slot] = State::kLanded; }
  // Lets go of the slots that have landed and were not needed; false if there were none.
  bool DropLanded();
  // Slots are held.
  bool holds_any() const { return !slots_.empty(); }
  // Lets go of all. Nothing may be in flight.
  void Forget();

  const LookAheadStats& stats() const { return stats_; }

  static size_t Bytes(uint32_t d_ff, uint32_t n_slots);

 private:
  enum class State : uint8_t { kNone, kReading, kLanded };

  const FfnContext& c_;
  std::vector<uint32_t> slots_;  // that are held; some may have been handed over since
  std::vector<State> states_;    // by slot; kNone: not held
  std::vector<Pin> pins_;        // by slot
  std::vector<Pin> wave_pins_;
  Wave wave_;
  std::vector<IoRequest> reads_;
  std::vector<PauseRule> rules_;  // by layer
  uint32_t layer_ = 0;            // of the last Begin
  LookAheadStats stats_;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_LOOK_AHEAD_H_
