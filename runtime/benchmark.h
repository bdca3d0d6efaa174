// A prompt or some decoded tokens, timed; and what the machine could do at best with the bytes that
// they touched.
#ifndef SLUICE_RUNTIME_BENCHMARK_H_
#define SLUICE_RUNTIME_BENCHMARK_H_

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/counter_rng.h"
#include "runtime/decoder.h"

namespace sluice {

// Which tokens go in: those of a text, from a place in it that every repetition chooses anew, or
// without a text random ones. A model's own choice is not followed: greedy text soon goes in
// circles, and a circle's neurons are all cached.
class BenchTokens {
 public:
  // Not both empty: ids of a text, or the size of a vocabulary.
  BenchTokens(std::vector<int32_t> text, uint32_t vocab_size, uint64_t seed)
      : text_(std::move(text)), vocab_size_(vocab_size), rng_(seed, /*stream=*/0, /*row=*/0) {}

  // The next `n` tokens begin somewhere else.
  void Restart();
  int32_t Next();

 private:
  const std::vector<int32_t> text_;
  const uint32_t vocab_size_;
  CounterRng rng_;
  size_t at_ = 0;
};

// The prompt goes in as one call, then tokens one by one. One of the two is 0 in most tests.
struct BenchTest {
  uint32_t n_prompt = 0, n_gen = 0;
  uint32_t depth = 0;  // tokens that are in the context before the clock starts
};

struct BenchSample {
  uint64_t wall_ns = 0;
  std::vector<uint64_t> token_ns;  // of the tokens that went in one by one
  DecoderStats stats;              // of the timed part
};

// Forgets the context, not the cache, and runs the test once. Errors as of Decoder::Forward.
absl::StatusOr<BenchSample> RunBenchTest(Decoder& decoder, const BenchTest& test,
                                         BenchTokens& tokens, const std::atomic<int>* stop);

// The least time that a sample could have taken: max(bytes touched / memory bandwidth, bytes read /
// disk bandwidth). Bandwidths in bytes a second; that of the disk counts where something was read.
double LeastNs(const DecoderStats& stats, double memory_bandwidth, double disk_bandwidth);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_BENCHMARK_H_
