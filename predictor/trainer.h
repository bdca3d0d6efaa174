// Trains the predictor of one layer: a low-rank MLP (see layer_predictor.h) on class-weighted
// binary cross entropy, with AdamW on mini-batches of 256 tokens in random order, at a rate that
// rises and then falls to zero. After each epoch the network is packed as in a file and judged on
// samples kept apart: by the density that it needs for the recall asked for. The best epoch is
// kept.
//
// The rank (PowerInfer's "adaptive predictor"): starts at a quarter of what the size allows. While
// the density is above its bound the rank grows, by half or more, keeping what was learned; where
// the first one is good enough it halves, keeping the units that weigh most, as long as the bound
// still holds.
//
// The result depends on the samples and the options, not on the number of threads or the machine.
#ifndef SLUICE_PREDICTOR_TRAINER_H_
#define SLUICE_PREDICTOR_TRAINER_H_

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "predictor/dense_products.h"
#include "predictor/layer_predictor.h"
#include "predictor/packed_predictor.h"
#include "predictor/training_samples.h"

namespace sluice {

struct TrainProgress {
  uint32_t rank = 0;
  uint32_t epoch = 0, epochs = 0;  // done, planned at this rank
  double density = 0;              // predicted, of the best epoch so far
};

struct TrainerOptions {
  // The threshold is chosen for this and a margin, by how much recall varies over the samples kept
  // apart; so other text of the kind is likely to have it too.
  double recall = 0.95;
  double density_ratio = 2.0;  // predicted / true density, at most if the size allows
  uint64_t max_bytes = 0;      // of the packed predictor; at least a rank of 32 is taken
  uint64_t seed = 0;
  uint32_t epochs = 10;  // at each rank, at most
  float rate = 2e-3f;    // the highest
  // Called after each epoch; false ends the training with Cancelled.
  std::function<bool(const TrainProgress&)> progress;
};

struct TrainedPredictor {
  LayerPredictor predictor;  // its weights are those that the packed rows stand for
  PredictorQuality quality;  // on the samples that were kept apart
  bool meets_targets = false;
};

// The largest rank whose packed predictor takes at most max_bytes; at least kRankStep.
uint32_t LargestRank(uint32_t d_model, uint32_t d_ff, uint64_t max_bytes);

// `validation` are samples kept apart. InvalidArgument if either has none or no active neuron.
absl::StatusOr<TrainedPredictor> TrainPredictor(const TrainingSamples& train,
                                                const TrainingSamples& validation,
                                                const TrainerOptions& options,
                                                DenseProducts& products);

}  // namespace sluice

#endif  // SLUICE_PREDICTOR_TRAINER_H_
