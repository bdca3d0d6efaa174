#include "runtime/predictor_samples.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "predictor/neuron_selector.h"
#include "runtime/ffn_observer.h"
#include "runtime/head_needs.h"
#include "runtime/memory_plan.h"

namespace sluice {
namespace {

constexpr size_t kValidationShare = 10;  // one training sequence in so many

// Keeps the samples of a range of layers from what passes by.
class Collector : public FfnObserver {
 public:
  Collector(const SluiceFile& file, const PredictorSampler::Options& options, uint32_t first_layer,
            uint32_t n_layers)
      : file_(file), input_(options.input), first_layer_(first_layer) {
    const TrainingSamples none(file.config().d_model, PredictorSampler::NumOutputs(file, options));
    samples_.assign(n_layers, LayerSamples{none, none, none});
  }

  // Which samples the tokens of the next passes belong to.
  void set_part(TrainingSamples LayerSamples::*part) { part_ = part; }
  bool is_finite() const { return is_finite_; }
  std::vector<LayerSamples> Take() { return std::move(samples_); }

 protected:
  // `seen` is an observation of neurons or of heads; active(t) gives those of token t, by id.
  template <typename Observation, typename Active>
  void Keep(const Observation& seen, Active active) {
    if (seen.layer >= first_layer_ && seen.layer - first_layer_ < samples_.size()) {
      const std::span<const float> inputs = Inputs(seen);
      const uint32_t d = file_.config().d_model;
      for (uint32_t t = 0; t < seen.n_tokens; ++t) {
        const auto x = inputs.subspan(size_t{t} * d, d);
        is_finite_ =
            is_finite_ && std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
        (samples_[seen.layer - first_layer_].*part_).Add(x, active(t));
      }
    }
    if (input_ == PredictorInput::kPrevious) {
      previous_.assign(seen.residual.begin(), seen.residual.end());
    }
  }

  const SluiceFile& file_;

 private:
  template <typename Observation>
  std::span<const float> Inputs(const Observation& seen) const {
    if (input_ == PredictorInput::kNormed) return seen.normed;
    const bool ahead = input_ == PredictorInput::kPrevious && seen.layer > 0;
    return ahead ? std::span<const float>(previous_) : seen.residual;
  }

  const PredictorInput input_;
  const uint32_t first_layer_;
  std::vector<LayerSamples> samples_;
  TrainingSamples LayerSamples::*part_ = &LayerSamples::train;
  std::vector<float> previous_;  // residual of the layer before, of the tokens of the pass
  bool is_finite_ = true;
};

class NeuronCollector : public Collector {
 public:
  NeuronCollector(const SluiceFile& file, const PredictorSampler::Options& options,
                  uint32_t first_layer, uint32_t n_layers)
      : Collector(file, options, first_layer, n_layers),
        selector_(file.config(), options.thresholds),
        active_(file.config().d_ff) {}

  void Observe(const FfnObservation& seen) override {
    const uint32_t d_ff = file_.config().d_ff;
    Keep(seen, [&](uint32_t t) {
      const auto gate = seen.gate.subspan(size_t{t} * d_ff, d_ff);
      const uint32_t n = selector_.Select({seen.layer, gate}, active_);
      const auto active = std::span(active_).first(n);
      for (uint32_t& a : active) a = file_.NeuronAt(seen.layer, a);
      return active;
    });
  }

 private:
  const ExactSelector selector_;
  std::vector<uint32_t> active_;
};

class HeadCollector : public Collector {
 public:
  HeadCollector(const SluiceFile& file, const PredictorSampler::Options& options,
                uint32_t first_layer, uint32_t n_layers, HeadNeeds needs)
      : Collector(file, options, first_layer, n_layers), needs_(std::move(needs)) {}

  void Observe(const FfnObservation&) override {}
  void ObserveAttention(const AttentionObservation& seen) override {
    const size_t q_dim = file_.config().q_dim();
    Keep(seen, [&](uint32_t t) {
      return needs_.Select(seen.layer, seen.attended.subspan(t * q_dim, q_dim));
    });
  }

