// From what fired in a text to where neurons lie: the order of a model's neurons by its activation
// profile, and what its file then says of how often they fire.
#ifndef SLUICE_TOOLS_PROFILE_ORDER_H_
#define SLUICE_TOOLS_PROFILE_ORDER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/placement.h"
#include "layout/sluice_file.h"
#include "layout/sparsity_records.h"
#include "predictor/activation_profile.h"

namespace sluice {

struct ProfileOrder {
  std::vector<std::vector<uint32_t>> order;  // by layer, the neuron at each position
  ActivityRecord activity;                   // by position in that order
  double gain_over_greedy = 0;               // the largest of the placements, in per cent
};

// What reading a bundle of the file costs on the device of this profile. An empty path: on a
// UFS 4.0 phone as published, so that the same profile of activations gives the same file anywhere.
// Errors as those of DeviceProfile::Load, and InvalidArgument for a device that is not slower than
// DRAM.
absl::StatusOr<PlacementCosts> PlacementCostsFor(const SluiceFile& file,
                                                 const std::string& device_path);

// With placements for a tenth of the bundles and so on up to nine tenths, and for a twentieth.
// `progress` as in OrderOptions.
absl::StatusOr<ProfileOrder> OrderByProfile(const ActivationProfile& profile,
                                            const PlacementCosts& costs, int n_threads,
                                            std::function<bool(uint32_t, uint32_t)> progress);

// What lies first and what the plans are worth, as a clause.
std::string OrderNote(const ProfileOrder& order);

}  // namespace sluice

#endif  // SLUICE_TOOLS_PROFILE_ORDER_H_
