#include "tools/profile_order.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "io/device_profile.h"
#include "io/status.h"
#include "layout/neuron_order.h"

namespace sluice {

namespace {

// Costs of a bundle of 8 KiB: random reads with many in flight, and alone (PowerInfer-2, table 1
// and section 2.3), DRAM of a phone.
constexpr PlacementCosts kPhoneCosts = {.slow_ns = 7600, .fast_ns = 200, .sync_ns = 60'000};
// DRAM of one reader, of laptops and phones alike within what matters here.
constexpr double kDramBytesPerSecond = 16e9;
constexpr uint32_t kPlacementPercents[] = {5, 10, 20, 30, 40, 50, 60, 70, 80, 90};

absl::Status AddPlacements(const ActivationProfile& profile, const PlacementCosts& costs,
                           ProfileOrder* result) {
  std::vector<PlacementLayer> layers;
  for (uint32_t l = 0; l < profile.n_layers(); ++l) {
    layers.push_back({profile.counts(l), /*bundle_bytes=*/1, costs});
  }
  const uint64_t n_bundles = uint64_t{profile.n_layers()} * profile.n_neurons();
  for (const uint32_t percent : kPlacementPercents) {
    SLUICE_ASSIGN_OR_RETURN(const Placement placement,
                            PlanPlacement(layers, n_bundles * percent / 100));
    result->activity.placements.push_back(placement.best.pinned);
    result->gain_over_greedy = std::max(result->gain_over_greedy, placement.gain_over_greedy);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlacementCosts> PlacementCostsFor(const SluiceFile& file,
                                                 const std::string& device_path) {
  if (device_path.empty()) return kPhoneCosts;
  SLUICE_ASSIGN_OR_RETURN(const DeviceProfile device, DeviceProfile::Load(device_path));
  const PlacementCosts costs = PlacementCostsOf(device, file.bundles().stride,
                                                file.bundles().layer_bytes(), kDramBytesPerSecond);
  if (const auto least = LeastPinned(costs); !least.ok()) {
    return Annotate(least.status(), "--device " + device_path);
  }
  return costs;
}

absl::StatusOr<ProfileOrder> OrderByProfile(const ActivationProfile& profile,
                                            const PlacementCosts& costs, int n_threads,
                                            std::function<bool(uint32_t, uint32_t)> progress) {
  const ActivationTrace& train = profile.train();
  ActiveSets sets;
  sets.n_layers = profile.n_layers();
  sets.n_neurons = profile.n_neurons();
  sets.n_tokens = train.n_tokens();
  sets.get = [&train](uint32_t token, uint32_t layer, std::vector<uint32_t>* active) {
    train.Get(token, layer, active);
  };
  std::vector<std::span<const uint32_t>> counts;
  for (uint32_t l = 0; l < profile.n_layers(); ++l) counts.push_back(profile.counts(l));
  OrderOptions options;
  options.n_threads = static_cast<uint32_t>(n_threads);
  options.progress = std::move(progress);
  ProfileOrder result;
  const uint32_t n_tokens = profile.n_train_tokens();
  SLUICE_ASSIGN_OR_RETURN(result.order, OrderNeurons(sets, counts, n_tokens, options));
  result.activity.n_tokens = n_tokens;
  for (uint32_t l = 0; l < profile.n_layers(); ++l) {
    result.activity.n_hot.push_back(CountHot(counts[l], n_tokens));
    for (const uint32_t neuron : result.order[l]) {
      const double share = n_tokens > 0 ? static_cast<double>(counts[l][neuron]) / n_tokens : 0;
      result.activity.frequency.push_back(static_cast<uint16_t>(std::lround(share * 65535)));
    }
  }
  SLUICE_RETURN_IF_ERROR(AddPlacements(profile, costs, &result));
  return result;
}

std::string OrderNote(const ProfileOrder& order) {
  uint64_t n_hot = 0;
  for (const uint32_t n : order.activity.n_hot) n_hot += n;
  std::string gain = "no more activations than greedy ones";
  if (order.gain_over_greedy >= 0.005) {
    gain =
        absl::StrFormat("up to %.2f %% more activations than greedy ones", order.gain_over_greedy);
  }
  return absl::StrFormat("%u neurons that fire for most tokens lie first; placement plans cover %s",
                         n_hot, gain);
}

}  // namespace sluice
