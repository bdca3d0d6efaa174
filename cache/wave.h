// A wave: as many of the bundles that a token needs of a layer as the cache can hold at once.
#ifndef SLUICE_CACHE_WAVE_H_
#define SLUICE_CACHE_WAVE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/neuron_cache.h"

namespace sluice {

// Indices in a wave, in rising order.
struct Wave {
  std::vector<uint32_t> hits;    // in the cache
  std::vector<uint32_t> misses;  // have a slot reserved, and are to be read
  uint32_t count() const { return static_cast<uint32_t>(hits.size() + misses.size()); }
};

// Pins the bundles at `positions` of a layer, from the first one on, into pins[0 .. count()): hits
// before anything is reserved, so that no miss takes their place. Ends before there are more than
// `most_misses`, where pins end, or where no slot is to be had; with count() 0 if there is none at
// all. Allocates nothing if the vectors of `wave` have room for as many as there are pins.
void PinWave(NeuronCache& cache, uint32_t layer, std::span<const uint32_t> positions,
             size_t most_misses, std::span<Pin> pins, Wave* wave);

}  // namespace sluice

#endif  // SLUICE_CACHE_WAVE_H_
