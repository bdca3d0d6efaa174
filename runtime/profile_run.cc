#include "runtime/profile_run.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/model_config.h"

namespace sluice {
namespace {

// The leading bits of a positive float: 8 of the exponent and 9 of the fraction.
constexpr uint32_t kStepShift = 14;
constexpr uint32_t kSteps = 1 << 17;

uint32_t StepOf(float magnitude) { return std::bit_cast<uint32_t>(magnitude) >> kStepShift; }
float LeastOfStep(uint32_t step) { return std::bit_cast<float>(step << kStepShift); }

uint32_t WordsOf(uint32_t n_neurons) { return (n_neurons + 63) / 64; }

}  // namespace

ProfileRun::ProfileRun(const SluiceFile& file, ProfileRequest request)
    : file_(file),
      config_(file.config()),
      request_(std::move(request)),
      profile_(ProfileIdentity::Of(file), request_.set_bytes),
      positions_(config_.d_ff),
      active_(config_.n_layers) {}

absl::StatusOr<ActivationProfile> ProfileRun::Run(Decoder& decoder) {
  const std::vector<Sequence> sequences = CutText();
  for (const Sequence& s : sequences) {
    const uint64_t n = s.text.size() + request_.bos.has_value();
    n_total_ += request_.sparsify && !s.held_out ? 2 * n : n;
  }
  if (request_.sparsify) {
    finds_thresholds_ = true;
    histogram_.resize(size_t{config_.n_layers} * kSteps);
    SLUICE_RETURN_IF_ERROR(RunSequences(decoder, sequences, /*with_held_out=*/false));
    profile_.set_thresholds(Thresholds());
    finds_thresholds_ = false;
    histogram_ = {};
  } else {
    profile_.set_thresholds({file_.thresholds().begin(), file_.thresholds().end()});
  }
  selector_.emplace(config_, profile_.thresholds());
  SLUICE_RETURN_IF_ERROR(RunSequences(decoder, sequences, /*with_held_out=*/true));
  return std::move(profile_);
}

std::vector<ProfileRun::Sequence> ProfileRun::CutText() const {
  std::vector<Sequence> sequences;
  const size_t longest = request_.sequence_tokens - request_.bos.has_value();
  for (const std::span<const int32_t> text : request_.texts) {
    for (size_t at = 0; at < text.size(); at += longest) {
      const bool held_out = sequences.size() % kHeldOutEvery == kHeldOutEvery - 1;
      sequences.push_back({text.subspan(at, std::min(longest, text.size() - at)), held_out});
    }
  }
  return sequences;
}

absl::Status ProfileRun::RunSequences(Decoder& decoder, std::span<const Sequence> sequences,
                                      bool with_held_out) {
  for (const Sequence& s : sequences) {
    if (s.held_out && !with_held_out) continue;
    sequence_.clear();
    if (request_.bos) sequence_.push_back(*request_.bos);
    sequence_.insert(sequence_.end(), s.text.begin(), s.text.end());
    n_observed_ = 0;
    if (!finds_thresholds_) profile_.BeginSequence(s.held_out);
    decoder.Rewind();
    SLUICE_RETURN_IF_ERROR(decoder.Forward(sequence_, request_.stop));
    n_done_ += sequence_.size();
    if (request_.progress) request_.progress(n_done_, n_total_);
  }
  return absl::OkStatus();
}

void ProfileRun::Observe(const FfnObservation& o) {
  if (finds_thresholds_) return AddToHistogram(o);
  MarkActive(o);
  if (o.layer + 1 == config_.n_layers) AppendChunk(o.n_tokens);
}

void ProfileRun::AddToHistogram(const FfnObservation& o) {
  uint64_t* const counts = &histogram_[size_t{o.layer} * kSteps];
  for (const float gate : o.gate) {
    const float a = Activate(config_.activation, config_.activation_threshold, gate);
    ++counts[StepOf(std::fabs(a))];
  }
}

// The least value below which lie at least so many of all.
std::vector<float> ProfileRun::Thresholds() const {
  std::vector<float> thresholds(config_.n_layers);
  for (uint32_t l = 0; l < config_.n_layers; ++l) {
    const auto counts = std::span(histogram_).subspan(size_t{l} * kSteps, kSteps);
    uint64_t all = 0, below = 0;
    for (const uint64_t n : counts) all += n;
    const double wanted = *request_.sparsify * static_cast<double>(all);
    uint32_t step = 0;
    while (step + 1 < kSteps && static_cast<double>(below) < wanted) below += counts[step++];
    // Values that are not finite are errors, and no thresholds.
    thresholds[l] = LeastOfStep(std::min(step, StepOf(INFINITY) - 1));
  }
  return thresholds;
}

// Sets the bits of the active neurons of a layer.
void ProfileRun::MarkActive(const FfnObservation& o) {
  const uint32_t d_ff = config_.d_ff, n_words = WordsOf(d_ff);
  const size_t token_words = size_t{config_.n_layers} * n_words;
  bits_.resize(std::max(bits_.size(), o.n_tokens * token_words));
  for (uint32_t t = 0; t < o.n_tokens; ++t) {
    const auto gate = o.gate.subspan(size_t{t} * d_ff, d_ff);
    const auto bits =
        std::span(bits_).subspan(t * token_words + size_t{o.layer} * n_words, n_words);
    std::fill(bits.begin(), bits.end(), 0);
    const uint32_t n = selector_->Select({.layer = o.layer, .gate = gate}, positions_);
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t id = file_.NeuronAt(o.layer, positions_[i]);
      bits[id / 64] |= uint64_t{1} << (id % 64);
    }
  }
}

// A chunk goes through layer after layer, a profile takes token after token.
void ProfileRun::AppendChunk(uint32_t n_tokens) {
  const uint32_t n_words = WordsOf(config_.d_ff);
  const uint64_t* word = bits_.data();
  for (uint32_t t = 0; t < n_tokens; ++t) {
    for (std::vector<uint32_t>& set : active_) {
      set.clear();
      for (uint32_t w = 0; w < n_words; ++w, ++word) {
        for (uint64_t left = *word; left != 0; left &= left - 1) {
          set.push_back(w * 64 + static_cast<uint32_t>(std::countr_zero(left)));
        }
      }
    }
    profile_.Append(sequence_[n_observed_++], active_);
  }
}

}  // namespace sluice
