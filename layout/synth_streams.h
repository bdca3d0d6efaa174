// Names of the random streams that make a generated model. The values are part of what a seed
// means.
#ifndef SLUICE_LAYOUT_SYNTH_STREAMS_H_
#define SLUICE_LAYOUT_SYNTH_STREAMS_H_

#include <cstdint>

namespace sluice {

enum class SynthRandom : uint32_t {
  kHeatOrder = 1,
  kGroupOrder = 2,
  kAlias = 3,
  kCode = 4,
  kEmbeddingNoise = 5,
  kHeadNoise = 6,
  kQuery = 7,
  kKey = 8,
  kValue = 9,
  kAttentionOut = 10,
  kGateOwn = 11,
  kGateGroup = 12,
  kUp = 13,
  kDown = 14,
};

// The stream argument of CounterRng.
constexpr uint64_t SynthStream(SynthRandom what, uint32_t layer) {
  return static_cast<uint64_t>(what) << 32 | layer;
}

}  // namespace sluice

#endif  // SLUICE_LAYOUT_SYNTH_STREAMS_H_
