#include "runtime/predictor_samples.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "predictor/neuron_selector.h"
#include "runtime/ffn_observer.h"
#include "runtime/memory_plan.h"

namespace sluice {
namespace {

constexpr size_t kValidationShare = 16;  // one training sequence in so many

// Keeps the samples of a range of layers from what passes by.
class Collector : public FfnObserver {
 public:
  Collector(const SluiceFile& file, PredictorInput input, uint32_t first_layer, uint32_t n_layers)
      : file_(file),
        input_(input),
        first_layer_(first_layer),
        selector_(file.config()),
        active_(file.config().d_ff) {
    const TrainingSamples none(file.config().d_model, file.config().d_ff);
    samples_.assign(n_layers, LayerSamples{none, none, none});
  }

  // Of the next pass: which samples its tokens belong to, and which of them are kept.
  void BeginPass(TrainingSamples LayerSamples::*part, std::vector<bool> kept) {
    part_ = part;
    kept_ = std::move(kept);
  }

  void Observe(const FfnObservation& seen) override {
    const std::span<const float> inputs = Inputs(seen);
    if (seen.layer >= first_layer_ && seen.layer - first_layer_ < samples_.size()) {
      Keep(seen, inputs);
    }
    if (input_ == PredictorInput::kPrevious) {
      previous_.assign(seen.residual.begin(), seen.residual.end());
    }
  }

  bool is_finite() const { return is_finite_; }
  std::vector<LayerSamples> Take() { return std::move(samples_); }

 private:
  std::span<const float> Inputs(const FfnObservation& seen) const {
    if (input_ == PredictorInput::kNormed) return seen.normed;
    const bool ahead = input_ == PredictorInput::kPrevious && seen.layer > 0;
    return ahead ? std::span<const float>(previous_) : seen.residual;
  }

  void Keep(const FfnObservation& seen, std::span<const float> inputs) {
    const uint32_t d = file_.config().d_model, d_ff = file_.config().d_ff;
    TrainingSamples& samples = samples_[seen.layer - first_layer_].*part_;
    for (uint32_t t = 0; t < seen.n_tokens; ++t) {
      if (!kept_[t]) continue;
      const auto x = inputs.subspan(size_t{t} * d, d);
      is_finite_ =
          is_finite_ && std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
      const uint32_t n =
          selector_.Select({seen.layer, seen.gate.subspan(size_t{t} * d_ff, d_ff)}, active_);
      for (uint32_t& a : std::span(active_).first(n)) a = file_.NeuronAt(seen.layer, a);
      samples.Add(x, std::span(active_).first(n));
    }
  }

  const SluiceFile& file_;
  const PredictorInput input_;
  const uint32_t first_layer_;
  const ExactSelector selector_;
  std::vector<uint32_t> active_;
  std::vector<LayerSamples> samples_;
  TrainingSamples LayerSamples::*part_ = &LayerSamples::train;
  std::vector<bool> kept_;
  std::vector<float> previous_;  // residual of the layer before, of the tokens of the pass
  bool is_finite_ = true;
};

}  // namespace

PredictorSampler::PredictorSampler(const SluiceFile& file, std::vector<SampleText> text,
                                   const Options& options)
    : file_(file), text_(std::move(text)), options_(options) {
  const ModelConfig& config = file.config();
  for (const SampleText& t : text_) n_tokens_ += t.tokens.size();
  const uint64_t one = TrainingSamples::BytesOfOne(config.d_model, config.d_ff);
  n_samples_ = std::min<uint64_t>({n_tokens_, options.max_samples, options.max_bytes / one});
  n_samples_ = std::max<size_t>(n_samples_, 1);
  layers_at_once_ = static_cast<uint32_t>(
      std::clamp<uint64_t>(options.max_bytes / (one * n_samples_), 1, config.n_layers));
}

absl::StatusOr<std::unique_ptr<PredictorSampler>> PredictorSampler::Create(
    const SluiceFile& file, std::vector<SampleText> text, const Options& options) {
  const auto n_held_out =
      std::count_if(text.begin(), text.end(), [](const SampleText& t) { return t.held_out; });
  if (std::ssize(text) - n_held_out < 2 || n_held_out == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d sequences of text to train on and %d held out are too few for a predictor; profile "
        "more text",
        file.path(), std::ssize(text) - n_held_out, n_held_out));
  }
  return std::unique_ptr<PredictorSampler>(new PredictorSampler(file, std::move(text), options));
}

absl::StatusOr<std::vector<LayerSamples>> PredictorSampler::Collect(uint32_t first_layer,
                                                                    uint32_t n_layers) {
  size_t longest = 1, n_training = 0;
  for (const SampleText& t : text_) {
    longest = std::max(longest, t.tokens.size());
    n_training += !t.held_out;
  }
  PlanRequest request;
  request.budget = options_.budget;
  request.context = static_cast<uint32_t>(longest);
  request.n_threads = options_.n_threads;
  SLUICE_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(file_, request));
  Collector collector(file_, options_.input, first_layer, n_layers);
  DecoderOptions decoder_options;
  decoder_options.observer = &collector;
  SLUICE_ASSIGN_OR_RETURN(const auto decoder, Decoder::Create(file_, plan, decoder_options));

  const size_t n_validation = std::max<size_t>(n_training / kValidationShare, 1);
  size_t done = 0, training = 0;
  for (const SampleText& t : text_) {
    auto part = &LayerSamples::held_out;
    if (!t.held_out) {
      const size_t before = training * n_validation / n_training;
      part = ++training * n_validation / n_training > before ? &LayerSamples::validation
                                                             : &LayerSamples::train;
    }
    decoder->Rewind();
    for (size_t at = 0; at < t.tokens.size();) {
      const auto chunk = t.tokens.subspan(at, std::min<size_t>(plan.chunk, t.tokens.size() - at));
      std::vector<bool> kept(chunk.size());
      for (size_t i = 0; i < chunk.size(); ++i, ++done) {
        kept[i] = (done + 1) * n_samples_ / n_tokens_ > done * n_samples_ / n_tokens_;
      }
      collector.BeginPass(part, std::move(kept));
      SLUICE_RETURN_IF_ERROR(decoder->Forward(chunk, options_.stop));
      at += chunk.size();
      if (options_.progress) options_.progress(done, n_tokens_);
    }
  }
  if (!collector.is_finite()) {
    return absl::DataLossError(file_.path() +
                               ": gives activations that are not finite numbers; is it damaged?");
  }
  return collector.Take();
}

}  // namespace sluice
