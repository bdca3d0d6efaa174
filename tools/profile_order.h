// From what fired in a text to where neurons lie: the order of a model's neurons by its activation
// profile, and what its file then says of how often they fire.
#ifndef SLUICE_TOOLS_PROFILE_ORDER_H_
#define SLUICE_TOOLS_PROFILE_ORDER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/sparsity_records.h"
#include "predictor/activation_profile.h"

namespace sluice {

struct ProfileOrder {
  std::vector<std::vector<uint32_t>> order;  // by layer, the neuron at each position
  ActivityRecord activity;                   // by position in that order
  double gain_over_greedy = 0;               // the largest of the placements, in per cent
};

// With placements for a tenth of the bundles and so on up to nine tenths, and for a twentieth.
// Which neurons are worth a place depends on the costs only where layers differ much in them; they
// are those of a UFS 4.0 phone, so that the same profile gives the same file anywhere. `progress`
// as in OrderOptions.
absl::StatusOr<ProfileOrder> OrderByProfile(const ActivationProfile& profile, int n_threads,
                                            std::function<bool(uint32_t, uint32_t)> progress);

}  // namespace sluice

#endif  // SLUICE_TOOLS_PROFILE_ORDER_H_
