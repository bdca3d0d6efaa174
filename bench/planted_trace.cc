#include "bench/planted_trace.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "layout/counter_rng.h"

namespace sluice {
namespace {

constexpr double kHotFires = 0.9;

bool Happens(CounterRng& rng, double probability) {
  return static_cast<double>(rng.Next() >> 11) * 0x1p-53 < probability;
}

// Probabilities in proportion to a power of the rank, of the mean that is asked for, none above 1.
std::vector<double> Heat(const PlantedOptions& o) {
  std::vector<double> heat(o.n_clusters);
  double sum = 0;
  for (uint32_t k = 0; k < o.n_clusters; ++k) sum += heat[k] = std::pow(k + 1.0, -o.zipf);
  for (double& h : heat) h = std::min(1.0, h * o.cluster_share * o.n_clusters / sum);
  return heat;
}

}  // namespace

PlantedTrace MakePlantedTrace(const PlantedOptions& o) {
  PlantedTrace trace;
  CounterRng places(o.seed, 0, 0);
  for (uint32_t i = 0; i < o.n_neurons; ++i) trace.cluster_of.push_back(i % o.n_clusters);
  for (uint32_t i = o.n_neurons; i > 1; --i) {
    std::swap(trace.cluster_of[i - 1], trace.cluster_of[places.Below(i)]);
  }
  for (uint32_t k = 0; k < o.n_hot; ++k) {
    trace.cluster_of[uint64_t{k} * o.n_neurons / o.n_hot] = o.n_clusters;
  }
  const std::vector<double> heat = Heat(o);
  for (uint32_t t = 0; t < o.n_tokens; ++t) {
    CounterRng rng(o.seed, 1, t);
    std::vector<bool> awake(o.n_clusters);
    for (uint32_t k = 0; k < o.n_clusters; ++k) awake[k] = Happens(rng, heat[k]);
    std::vector<uint32_t>& active = trace.tokens.emplace_back();
    for (uint32_t i = 0; i < o.n_neurons; ++i) {
      const bool member = Happens(rng, o.member_share), noise = Happens(rng, o.noise_share);
      const uint32_t cluster = trace.cluster_of[i];
      const bool fires =
          cluster == o.n_clusters ? Happens(rng, kHotFires) : awake[cluster] && member;
      if (fires || noise) active.push_back(i);
    }
  }
  return trace;
}

ActiveSets PlantedTrace::Sets(uint32_t begin, uint32_t end) const {
  return {1, static_cast<uint32_t>(cluster_of.size()), end - begin,
          [this, begin](uint32_t token, uint32_t, std::vector<uint32_t>* active) {
            *active = tokens[begin + token];
          }};
}

std::vector<uint32_t> PlantedTrace::Counts(uint32_t begin, uint32_t end) const {
  std::vector<uint32_t> counts(cluster_of.size());
  for (uint32_t t = begin; t < end; ++t) {
    for (const uint32_t neuron : tokens[t]) ++counts[neuron];
  }
  return counts;
}

}  // namespace sluice
