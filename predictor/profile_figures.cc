#include "predictor/profile_figures.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace sluice {
namespace {

constexpr uint32_t kLookedAt = 64;  // neurons of a layer
constexpr uint32_t kOftenEnough = 20;

constexpr uint32_t kNone = UINT32_MAX;

// Evenly spread over those for which `use` is true; for each neuron its place among them, or kNone.
std::vector<uint32_t> Spread(uint32_t n_neurons, const std::function<bool(uint32_t)>& use) {
  std::vector<uint32_t> usable, place(n_neurons, kNone);
  for (uint32_t i = 0; i < n_neurons; ++i) {
    if (use(i)) usable.push_back(i);
  }
  const size_t n = std::min<size_t>(kLookedAt, usable.size());
  for (size_t k = 0; k < n; ++k) place[usable[k * usable.size() / n]] = static_cast<uint32_t>(k);
  return place;
}

}  // namespace

double Sparsity(const ActivationProfile& profile, uint32_t layer) {
  if (profile.n_train_tokens() == 0) return 0;
  const auto counts = profile.counts(layer);
  const auto active = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  return 1 - static_cast<double>(active) / profile.n_train_tokens() / profile.n_neurons();
}

FrequencyCurve::FrequencyCurve(std::span<const uint32_t> counts) {
  std::vector<uint32_t> sorted(counts.begin(), counts.end());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  sums_.push_back(0);
  for (const uint32_t count : sorted) sums_.push_back(sums_.back() + count);
}

double FrequencyCurve::Covered(double neurons) const {
  if (sums_.back() == 0) return 0;
  const auto n = static_cast<size_t>(neurons * static_cast<double>(sums_.size() - 1) + 0.5);
  return static_cast<double>(sums_[std::min(n, sums_.size() - 1)]) /
         static_cast<double>(sums_.back());
}

double FrequencyCurve::NeuronsFor(double activations) const {
  if (sums_.back() == 0) return 0;
  const double wanted = activations * static_cast<double>(sums_.back());
  size_t n = 0;
  while (static_cast<double>(sums_[n]) < wanted) ++n;
  return static_cast<double>(n) / static_cast<double>(sums_.size() - 1);
}

Coactivation MeasureCoactivation(const ActivationProfile& profile, uint32_t layer) {
  const uint32_t n_neurons = profile.n_neurons();
  const ActivationTrace& sets = profile.train();
  std::vector<uint32_t> counts(n_neurons);  // of the sets that are kept
  std::vector<uint32_t> active;
  for (uint32_t t = 0; t < sets.n_tokens(); ++t) {
    sets.Get(t, layer, &active);
    for (const uint32_t id : active) ++counts[id];
  }
  const auto is_cold = [&](uint32_t id) {
    return counts[id] <= kColdNeuronShare * sets.n_tokens();
  };
  const std::vector<uint32_t> place =
      Spread(n_neurons, [&](uint32_t id) { return is_cold(id) && counts[id] >= kOftenEnough; });
  std::vector<uint32_t> together(size_t{kLookedAt} * n_neurons);
  for (uint32_t t = 0; t < sets.n_tokens(); ++t) {
    sets.Get(t, layer, &active);
    for (const uint32_t id : active) {
      if (place[id] == kNone) continue;
      uint32_t* const row = &together[size_t{place[id]} * n_neurons];
      for (const uint32_t other : active) ++row[other];
    }
  }
  Coactivation result;
  for (uint32_t id = 0; id < n_neurons; ++id) {
    if (place[id] == kNone) continue;
    for (uint32_t other = 0; other < n_neurons; ++other) {
      if (other == id || !is_cold(other)) continue;
      const double likely =
          static_cast<double>(together[size_t{place[id]} * n_neurons + other]) / counts[id];
      const auto bin = static_cast<uint32_t>(likely * Coactivation::kBins);
      ++result.pairs[std::min(bin, Coactivation::kBins - 1)];
      ++result.n_pairs;
      result.mean += likely;
    }
  }
  if (result.n_pairs > 0) result.mean /= static_cast<double>(result.n_pairs);
  return result;
}

double MeanRun(const ActivationTrace& sets, uint32_t layer, std::span<const uint32_t> position_of) {
  uint64_t n_active = 0, n_runs = 0;
  std::vector<uint32_t> active;
  std::vector<bool> is_active(position_of.size());
  for (uint32_t t = 0; t < sets.n_tokens(); ++t) {
    sets.Get(t, layer, &active);
    for (uint32_t& a : active) is_active[a = position_of[a]] = true;
    n_active += active.size();
    for (const uint32_t p : active) n_runs += p == 0 || !is_active[p - 1];
    for (const uint32_t p : active) is_active[p] = false;
  }
  return n_runs > 0 ? static_cast<double>(n_active) / static_cast<double>(n_runs) : 0;
}

}  // namespace sluice
