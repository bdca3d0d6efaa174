// A two-layer network without biases, logits = fc2 relu(fc1 x), and its gradients.
#ifndef SLUICE_PREDICTOR_LOW_RANK_MLP_H_
#define SLUICE_PREDICTOR_LOW_RANK_MLP_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "predictor/dense_products.h"

namespace sluice {

struct LowRankMlp {
  uint32_t d_in = 0, rank = 0, d_out = 0;
  std::vector<float> fc1;  // [rank x d_in]
  std::vector<float> fc2;  // [d_out x rank]

  // Random weights that keep a unit variance: the same for the same seed and stream.
  static LowRankMlp Random(uint32_t d_in, uint32_t rank, uint32_t d_out, uint64_t seed,
                           uint64_t stream);
  // The same network with another rank: the hidden units that weigh most stay; new ones are random
  // on the side of the input and count for nothing yet, so that growing changes no logit.
  LowRankMlp Resized(uint32_t new_rank, uint64_t seed, uint64_t stream) const;
};

// The passes of mini-batches through a network, with their scratch. One call at a time.
class MlpPass {
 public:
  explicit MlpPass(DenseProducts& products) : products_(products) {}

  // Logits [n x d_out] of inputs [n x d_in]; valid until the next call.
  std::span<float> Forward(const LowRankMlp& mlp, std::span<const float> inputs, size_t n);
  // After Forward with the same arguments: the gradients of a loss of which `d_logits` [n x d_out]
  // is the gradient by the logits.
  void Backward(const LowRankMlp& mlp, std::span<const float> inputs, size_t n,
                std::span<const float> d_logits);

  std::span<const float> d_fc1() const { return d_fc1_; }  // shaped like the weights
  std::span<const float> d_fc2() const { return d_fc2_; }

 private:
  DenseProducts& products_;
  std::vector<float> hidden_, logits_, d_hidden_, d_fc1_, d_fc2_;
  std::vector<float> hidden_t_, d_logits_t_, d_hidden_t_, inputs_t_, fc2_t_;  // transposed
};

}  // namespace sluice

#endif  // SLUICE_PREDICTOR_LOW_RANK_MLP_H_
