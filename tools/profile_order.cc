#include "tools/profile_order.h"

#include <cmath>
#include <span>
#include <utility>

#include "io/status.h"
#include "layout/neuron_order.h"

namespace sluice {

absl::StatusOr<ProfileOrder> OrderByProfile(const ActivationProfile& profile, int n_threads,
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
  return result;
}

}  // namespace sluice
