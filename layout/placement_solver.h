// The integer program of layout/placement.h, for coin-or CBC.
#ifndef SLUICE_LAYOUT_PLACEMENT_SOLVER_H_
#define SLUICE_LAYOUT_PLACEMENT_SOLVER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice {

// What can be taken of a layer, in this order: the first step is the least number of neurons that
// may be pinned, each one after it a batch.
struct PlacementSteps {
  std::vector<uint64_t> gains;  // activations covered; falling from the second step on
  std::vector<uint64_t> units;  // of memory
};

struct PlacementSolution {
  std::vector<uint32_t> steps;  // taken of each layer
  double bound = 0;             // no solution has a greater sum of gains
};

// The steps of the greatest gain within the budget, as near to it as layout/placement.h says.
// `start` is a solution to begin from. Internal if CBC fails.
absl::StatusOr<PlacementSolution> SolvePlacement(std::span<const PlacementSteps> layers,
                                                 uint64_t budget_units,
                                                 std::span<const uint32_t> start);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_PLACEMENT_SOLVER_H_
