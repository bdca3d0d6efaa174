// Runs a model over text and keeps what predictors are trained on: their inputs, and the neurons
// that were active. All of it would not fit into memory, so it comes for some layers at a time, and
// the text is run again for the next ones.
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
#include "predictor/layer_predictor.h"
#include "predictor/training_samples.h"
#include "runtime/decoder.h"

namespace sluice {

// A sequence of a text: it starts at position 0 of a context. Borrowed.
struct SampleText {
  std::span<const int32_t> tokens;
  bool held_out = false;
};

// Of one layer. One training sequence in 16 goes to `validation`, whole: neighbouring tokens have
// much in common.
struct LayerSamples {
  TrainingSamples train, validation, held_out;
};

class PredictorSampler {
 public:
  struct Options {
    PredictorInput input = PredictorInput::kNormed;
    uint64_t max_bytes = uint64_t{1} << 30;  // of the samples that are held at a time
    size_t max_samples = 400'000;            // of a layer, spread evenly over the text
    int n_threads = 1;
    uint64_t budget = UINT64_MAX;  // of the decoder: see PlanRequest
    const std::atomic<int>* stop = nullptr;
    std::function<void(size_t done, size_t n_tokens)> progress;  // of a run over the text
  };
  // `file` and the tokens must outlive the sampler. InvalidArgument if there are fewer than two
  // training sequences, or none held out.
  static absl::StatusOr<std::unique_ptr<PredictorSampler>> Create(const SluiceFile& file,
                                                                  std::vector<SampleText> text,
                                                                  const Options& options);

  uint32_t layers_at_once() const { return layers_at_once_; }
  size_t n_samples() const { return n_samples_; }  // of a layer
  // The samples of `n_layers` layers, at most layers_at_once(). Cancelled once *stop is not 0.
  absl::StatusOr<std::vector<LayerSamples>> Collect(uint32_t first_layer, uint32_t n_layers);

 private:
  PredictorSampler(const SluiceFile& file, std::vector<SampleText> text, const Options& options);

  const SluiceFile& file_;
  const std::vector<SampleText> text_;
  const Options options_;
  size_t n_tokens_ = 0, n_samples_ = 0;
  uint32_t layers_at_once_ = 1;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_PREDICTOR_SAMPLES_H_
