#include "runtime/perplexity.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "io/clock.h"
#include "io/status.h"

namespace sluice {
namespace {

absl::Status CheckWindows(const Decoder& decoder, const ScoreRequest& request) {
  if (request.window < kLeastWindow || request.window > decoder.context()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a window of %u tokens cannot be scored in a context of %u; the least has "
                        "%u tokens",
                        request.window, decoder.context(), kLeastWindow));
  }
  if (request.tokens.size() < request.window) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the text has %u tokens, fewer than one window of %u",
                        request.tokens.size(), request.window));
  }
  return absl::OkStatus();
}

// One window, whose scores are added to `scores`.
absl::Status ScoreWindow(Decoder& decoder, std::span<const int32_t> window,
                         const std::atomic<int>* stop, TextScores& scores) {
  absl::Status bad;
  const auto take = [&](uint32_t position, std::span<const float> logits) {
    const auto score = ScoreToken(logits, window[position + 1]);
    bad.Update(score.status());
    if (!score.ok()) return;
    scores.nll.push_back(score->nll);
    scores.best.push_back(score->best);
  };
  const size_t half = window.size() / 2;
  const LogitsSink sink = {static_cast<uint32_t>(half), take};
  decoder.Rewind();
  // Nothing comes after the last token that its logits could be held against.
  const auto inputs = window.first(window.size() - 1);
  if (decoder.mode() != DecodeMode::kPredicted) {
    SLUICE_RETURN_IF_ERROR(decoder.Forward(inputs, stop, &sink));
    return bad;
  }
  // A predictor is asked for single tokens only, and they are what is to be judged.
  SLUICE_RETURN_IF_ERROR(decoder.Forward(inputs.first(half), stop, &sink));
  for (size_t t = half; t < inputs.size(); ++t) {
    SLUICE_RETURN_IF_ERROR(decoder.Forward(inputs.subspan(t, 1), stop, &sink));
  }
  return bad;
}

}  // namespace

double TextScores::tokens_per_second() const {
  return wall_ns > 0 ? static_cast<double>(n_tokens) * 1e9 / static_cast<double>(wall_ns) : 0.0;
}

absl::StatusOr<TextScores> ScoreText(
    Decoder& decoder, const ScoreRequest& request,
    absl::FunctionRef<void(const TextScores& so_far, uint32_t n_windows)> progress) {
  SLUICE_RETURN_IF_ERROR(CheckWindows(decoder, request));
  const size_t n = request.window;
  const auto n_windows =
      static_cast<uint32_t>(std::min<size_t>(request.tokens.size() / n, request.max_windows));
  const DecoderStats before = decoder.stats();
  const uint64_t begin_ns = NowNs();
  TextScores scores;
  std::vector<int32_t> window(n);
  for (uint32_t w = 0; w < n_windows; ++w) {
    const size_t n_scored = scores.nll.size();
    std::copy_n(request.tokens.begin() + static_cast<ptrdiff_t>(w * n), n, window.begin());
    if (request.bos >= 0) window[0] = request.bos;
    const absl::Status status = ScoreWindow(decoder, window, request.stop, scores);
    if (absl::IsCancelled(status)) {
      scores.stopped = true;
      scores.nll.resize(n_scored);  // a window counts whole or not at all
      scores.best.resize(n_scored);
      break;
    }
    SLUICE_RETURN_IF_ERROR(status);
    ++scores.n_windows;
    scores.n_tokens += n - 1;
    scores.wall_ns = NowNs() - begin_ns;
    progress(scores, n_windows);
  }
  scores.decoder = decoder.stats() - before;
  return scores;
}

absl::StatusOr<TokenScore> ScoreToken(std::span<const float> logits, int32_t token) {
  const auto best = std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += static_cast<double>(std::exp(logit - *best));
  TokenScore score;
  score.nll = std::log(sum) + static_cast<double>(*best) -
              static_cast<double>(logits[static_cast<size_t>(token)]);
  if (!std::isfinite(score.nll)) {
    return absl::InternalError(
        "the model gives logits that are not finite: its weights or the computation are at fault");
  }
  score.best = static_cast<int32_t>(best - logits.begin());
  return score;
}

MeanEstimate EstimateMean(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  MeanEstimate estimate;
  for (const double v : values) estimate.mean += v;
  estimate.mean /= n;
  double squares = 0;
  for (const double v : values) squares += (v - estimate.mean) * (v - estimate.mean);
  estimate.standard_error = n < 2 ? NAN : std::sqrt(squares / (n - 1) / n);
  return estimate;
}

Comparison Compare(const TextScores& run, const TextScores& against) {
  std::vector<double> differences(run.nll.size());
  size_t n_same = 0;
  for (size_t i = 0; i < differences.size(); ++i) {
    differences[i] = run.nll[i] - against.nll[i];
    n_same += run.best[i] == against.best[i];
  }
  return {EstimateMean(differences),
          static_cast<double>(n_same) / static_cast<double>(differences.size())};
}

}  // namespace sluice
