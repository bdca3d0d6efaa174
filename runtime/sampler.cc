#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"

namespace sluice {

absl::Status ValidateSampler(const SamplerOptions& o) {
  const auto check = [](const char* flag, double v, double min, double max) -> absl::Status {
    if (v >= min && v <= max) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is %.10g; it must be in %.10g..%.10g", flag, v, min, max));
  };
  absl::Status s = check("--temp", static_cast<double>(o.temperature), 0, 1000);
  s.Update(check("--top-k", o.top_k, 0, 1 << 30));
  s.Update(check("--top-p", static_cast<double>(o.top_p), 0, 1));
  s.Update(check("--min-p", static_cast<double>(o.min_p), 0, 1));
  s.Update(check("--repeat-penalty", static_cast<double>(o.repeat_penalty), 0.01, 100));
  s.Update(check("--repeat-last-n", o.repeat_last_n, -1, 1 << 30));
  return s;
}

Sampler::Sampler(const SamplerOptions& options, uint32_t vocab_size, uint32_t context)
    : options_(options), state_(options.seed) {
  candidates_.resize(vocab_size);
  weights_.reserve(vocab_size);
  penalised_.resize(vocab_size);
  history_.reserve(context + 1);  // the last token sampled needs no place in the context
}

size_t Sampler::Bytes(uint32_t vocab_size, uint32_t context) {
  return vocab_size * (sizeof(Candidate) + sizeof(double) + sizeof(uint32_t)) +
         (size_t{context} + 1) * sizeof(int32_t);
}

void Sampler::Accept(int32_t token) { history_.push_back(token); }

// SplitMix64: tiny, well distributed, the same everywhere.
double Sampler::NextUniform() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

void Sampler::Penalise() {
  if (options_.repeat_penalty == 1.0f) return;
  size_t n = history_.size();
  if (options_.repeat_last_n >= 0) n = std::min<size_t>(n, options_.repeat_last_n);
  ++n_calls_;
  for (const int32_t token : std::span(history_).last(n)) {
    const auto id = static_cast<size_t>(token);
    if (std::exchange(penalised_[id], n_calls_) == n_calls_) continue;  // once per distinct token
    float& logit = candidates_[id].logit;
    logit = logit > 0 ? logit / options_.repeat_penalty : logit * options_.repeat_penalty;
  }
}

absl::Status Sampler::Sample(std::span<const float> logits, int32_t* token) {
  candidates_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      return absl::InternalError(absl::StrFormat(
          "the logit of token %u is %f: the weights hold NaN or infinity", i, logits[i]));
    }
    candidates_[i] = {logits[i], static_cast<int32_t>(i)};
  }
  Penalise();
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  if (options_.temperature <= 0.0f) {
    *token = std::min_element(candidates_.begin(), candidates_.end(), better)->id;
    return absl::OkStatus();
  }
  size_t k = candidates_.size();
  if (options_.top_k > 0) k = std::min<size_t>(k, options_.top_k);
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<ptrdiff_t>(k),
                    candidates_.end(), better);
  candidates_.resize(k);
  *token = Draw();
  return absl::OkStatus();
}

// The candidates are sorted, best first.
int32_t Sampler::Draw() {
  const auto best = static_cast<double>(candidates_[0].logit);
  const auto weigh = [&](double temperature) {
    weights_.clear();
    double sum = 0;
    for (const Candidate& c : candidates_) {
      weights_.push_back(std::exp((static_cast<double>(c.logit) - best) / temperature));
      sum += weights_.back();
    }
    return sum;
  };
  double sum = weigh(1.0);
  size_t keep = candidates_.size();
  if (options_.top_p < 1.0f) {
    double covered = 0;
    for (size_t i = 0; i < keep; ++i) {
      covered += weights_[i];
      if (covered >= static_cast<double>(options_.top_p) * sum) keep = i + 1;
    }
  }
  while (keep > 1 && weights_[keep - 1] < static_cast<double>(options_.min_p)) --keep;
  candidates_.resize(keep);
  sum = weigh(static_cast<double>(options_.temperature));
  double left = NextUniform() * sum;
  for (size_t i = 0; i < keep; ++i) {
    left -= weights_[i];
    if (left < 0) return candidates_[i].id;
  }
  return candidates_[keep - 1].id;
}

}  // namespace sluice
