#include "cache/wave.h"

#include <algorithm>

namespace sluice {

void PinWave(NeuronCache& cache, uint32_t layer, std::span<const uint32_t> positions,
             size_t most_misses, std::span<Pin> pins, Wave* wave) {
  wave->hits.clear();
  wave->misses.clear();
  auto last = static_cast<uint32_t>(std::min(positions.size(), pins.size()));
  for (uint32_t w = 0; w < last; ++w) pins[w] = cache.Find(layer, positions[w]);
  uint32_t w = 0;
  for (; w < last; ++w) {
    if (pins[w]) {
      wave->hits.push_back(w);
      continue;
    }
    if (wave->misses.size() == most_misses) break;
    pins[w] = cache.Reserve(layer, positions[w], CacheSegment::kCold);
    while (!pins[w] && last > w + 1) {  // hits at the end of the wave hold the slots
      pins[--last].Reset();
      pins[w] = cache.Reserve(layer, positions[w], CacheSegment::kCold);
    }
    if (!pins[w]) break;
    wave->misses.push_back(w);
  }
  for (; w < last; ++w) pins[w].Reset();
}

}  // namespace sluice