 private:
  HeadNeeds needs_;
};

absl::StatusOr<std::unique_ptr<Collector>> MakeCollector(const SluiceFile& file,
                                                         const PredictorSampler::Options& options,
                                                         uint32_t first_layer, uint32_t n_layers) {
  if (options.head_share == 0) {
    return std::make_unique<NeuronCollector>(file, options, first_layer, n_layers);
  }
  SLUICE_ASSIGN_OR_RETURN(HeadNeeds needs,
                          HeadNeeds::Create(file, first_layer, n_layers, options.head_share));
  return std::make_unique<HeadCollector>(file, options, first_layer, n_layers, std::move(needs));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PredictorSampler>> PredictorSampler::Create(
    const SluiceFile& file, const std::vector<SampleText>& text, const Options& options) {
  const auto n_held_out =
      std::count_if(text.begin(), text.end(), [](const SampleText& t) { return t.held_out; });
  const auto n_training = std::ssize(text) - n_held_out;
  if (n_training < 2 || n_held_out == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d sequences of text to train on and %d held out are too few for a predictor; profile "
        "more text",
        file.path(), n_training, n_held_out));
  }
  auto sampler = std::unique_ptr<PredictorSampler>(new PredictorSampler(file, options));
  sampler->ChooseRuns(text, static_cast<size_t>(n_training));
  return sampler;
}

void PredictorSampler::ChooseRuns(const std::vector<SampleText>& text, size_t n_training) {
  const ModelConfig& config = file_.config();
  const uint64_t one = TrainingSamples::BytesOfOne(config.d_model, NumOutputs(file_, options_));
  size_t n_tokens = 0;
  for (const SampleText& t : text) n_tokens += t.tokens.size();
  const size_t wanted =
      std::min<uint64_t>({n_tokens, options_.max_samples, options_.max_bytes / one});

  // Each part is thinned out by itself, by whole sequences.
  const size_t n_validation = std::max<size_t>(n_training / kValidationShare, 1);
  std::array<size_t, 3> seen = {}, taken = {};
  size_t training = 0;
  for (const SampleText& t : text) {
    size_t part = 2;
    if (!t.held_out) {
      const size_t before = training * n_validation / n_training;
      part = ++training * n_validation / n_training > before ? 1 : 0;
    }
    if (taken[part] * n_tokens <= seen[part] * wanted) {
      constexpr std::array kParts = {&LayerSamples::train, &LayerSamples::validation,
                                     &LayerSamples::held_out};
      runs_.push_back({t.tokens, kParts[part]});
      taken[part] += t.tokens.size();
      n_samples_ += t.tokens.size();
    }
    seen[part] += t.tokens.size();
  }
  layers_at_once_ = static_cast<uint32_t>(std::clamp<uint64_t>(
      options_.max_bytes / std::max<uint64_t>(one * n_samples_, 1), 1, config.n_layers));
}

absl::StatusOr<std::vector<LayerSamples>> PredictorSampler::Collect(uint32_t first_layer,
                                                                    uint32_t n_layers) {
  size_t longest = 1;
  for (const Run& run : runs_) longest = std::max(longest, run.tokens.size());
  PlanRequest request;
  request.mode = file_.config().sparse() ? DecodeMode::kExact : DecodeMode::kDense;
  request.budget = options_.budget;
  request.context = static_cast<uint32_t>(longest);
  request.n_threads = options_.n_threads;
  SLUICE_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(file_, request));
  SLUICE_ASSIGN_OR_RETURN(const auto collector,
                          MakeCollector(file_, options_, first_layer, n_layers));
  DecoderOptions decoder_options;
  decoder_options.observer = collector.get();
  SLUICE_ASSIGN_OR_RETURN(const auto decoder, Decoder::Create(file_, plan, decoder_options));

  size_t done = 0;
  for (const Run& run : runs_) {
    collector->set_part(run.part);
    decoder->Rewind();
    for (size_t at = 0; at < run.tokens.size();) {
      const size_t n = std::min<size_t>(plan.chunk, run.tokens.size() - at);
      SLUICE_RETURN_IF_ERROR(decoder->Forward(run.tokens.subspan(at, n), options_.stop));
      at += n;
      done += n;
      if (options_.progress) options_.progress(done, n_samples_);
    }
  }
  if (!collector->is_finite()) {
    return absl::DataLossError(file_.path() +
                               ": gives activations that are not finite numbers; is it damaged?");
  }
  return collector->Take();
}

}  // namespace sluice
