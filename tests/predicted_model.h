// Models with predictors that are made up: random weights, so that they choose other neurons for
// every token, at random.
#ifndef SLUICE_TESTS_PREDICTED_MODEL_H_
#define SLUICE_TESTS_PREDICTED_MODEL_H_

#include <memory>
#include <vector>

#include "layout/relayout.h"
#include "tests/decoder_harness.h"

namespace sluice {

// Predictors of every layer, of rank 32 and 64 in turn.
struct MadeUpPredictors {
  explicit MadeUpPredictors(const ModelConfig& config, uint64_t seed = 3);

  std::vector<std::vector<float>> fc1, fc2;
  std::vector<PredictorWeights> weights;  // views of the above
};

// Neuron orders that have nothing to do with the ids.
std::vector<std::vector<uint32_t>> ShuffledOrder(const ModelConfig& config, uint64_t seed = 5);

// Neurons fire at random, for up to 30 % of the tokens; placements for many sizes.
ActivityRecord MadeUpActivity(const ModelConfig& config, uint64_t seed = 9);

// A model relaid with such predictors and activity, in a folder of its own.
class PredictedModel {
 public:
  // A neuron is predicted from logit `threshold` on; about half of them lie above 0.
  PredictedModel(const SluiceFile& plain, PredictorInput input, float threshold,
                 bool shuffled = false);

  const SluiceFile& file() const { return *file_; }
  const std::string& path() const { return file_->path(); }

 private:
  TempDir dir_;
  std::unique_ptr<SluiceFile> file_;
};

}  // namespace sluice

#endif  // SLUICE_TESTS_PREDICTED_MODEL_H_
