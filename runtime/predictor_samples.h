// Runs a model over text and keeps what predictors are trained on: their inputs, and the neurons
// that were active or the attention heads that were needed. All of it would not fit into memory, so
// it comes for some layers at a time, and the text is run again for the next ones.
#ifndef SLUICE_RUNTIME_PREDICTOR_SAMPLES_H_
#define SLUICE_RUNTIME_PREDICTOR_SAMPLES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/sluice_file.h"
#include "layout/sparsity_records.h"
#include "predictor/training_samples.h"
#include "runtime/decoder.h"

namespace sluice {

// A sequence of a text: it starts at position 0 of a context. Borrowed.
struct SampleText {
  std::span<const int32_t> tokens;
  bool held_out = false;
};

// Of one layer. One training sequence in ten goes to `validation`, whole: neighbouring tokens have
// much in common.
struct LayerSamples {
  TrainingSamples train, validation, held_out;
};

class PredictorSampler {
 public:
  struct Options {
    PredictorInput input = PredictorInput::kResidual;
    // By layer, for activations without exact zeros: a neuron counts as active where the magnitude
    // of its activation reaches it (CATS). Empty: where it is not zero.
    std::vector<float> thresholds;
    // Above 0: samples of heads, not of neurons; see HeadNeeds. `input` is the attention's then.
    double head_share = 0;
    uint64_t max_bytes = uint64_t{1} << 30;  // of the samples that are held at a time, about
    // Of a layer; beyond it sequences are left out, evenly over the text.
    size_t max_samples = 200'000;
    int n_threads = 1;
    uint64_t budget = UINT64_MAX;  // of the decoder: see PlanRequest
    const std::atomic<int>* stop = nullptr;
    std::function<void(size_t done, size_t n_tokens)> progress;  // of a run over the text
  };
  // `file` and the tokens must outlive the sampler. InvalidArgument if there are fewer than two
  // training sequences, or none held out.
  static absl::StatusOr<std::unique_ptr<PredictorSampler>> Create(
      const SluiceFile& file, const std::vector<SampleText>& text, const Options& options);

  // Neurons of a layer, or heads.
  static uint32_t NumOutputs(const SluiceFile& file, const Options& options) {
    return options.head_share > 0 ? file.config().n_heads : file.config().d_ff;
  }
  uint32_t layers_at_once() const { return layers_at_once_; }
  size_t n_samples() const { return n_samples_; }  // of a layer
  // The samples of `n_layers` layers, at most layers_at_once(). Cancelled once *stop is not 0.
  absl::StatusOr<std::vector<LayerSamples>> Collect(uint32_t first_layer, uint32_t n_layers);

 private:
  struct Run {
    std::span<const int32_t> tokens;
    TrainingSamples LayerSamples::*part;
  };

  PredictorSampler(const SluiceFile& file, const Options& options)
      : file_(file), options_(options) {}
  void ChooseRuns(const std::vector<SampleText>& text, size_t n_training);

  const SluiceFile& file_;
  const Options options_;
  std::vector<Run> runs_;
  size_t n_samples_ = 0;
  uint32_t layers_at_once_ = 1;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_PREDICTOR_SAMPLES_H_
