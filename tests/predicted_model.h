// Models with predictors that are made up: random weights, so that they choose other neurons for
// every token, at random.
#ifndef SLUICE_TESTS_PREDICTED_MODEL_H_
#define SLUICE_TESTS_PREDICTED_MODEL_H_

#include <memory>
#include <optional>
#include <vector>

#include "layout/relayout.h"
#include "tests/decoder_harness.h"

namespace sluice {

// Predictors of every layer, of rank 32 and 64 in turn.
struct MadeUpPredictors {
  // `n_outputs`: 0 for the neurons of a layer.
  explicit MadeUpPredictors(const ModelConfig& config, uint64_t seed = 3, uint32_t n_outputs = 0);

  std::vector<std::vector<float>> fc1, fc2;
  std::vector<PredictorWeights> weights;  // views of the above
};

// Neuron orders that have nothing to do with the ids.
std::vector<std::vector<uint32_t>> ShuffledOrder(const ModelConfig& config, uint64_t seed = 5);

// Neurons fire at random, for up to 30 % of the tokens; placements for many sizes.
ActivityRecord MadeUpActivity(const ModelConfig& config, uint64_t seed = 9);

// How heads are predicted; about half of them from a threshold of 0 on.
struct MadeUpHeads {
  PredictorInput input = PredictorInput::kResidual;
  float threshold = 0.0f;
};

// A model relaid with such predictors and activity, in a folder of its own.
class PredictedModel {
 public:
  // A neuron is predicted from logit `threshold` on; about half of them lie above 0.
  // Without `heads` there are no predictors of heads.
  PredictedModel(const SluiceFile& plain, PredictorInput input, float threshold,
                 bool shuffled = false, std::optional<MadeUpHeads> heads = std::nullopt);

  const SluiceFile& file() const { return *file_; }
  const std::string& path() const { return file_->path(); }

 private:
  TempDir dir_;
  std::unique_ptr<SluiceFile> file_;
};

}  // namespace sluice

#endif  // SLUICE_TESTS_PREDICTED_MODEL_H_
