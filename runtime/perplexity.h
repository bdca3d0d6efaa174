// How well a model foretells a text: the negative log-likelihood (NLL) of its tokens, and what
// follows from many of them. Perplexity is exp(mean NLL).
//
// The text is cut into windows. Each passes through the decoder from an empty context, and the
// tokens of its second half are scored, so that each has half a window of text before it. This is
// what the perplexity tool of llama.cpp computes by default, so figures can be compared: where the
// vocabulary puts BOS in front of a text, BOS takes the place of the first token of every window;
// of a window of n tokens the n - 1 - n / 2 last are scored (in predicted mode they pass one by
// one, after the others as a prompt); what is left behind the last whole window is not used.
#ifndef SLUICE_RUNTIME_PERPLEXITY_H_
#define SLUICE_RUNTIME_PERPLEXITY_H_

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "runtime/decoder.h"

namespace sluice {

constexpr uint32_t kLeastWindow = 4;  // of which one token is scored

struct ScoreRequest {
  std::span<const int32_t> tokens;  // of the text
  uint32_t window = 512;            // tokens; at least kLeastWindow, at most the decoder's context
  uint32_t max_windows = UINT32_MAX;
  int32_t bos = -1;                        // takes the place of each window's first; -1: none
  const std::atomic<int>* stop = nullptr;  // once not 0: end before the next layer
};

struct TextScores {
  // Of the scored tokens, in the order of the text.
  std::vector<double> nll;
  std::vector<int32_t> best;  // what greedy decoding would have put there
  uint32_t n_windows = 0;     // whole ones
  bool stopped = false;       // on request, before the last window
  uint64_t n_tokens = 0;      // that passed through the decoder, scored or not
  uint64_t wall_ns = 0;
  DecoderStats decoder;

  double tokens_per_second() const;
};

// Scores the windows of a text one after another; after each, `progress` gets what there is so far
// and how many windows there will be. The scores do not depend on budget, threads or chunks. A pass
// has as many tokens as the decoder's chunk: with a chunk of 1 the model is scored as it decodes.
// InvalidArgument if the text has not one window, InternalError if logits are not finite.
absl::StatusOr<TextScores> ScoreText(
    Decoder& decoder, const ScoreRequest& request,
    absl::FunctionRef<void(const TextScores& so_far, uint32_t n_windows)> progress);

struct TokenScore {
  double nll = 0;
  int32_t best = 0;  // the highest logit; ties go to the lowest id
};
// InternalError if a logit that matters is not finite. Sums in double, in one fixed order.
absl::StatusOr<TokenScore> ScoreToken(std::span<const float> logits, int32_t token);

// A mean and how far it may be off, taking the values for independent.
struct MeanEstimate {
  double mean = 0;
  double standard_error = 0;  // NaN for fewer than two values
  // The ends of the 95 % confidence interval.
  double low() const { return mean - 1.96 * standard_error; }
  double high() const { return mean + 1.96 * standard_error; }
};
MeanEstimate EstimateMean(std::span<const double> values);

// One run against another over the same text, token by token: much sharper than their two
// perplexities, since what is hard in the text is hard for both.
struct Comparison {
  MeanEstimate nll_difference;  // of the first run minus the second
  double same_greedy = 0;       // share of positions where both would choose the same token
};
// Both have the same number of scored tokens, at least one.
Comparison Compare(const TextScores& run, const TextScores& against);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_PERPLEXITY_H_
