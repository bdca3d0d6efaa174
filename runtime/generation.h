// Text generation: prompt in, tokens out one by one, with what it cost.
#ifndef SLUICE_RUNTIME_GENERATION_H_
#define SLUICE_RUNTIME_GENERATION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/decoder.h"
#include "runtime/sampler.h"
#include "runtime/tokenizer/tokenizer.h"

namespace sluice {

struct GenerationRequest {
  std::vector<int32_t> prompt;  // at least one token
  int64_t n_predict = -1;       // -1: until an end token or the context is full
  bool ignore_eos = false;
  SamplerOptions sampler;
  const std::atomic<int>* stop = nullptr;  // once not 0: end before the next layer
};

enum class StopReason { kLength, kEndToken, kContextFull, kInterrupted, kSinkClosed };
std::string_view StopReasonName(StopReason reason);

// One part of a run: the prompt, or all decoded tokens.
struct PhaseCost {
  uint64_t tokens = 0;
  uint64_t wall_ns = 0;
  uint64_t forward_ns = 0;  // of wall_ns, in the decoder; the rest is sampling and the sink
  DecoderStats decoder;     // stall_ns is part of forward_ns
  uint64_t major_faults = 0;

  double tokens_per_second() const;
  uint64_t compute_ns() const { return forward_ns - decoder.stall_ns; }
};

struct GenerationResult {
  std::vector<int32_t> tokens;  // generated
  StopReason stop = StopReason::kLength;
  uint64_t ttft_ns = 0;          // from the call to the first token
  std::vector<uint64_t> tbt_ns;  // between tokens
  PhaseCost prefill, decode;
};

// q in [0, 1]; nearest rank. 0 if there are no samples.
uint64_t Percentile(std::span<const uint64_t> samples, double q);

// `sink` gets each token as it is chosen and returns false to stop.
absl::StatusOr<GenerationResult> Generate(Decoder& decoder, const Tokenizer& tokenizer,
                                          const GenerationRequest& request,
                                          const std::function<bool(int32_t)>& sink);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_GENERATION_H_
