#include "runtime/predictor_training.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/byte_io.h"
#include "predictor/dense_products.h"
#include "predictor/packed_predictor.h"
#include "runtime/parallel_on_pool.h"
#include "runtime/thread_pool.h"

namespace sluice {
namespace {

constexpr uint64_t kSpinNs = 50'000;  // before a worker parks

std::string CheckpointPath(const std::string& folder, uint32_t layer) {
  return absl::StrFormat("%s/layer-%04u.predictor", folder, layer);
}

// Of all that the result depends on.
uint64_t RunId(const SluiceFile& file, const std::vector<SampleText>& text,
               const PredictorTraining& training, size_t n_samples) {
  ByteWriter key;
  key.Put<uint64_t>(file.weights_id());
  for (const SampleText& t : text) {
    key.Put<uint64_t>(t.tokens.size());
    key.Put<uint8_t>(t.held_out);
    key.PutBytes(t.tokens.data(), t.tokens.size_bytes());
  }
  const TrainerOptions& o = training.trainer;
  key.Put<uint8_t>(static_cast<uint8_t>(training.sampler.input));
  for (const float t : training.sampler.thresholds) key.Put<float>(t);
  if (training.sampler.head_share > 0) key.Put<double>(training.sampler.head_share);
  key.Put<uint64_t>(n_samples);
  key.Put<double>(o.recall);
  key.Put<double>(o.density_ratio);
  key.Put<uint64_t>(o.max_bytes);
  key.Put<uint64_t>(o.seed);
  key.Put<uint32_t>(o.epochs);
  key.Put<float>(o.rate);
  return Checksum64(key.bytes());
}

class Run {
 public:
  Run(const SluiceFile& file, const PredictorTraining& training, PredictorSampler& sampler,
      ThreadPool& pool, uint64_t id)
      : file_(file),
        training_(training),
        sampler_(sampler),
        products_(BestKernels(), ParallelOn(pool)),
        id_(id),
        layers_(file.config().n_layers) {}

  absl::Status TakeFinished() {
    for (uint32_t l = 0; l < layers_.size(); ++l) {
      const std::string path = CheckpointPath(training_.checkpoints, l);
      auto checkpoint = PredictorCheckpoint::Load(
          path, file_.config().d_model, PredictorSampler::NumOutputs(file_, training_.sampler));
      if (absl::IsNotFound(checkpoint.status())) continue;
      if (!checkpoint.ok()) return checkpoint.status();
      if (checkpoint->run != id_ || checkpoint->layer != l) {
        return absl::FailedPreconditionError(absl::StrFormat(
            "%s: is of a training with another model, text or flags; give the same ones to go on "
            "with it, or leave out --resume to begin anew",
            path));
      }
      if (training_.finished) training_.finished(*checkpoint, /*from_before=*/true);
      layers_[l] = *std::move(checkpoint);
    }
    return absl::OkStatus();
  }

  absl::Status TrainOthers() {
    for (uint32_t l = 0; l < layers_.size();) {
      if (layers_[l]) {
        ++l;
        continue;
      }
      uint32_t end = l;
      while (end < layers_.size() && end - l < sampler_.layers_at_once() && !layers_[end]) ++end;
      SLUICE_ASSIGN_OR_RETURN(std::vector<LayerSamples> samples, sampler_.Collect(l, end - l));
      for (LayerSamples& s : samples) {
        SLUICE_RETURN_IF_ERROR(TrainLayer(l++, s));
        s = LayerSamples{TrainingSamples(0, 0), TrainingSamples(0, 0), TrainingSamples(0, 0)};
      }
    }
    return absl::OkStatus();
  }

  std::vector<PredictorCheckpoint> Take() {
    std::vector<PredictorCheckpoint> layers;
    for (auto& layer : layers_) layers.push_back(*std::move(layer));
    return layers;
  }

 private:
  absl::Status TrainLayer(uint32_t layer, const LayerSamples& samples) {
    TrainerOptions options = training_.trainer;
    options.seed += layer;
    const std::atomic<int>* stop = training_.sampler.stop;
    options.progress = [&](const TrainProgress& p) {
      if (training_.progress) training_.progress(layer, p);
      return stop == nullptr || stop->load(std::memory_order_relaxed) == 0;
    };
    auto trained = TrainPredictor(samples.train, samples.validation, options, products_);
    if (!trained.ok()) {
      return Annotate(trained.status(), absl::StrFormat("%s, layer %u", file_.path(), layer));
    }
    PredictorCheckpoint done;
    done.run = id_;
    done.layer = layer;
    done.meets_targets = trained->meets_targets;
    done.predictor = std::move(trained->predictor);
    const PackedPredictor packed(done.predictor);
    done.quality = packed.Judge(done.predictor.threshold, samples.held_out, products_);
    done.top_k = packed.TopKFor(options.recall, samples.validation, products_);
    SLUICE_RETURN_IF_ERROR(done.Save(CheckpointPath(training_.checkpoints, layer)));
    if (training_.finished) training_.finished(done, /*from_before=*/false);
    layers_[layer] = std::move(done);
    return absl::OkStatus();
  }

  const SluiceFile& file_;
  const PredictorTraining& training_;
  PredictorSampler& sampler_;
  DenseProducts products_;
  const uint64_t id_;
  std::vector<std::optional<PredictorCheckpoint>> layers_;
};

}  // namespace

absl::StatusOr<std::vector<PredictorCheckpoint>> TrainPredictors(
    const SluiceFile& file, const std::vector<SampleText>& text,
    const PredictorTraining& training) {
  std::error_code error;
  std::filesystem::create_directories(training.checkpoints, error);
  if (error) return ErrnoStatus(error.value(), training.checkpoints);
  PredictorTraining t = training;
  t.trainer.max_bytes = static_cast<uint64_t>(t.share * static_cast<double>(file.file_size()) /
                                              file.config().n_layers);
  SLUICE_ASSIGN_OR_RETURN(const auto sampler, PredictorSampler::Create(file, text, t.sampler));
  SLUICE_ASSIGN_OR_RETURN(const auto pool, ThreadPool::Create(t.sampler.n_threads, kSpinNs));
  Run run(file, t, *sampler, *pool, RunId(file, text, t, sampler->n_samples()));
  if (t.resume) {
    SLUICE_RETURN_IF_ERROR(run.TakeFinished());
  } else {
    RemoveCheckpoints(t.checkpoints, file.config().n_layers);
    std::filesystem::create_directories(t.checkpoints, error);
  }
  SLUICE_RETURN_IF_ERROR(run.TrainOthers());
  return run.Take();
}

bool HasCheckpoints(const std::string& folder, uint32_t n_layers) {
  std::error_code ignored;
  for (uint32_t l = 0; l < n_layers; ++l) {
    if (std::filesystem::exists(CheckpointPath(folder, l), ignored)) return true;
  }
  return false;
}

void RemoveCheckpoints(const std::string& folder, uint32_t n_layers) {
  std::error_code ignored;
  for (uint32_t l = 0; l < n_layers; ++l) {
    std::filesystem::remove(CheckpointPath(folder, l), ignored);
  }
  std::filesystem::remove(folder, ignored);  // does nothing if it is not empty
}

}  // namespace sluice
