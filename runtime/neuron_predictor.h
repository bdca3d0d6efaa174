// Asks the predictors of a model: which neurons of a layer a token will need, or which attention
// heads. A neuron is in the set if fc2(relu(fc1(input))) reaches the layer's threshold (PowerInfer,
// sec. 5; the raw logit); of heads read heads for neurons.
//
// Confined to the decode thread, which spreads the products over a ThreadPool. Allocates nothing
// after construction. Predictor matrices that are not resident pass through the stream ring.
#ifndef SLUICE_RUNTIME_NEURON_PREDICTOR_H_
#define SLUICE_RUNTIME_NEURON_PREDICTOR_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/sluice_file.h"
#include "runtime/activations.h"
#include "runtime/kernels/kernels.h"
#include "runtime/thread_pool.h"
#include "runtime/weight_store.h"

namespace sluice {

enum class PredictedPart { kNeurons, kHeads };

class NeuronPredictor {
 public:
  // Borrows all; `file` has predictors of that part.
  NeuronPredictor(const SluiceFile& file, PredictedPart part, const KernelTable& kernels,
                  ThreadPool& pool, WeightStore& store);

  PredictorInput input() const { return record_.input; }
  // Writes the active set, positions in rising order, into `active`, which has room for all neurons
  // of the layer, and returns how many there are. x [d_model].
  absl::StatusOr<uint32_t> Predict(uint32_t layer, const float* x, std::span<uint32_t> active);

  // Of the last call, by position.
  std::span<const float> logits() const { return logits_; }
  // That all calls took, without waiting for reads of matrices that are streamed.
  uint64_t busy_ns() const { return busy_ns_; }

  static size_t ScratchBytes(const SluiceFile& file, PredictedPart part);

 private:
  const SluiceFile& file_;
  const PredictorRecord& record_;
  const MatrixRole fc1_, fc2_;
  const KernelTable& kernels_;
  ThreadPool& pool_;
  WeightStore& store_;
  Activations input_, hidden_;  // in the forms that dots need
  std::vector<float> inner_;    // [rank]
  std::vector<float> logits_;   // [neurons or heads]
  uint64_t busy_ns_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_NEURON_PREDICTOR_H_
