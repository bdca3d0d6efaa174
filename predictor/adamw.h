// AdamW (Loshchilov, Hutter: Decoupled Weight Decay Regularization, 2019) of one array of weights.
#ifndef SLUICE_PREDICTOR_ADAMW_H_
#define SLUICE_PREDICTOR_ADAMW_H_

#include <cstddef>
#include <span>
#include <vector>

#include "predictor/parallel_for.h"

namespace sluice {

class AdamW {
 public:
  AdamW(size_t n_weights, float weight_decay)
      : weight_decay_(weight_decay), mean_(n_weights), square_(n_weights) {}

  // One step with the usual decays of 0.9 and 0.999.
  void Step(std::span<float> weights, std::span<const float> gradient, float rate,
            const ParallelFor& parallel);

 private:
  float weight_decay_;
  double decayed_mean_ = 1.0, decayed_square_ = 1.0;  // 0.9^steps, 0.999^steps
  std::vector<float> mean_, square_;                  // of the gradient, running
};

}  // namespace sluice

#endif  // SLUICE_PREDICTOR_ADAMW_H_
