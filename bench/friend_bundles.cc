#include "bench/friend_bundles.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "layout/coactivation.h"

namespace sluice {
namespace {

std::vector<uint32_t> ClosestFriends(const ActiveSets& sets) {
  Coactivation fired(sets.n_neurons, sets.n_tokens);
  std::vector<uint32_t> active;
  for (uint32_t t = 0; t < sets.n_tokens; ++t) {
    sets.get(t, 0, &active);
    for (const uint32_t neuron : active) fired.Set(neuron, t);
  }
  std::vector<uint32_t> all(sets.n_neurons), counts(sets.n_neurons), friends(sets.n_neurons);
  std::iota(all.begin(), all.end(), 0u);
  for (uint32_t i = 0; i < sets.n_neurons; ++i) {
    fired.CountTogether(i, all, counts);
    counts[i] = 0;
    friends[i] = static_cast<uint32_t>(std::ranges::max_element(counts) - counts.begin());
  }
  return friends;
}

}  // namespace

MergedBatch ReadWithFriends(const ActiveSets& train, const ActiveSets& test, uint32_t bundle_bytes,
                            const ReadMerger& costs) {
  const std::vector<uint32_t> friends = ClosestFriends(train);
  MergedBatch sum;
  std::vector<uint32_t> active;
  for (uint32_t t = 0; t < test.n_tokens; ++t) {
    test.get(t, 0, &active);
    std::vector<bool> here(test.n_neurons);
    std::vector<uint64_t> reads;
    for (const uint32_t neuron : active) {
      if (here[neuron]) continue;
      here[neuron] = here[friends[neuron]] = true;
      reads.push_back(2 * uint64_t{bundle_bytes});
    }
    sum.operations += static_cast<double>(reads.size());
    sum.bytes += 2.0 * bundle_bytes * static_cast<double>(reads.size());
    sum.ns += costs.TimeNs(reads);
  }
  const double n = std::max(test.n_tokens, 1u);
  return {sum.operations / n, sum.bytes / n, sum.ns / n};
}

}  // namespace sluice
