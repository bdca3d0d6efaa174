// How long a token takes whose weights partly lie in DRAM, partly pass through the stream ring and
// partly are asked for when it is known which ones it needs. One device serves reads in the order
// in which they are asked for; one thread (of as many cores as there are) computes. Reading hides
// behind computing only as far as the ring reads ahead, so the order of what is resident and what
// is not decides: this goes through a token piece by piece, as StreamRing and DemandFfn would.
#ifndef SLUICE_RUNTIME_TOKEN_TIMELINE_H_
#define SLUICE_RUNTIME_TOKEN_TIMELINE_H_

#include <cstdint>
#include <vector>

namespace sluice {

// A matrix, or the FFN of a layer. Bytes are those that are computed with.
struct TokenStage {
  double kept_bytes = 0;    // in DRAM
  double stream_bytes = 0;  // come through the ring, and are computed with as they come
  double miss_bytes = 0;    // asked for as the stage begins; what is kept is computed meanwhile
  double miss_ns = 0;       // how long the device takes for them, by its profile
};

struct TokenWork {
  std::vector<TokenStage> stages;  // in order of use
  uint32_t piece_bytes = 1;        // of the ring
  uint32_t n_buffers = 1;
  double piece_ns = 0;  // how long the device takes for a piece, by its profile
};

struct TokenCost {
  double compute_ns = 0;    // of the whole token
  double flash_weight = 1;  // computing a byte that has just been read, relative to one kept
  double io_factor = 1;     // times that reading takes longer than by the profile
};

double TokenNs(const TokenWork& work, const TokenCost& cost);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_TOKEN_TIMELINE_H_
