// Activations in which it is known who belongs together: clusters of neurons, some of them much
// more frequent than others, with neurons that fire by themselves sprinkled over. What lies where
// says nothing about it.
#ifndef SLUICE_BENCH_PLANTED_TRACE_H_
#define SLUICE_BENCH_PLANTED_TRACE_H_

#include <cstdint>
#include <vector>

#include "layout/neuron_order.h"

namespace sluice {

struct PlantedOptions {
  uint32_t n_neurons = 1024;
  uint32_t n_clusters = 64;
  uint32_t n_tokens = 800;
  double cluster_share = 0.1;  // of the clusters that a token wakes, on average
  double zipf = 1.0;           // cluster k wakes in proportion to (k + 1)^-zipf
  double member_share = 0.75;  // of an awake cluster's neurons that fire
  double noise_share = 0.005;  // of all neurons that fire whatever their cluster does
  uint32_t n_hot = 0;          // neurons here and there, of no cluster, for 9 tokens of 10
  uint64_t seed = 1;
};

struct PlantedTrace {
  std::vector<std::vector<uint32_t>> tokens;  // neurons in rising order
  std::vector<uint32_t> cluster_of;           // by neuron; the hot ones are of cluster n_clusters

  // One layer; tokens [begin, end). Borrows the trace.
  ActiveSets Sets(uint32_t begin, uint32_t end) const;
  std::vector<uint32_t> Counts(uint32_t begin, uint32_t end) const;  // by neuron
};

PlantedTrace MakePlantedTrace(const PlantedOptions& options);

}  // namespace sluice

#endif  // SLUICE_BENCH_PLANTED_TRACE_H_
