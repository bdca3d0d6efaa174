#include "layout/neuron_order.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/coactivation.h"
#include "layout/greedy_path.h"
#include "layout/parallel_rows.h"

namespace sluice {
namespace {

using Counts = std::span<const uint32_t>;

// The training sets of one layer, thinned out if they are too many.
class LayerSets {
 public:
  LayerSets(const ActiveSets& sets, uint32_t layer)
      : sets_(sets), layer_(layer), n_tokens_(std::min(sets.n_tokens, kMostOrderTokens)) {}

  uint32_t n_tokens() const { return n_tokens_; }
  const std::vector<uint32_t>& Get(uint32_t token) {
    const auto t = static_cast<uint32_t>(uint64_t{token} * sets_.n_tokens / n_tokens_);
    sets_.get(t, layer_, &active_);
    return active_;
  }

 private:
  const ActiveSets& sets_;
  const uint32_t layer_, n_tokens_;
  std::vector<uint32_t> active_;
};

// How often each neuron is in the sets.
absl::StatusOr<std::vector<uint32_t>> CountInSets(LayerSets& sets, uint32_t layer,
                                                  uint32_t n_neurons) {
  std::vector<uint32_t> counts(n_neurons);
  for (uint32_t t = 0; t < sets.n_tokens(); ++t) {
    const std::vector<uint32_t>& active = sets.Get(t);
    for (size_t i = 0; i < active.size(); ++i) {
      if (active[i] >= n_neurons || (i > 0 && active[i] <= active[i - 1])) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "the neurons that fire in layer %u are not rising numbers below %u", layer, n_neurons));
      }
      ++counts[active[i]];
    }
  }
  return counts;
}

// Which of the neurons listed in `rows` fire when; row k is of neuron rows[k].
Coactivation Record(LayerSets& sets, std::span<const uint32_t> rows, uint32_t n_neurons) {
  constexpr uint32_t kNoRow = UINT32_MAX;
  std::vector<uint32_t> row_of(n_neurons, kNoRow);
  for (uint32_t k = 0; k < rows.size(); ++k) row_of[rows[k]] = k;
  Coactivation fired(static_cast<uint32_t>(rows.size()), sets.n_tokens());
  for (uint32_t t = 0; t < sets.n_tokens(); ++t) {
    for (const uint32_t neuron : sets.Get(t)) {
      if (row_of[neuron] != kNoRow) fired.Set(row_of[neuron], t);
    }
  }
  return fired;
}

// Chains one after the other, by falling mean frequency.
void AppendChains(std::vector<std::vector<uint32_t>> chains, Counts counts,
                  std::vector<uint32_t>* order) {
  const auto mean = [&](const std::vector<uint32_t>& chain) {
    double sum = 0;
    for (const uint32_t neuron : chain) sum += counts[neuron];
    return sum / static_cast<double>(chain.size());
  };
  std::vector<std::pair<double, size_t>> by_mean;  // negated, so that rising is hottest first
  for (size_t i = 0; i < chains.size(); ++i) by_mean.emplace_back(-mean(chains[i]), i);
  std::sort(by_mean.begin(), by_mean.end());
  for (const auto& [ignored, i] : by_mean) {
    order->insert(order->end(), chains[i].begin(), chains[i].end());
  }
}

absl::StatusOr<std::vector<uint32_t>> OrderLayer(const ActiveSets& all, uint32_t layer,
                                                 Counts counts, uint32_t n_counted) {
  LayerSets sets(all, layer);
  SLUICE_ASSIGN_OR_RETURN(const std::vector<uint32_t> in_sets,
                          CountInSets(sets, layer, all.n_neurons));
  std::vector<uint32_t> order = ByFrequency(counts);
  const uint32_t n_hot = CountHot(counts, n_counted);
  std::vector<uint32_t> cold(order.begin() + n_hot, order.end());
  order.resize(n_hot);

  // The path wants neurons numbered by how often they fire in the sets.
  std::stable_sort(cold.begin(), cold.end(),
                   [&](uint32_t a, uint32_t b) { return in_sets[a] > in_sets[b]; });
  const auto silent = std::partition_point(cold.begin(), cold.end(),
                                           [&](uint32_t neuron) { return in_sets[neuron] > 0; });
  const std::span<const uint32_t> rows(cold.begin(), silent);
  std::vector<std::vector<uint32_t>> chains = GreedyChains(Record(sets, rows, all.n_neurons));
  for (std::vector<uint32_t>& chain : chains) {
    for (uint32_t& row : chain) row = rows[row];
  }
  for (auto it = silent; it != cold.end(); ++it) chains.push_back({*it});
  AppendChains(std::move(chains), counts, &order);
  return order;
}

absl::Status CheckShapes(const ActiveSets& sets, std::span<const Counts> counts,
                         uint32_t n_counted) {
  if (counts.size() != sets.n_layers) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "there are counts of %u layers and active sets of %u", counts.size(), sets.n_layers));
  }
  for (uint32_t l = 0; l < sets.n_layers; ++l) {
    if (counts[l].size() != sets.n_neurons) {
      return absl::InvalidArgumentError(
          absl::StrFormat("there are counts of %u neurons in layer %u, and active sets of %u",
                          counts[l].size(), l, sets.n_neurons));
    }
    if (!counts[l].empty() && std::ranges::max(counts[l]) > n_counted) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "a neuron of layer %u is said to fire more often than there are tokens, %u", l,
          n_counted));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<uint32_t> ByFrequency(Counts counts) {
  std::vector<uint32_t> order(counts.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return counts[a] > counts[b]; });
  return order;
}

uint32_t CountHot(Counts counts, uint32_t n_tokens) {
  return static_cast<uint32_t>(
      std::ranges::count_if(counts, [&](uint32_t count) { return count > kHotShare * n_tokens; }));
}

absl::StatusOr<std::vector<std::vector<uint32_t>>> OrderNeurons(const ActiveSets& sets,
                                                                std::span<const Counts> counts,
                                                                uint32_t n_counted,
                                                                const OrderOptions& options) {
  SLUICE_RETURN_IF_ERROR(CheckShapes(sets, counts, n_counted));
  std::vector<std::vector<uint32_t>> orders(sets.n_layers);
  std::vector<absl::Status> failures(sets.n_layers);
  std::atomic<bool> stopped = false;
  std::mutex mutex;  // guards n_done and the calls of progress
  uint32_t n_done = 0;
  ParallelRows(options.n_threads, sets.n_layers, [&](size_t begin, size_t end) {
    for (auto l = static_cast<uint32_t>(begin); l < end && !stopped; ++l) {
      auto order = OrderLayer(sets, l, counts[l], n_counted);
      if (order.ok())
        orders[l] = *std::move(order);
      else
        failures[l] = order.status();
      const std::lock_guard lock(mutex);
      if (options.progress && !options.progress(++n_done, sets.n_layers)) stopped = true;
    }
  });
  for (const absl::Status& failure : failures) SLUICE_RETURN_IF_ERROR(failure);
  if (stopped) return absl::CancelledError("stopped on request");
  return orders;
}

}  // namespace sluice
