#include "runtime/generation.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "io/clock.h"
#include "io/status.h"

namespace sluice {
namespace {

uint64_t MajorFaults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_majflt);
}

// Measures a phase as the difference of totals.
class PhaseMeter {
 public:
  explicit PhaseMeter(Decoder& decoder)
      : decoder_(decoder), before_(decoder.stats()), faults_(MajorFaults()), begin_(NowNs()) {}

  absl::Status Forward(std::span<const int32_t> tokens, const std::atomic<int>* stop) {
    const uint64_t begin = NowNs();
    absl::Status status = decoder_.Forward(tokens, stop);
    forward_ns_ += NowNs() - begin;
    return status;
  }

  PhaseCost Finish(uint64_t tokens) const {
    PhaseCost c;
    c.tokens = tokens;
    c.wall_ns = NowNs() - begin_;
    c.forward_ns = forward_ns_;
    c.decoder = decoder_.stats() - before_;
    c.major_faults = MajorFaults() - faults_;
    return c;
  }

 private:
  Decoder& decoder_;
  const DecoderStats before_;
  const uint64_t faults_;
  const uint64_t begin_;
  uint64_t forward_ns_ = 0;
};

}  // namespace

std::string_view StopReasonName(StopReason reason) {
  switch (reason) {
    case StopReason::kLength:
      return "length";
    case StopReason::kEndToken:
      return "end token";
    case StopReason::kContextFull:
      return "context full";
    case StopReason::kInterrupted:
      return "interrupted";
    case StopReason::kSinkClosed:
      return "output closed";
  }
  return "?";
}

double PhaseCost::tokens_per_second() const {
  return wall_ns > 0 ? static_cast<double>(tokens) * 1e9 / static_cast<double>(wall_ns) : 0.0;
}

uint64_t Percentile(std::span<const uint64_t> samples, double q) {
  if (samples.empty()) return 0;
  std::vector<uint64_t> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  const double rank = std::ceil(q * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

absl::StatusOr<GenerationResult> Generate(Decoder& decoder, const Tokenizer& tokenizer,
                                          const GenerationRequest& request,
                                          const std::function<bool(int32_t)>& sink) {
  SLUICE_RETURN_IF_ERROR(ValidateSampler(request.sampler));
  if (request.prompt.size() > decoder.context() - decoder.position()) {
    return absl::OutOfRangeError(absl::StrFormat(
        "the prompt has %u tokens and the context holds %u; give a larger -c or a shorter prompt",
        request.prompt.size(), decoder.context()));
  }
  GenerationResult result;
  const uint64_t room = decoder.context() - decoder.position() - request.prompt.size() + 1;
  const uint64_t most = request.n_predict >= 0
                            ? std::min<uint64_t>(room, static_cast<uint64_t>(request.n_predict))
                            : room;
  result.tokens.reserve(most);
  result.tbt_ns.reserve(most);
  Sampler sampler(request.sampler, static_cast<uint32_t>(decoder.logits().size()),
                  decoder.context());
  for (const int32_t t : request.prompt) sampler.Accept(t);

  uint64_t last = NowNs();
  PhaseMeter prefill(decoder);
  const absl::Status prompt_status = prefill.Forward(request.prompt, request.stop);
  if (absl::IsCancelled(prompt_status)) {
    result.stop = StopReason::kInterrupted;
    result.prefill = prefill.Finish(0);
    return result;
  }
  SLUICE_RETURN_IF_ERROR(prompt_status);
  result.prefill = prefill.Finish(request.prompt.size());

  PhaseMeter decode(decoder);
  uint64_t n_passes = 0;
  result.stop = most == room && request.n_predict != static_cast<int64_t>(most)
                    ? StopReason::kContextFull
                    : StopReason::kLength;
  while (result.tokens.size() < most) {
    int32_t token = 0;
    SLUICE_RETURN_IF_ERROR(sampler.Sample(decoder.logits(), &token));
    if (!request.ignore_eos && tokenizer.IsEndOfGeneration(token)) {
      result.stop = StopReason::kEndToken;
      break;
    }
    sampler.Accept(token);
    const uint64_t now = NowNs();
    (result.tokens.empty() ? result.ttft_ns : result.tbt_ns.emplace_back()) = now - last;
    last = now;
    result.tokens.push_back(token);
    if (!sink(token)) {
      result.stop = StopReason::kSinkClosed;
      break;
    }
    if (result.tokens.size() == most) break;  // nobody needs the logits after the last token
    const absl::Status status = decode.Forward({&token, 1}, request.stop);
    if (absl::IsCancelled(status)) {
      result.stop = StopReason::kInterrupted;
      break;
    }
    SLUICE_RETURN_IF_ERROR(status);
    ++n_passes;
  }
  result.decode = decode.Finish(n_passes);
  return result;
}

}  // namespace sluice
