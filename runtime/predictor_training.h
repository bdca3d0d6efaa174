// `sluice train`: the predictors of all layers of a model, of neurons or of heads, from text that
// it runs over. Each layer that is finished is kept on disk, so that a run that was interrupted can
// go on; it gives the same bytes then as one that was not.
#ifndef SLUICE_RUNTIME_PREDICTOR_TRAINING_H_
#define SLUICE_RUNTIME_PREDICTOR_TRAINING_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/sluice_file.h"
#include "predictor/predictor_checkpoint.h"
#include "predictor/trainer.h"
#include "runtime/predictor_samples.h"

namespace sluice {

struct PredictorTraining {
  TrainerOptions trainer;             // max_bytes and progress are set from what is below
  PredictorSampler::Options sampler;  // its threads and its stop flag are those of the training
  double share = 0.1;                 // bytes of all predictors, at most, of those of the model
  std::string checkpoints;            // a folder; made if it is not there
  bool resume = false;                // take finished layers from it, else they are trained again

  // On the calling thread.
  std::function<void(uint32_t layer, const TrainProgress&)> progress;
  std::function<void(const PredictorCheckpoint&, bool from_before)> finished;  // a layer
};

// By layer, judged on the held-out text. Cancelled once *stop is not 0; FailedPrecondition if the
// finished layers are of another model, text or choice of options.
absl::StatusOr<std::vector<PredictorCheckpoint>> TrainPredictors(
    const SluiceFile& file, const std::vector<SampleText>& text, const PredictorTraining& training);

bool HasCheckpoints(const std::string& folder, uint32_t n_layers);
// Removes the finished layers, and the folder if nothing else is in it.
void RemoveCheckpoints(const std::string& folder, uint32_t n_layers);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_PREDICTOR_TRAINING_H_
