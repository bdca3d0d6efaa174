// The placement plan: how many neurons of each layer are pinned in DRAM for a budget, so that what
// is pinned covers as many activations as possible. An integer program as in PowerInfer (arXiv
// 2312.12456, section 6.3), solved with coin-or CBC.
//
//   maximise    sum of the counts of the pinned neurons
//   subject to  their bytes <= budget
//               a layer pins none, or at least C_l = ceil(T_sync / (T_slow - T_fast)) neurons:
//               fewer do not save what joining two kinds of neurons costs the layer
//
// Why a plan is a number for each layer: the neurons of a layer cost the same bytes and count the
// same towards C_l. Exchanging a pinned one for a more frequent one of its layer that is not pinned
// keeps both constraints and covers no less. So some best plan pins in each layer the n_l most
// frequent neurons, and what is left to choose is n_l. Where a file's neurons lie by falling
// frequency, these are its first n_l positions.
//
// Neurons are pinned in batches of 64, counted from the most frequent one; the last batch of a
// layer may be smaller. A layer's batches are taken in turn, so the first ceil(C_l / 64) of them
// come as one: the program has a binary for these and one for each batch after them.
//
// Stateless functions, thread-safe. Deterministic: CBC runs on one thread from a fixed seed and has
// no time limit. It stops at a plan that is proved to cover all but 1/100,000 of what the best one
// covers, or after 1000 nodes of its search, which it only needs where widths are not multiples of
// 64; Placement::bound says what is proved. 32 layers of 14,336 neurons take 0.1 s.
#ifndef SLUICE_LAYOUT_PLACEMENT_H_
#define SLUICE_LAYOUT_PLACEMENT_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "io/device_profile.h"

namespace sluice {

inline constexpr uint32_t kPlacementBatch = 64;

// Of one neuron; only ratios count.
struct PlacementCosts {
  double slow_ns = 0;  // read from flash, with many others in flight
  double fast_ns = 0;  // read from DRAM
  double sync_ns = 0;  // what a layer pays once for having both kinds
};

// Flash times of bundles within `layer_bytes`, from the profile. A layer that joins pinned neurons
// with others waits for the device once: sync_ns is the time of a read that is alone in flight.
PlacementCosts PlacementCostsOf(const DeviceProfile& profile, uint32_t bundle_bytes,
                                uint64_t layer_bytes, double dram_bytes_per_second);

// C_l, 1 at least. InvalidArgument if a time is not a positive number (sync_ns may be 0), or if
// flash is not slower than DRAM: then nothing is to be pinned.
absl::StatusOr<uint64_t> LeastPinned(const PlacementCosts& costs);

struct PlacementLayer {
  std::span<const uint32_t> counts;  // activations of each neuron over a text, the same for all
  uint64_t bundle_bytes = 0;
  PlacementCosts costs;
};

struct PlacementPlan {
  std::vector<uint32_t> pinned;  // neurons of each layer: its most frequent ones
  uint64_t covered = 0;          // their activations
  uint64_t bytes = 0;
};

// How a plan came about.
enum class PlacementWay : uint8_t {
  kGreedy,   // batches of all layers by falling activations per byte; layers that come out below
             // C_l give theirs up, the one that covers least first, and the rest is filled again
  kUniform,  // the same bytes for each layer
  kSolved,   // the integer program
};
std::string_view PlacementWayName(PlacementWay way);  // "greedy", "uniform", "solved"

struct Placement {
  PlacementPlan best;  // the plan that covers most; of equal ones the first in the order of Way
  PlacementWay way = PlacementWay::kGreedy;
  PlacementPlan greedy, uniform, solved;
  uint64_t bound = 0;  // proved: no plan covers more
  uint64_t total = 0;  // activations of all neurons
  // By how much best covers more than greedy does, in per cent of the latter. Often 0: with bundles
  // of one size and C_l of a batch or less, greedy is best.
  double gain_over_greedy = 0;
};

// InvalidArgument for no layers, a layer without neurons, bundles of 0 bytes, costs that
// LeastPinned refuses; ResourceExhausted if the program is too large for CBC's indices.
absl::StatusOr<Placement> PlanPlacement(std::span<const PlacementLayer> layers,
                                        uint64_t budget_bytes);

// The positions of the n most frequent neurons in rising order; of equal counts, the lower first.
std::vector<uint32_t> MostFrequent(std::span<const uint32_t> counts, uint32_t n);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_PLACEMENT_H_
