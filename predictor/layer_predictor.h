// The predictor of one layer: which neurons of an FFN a token will need, from a vector that is
// known before the gate is. logits = fc2 relu(fc1 x), no biases (PowerInfer; Deja Vu has the same
// without the ReLU); a neuron is predicted active where its logit reaches the threshold.
//
// Plain data in memory, as the trainer makes it; a `.sluice` file holds the rows as q8.
#ifndef SLUICE_PREDICTOR_LAYER_PREDICTOR_H_
#define SLUICE_PREDICTOR_LAYER_PREDICTOR_H_

#include <cstdint>
#include <vector>

namespace sluice {

constexpr uint32_t kRankStep = 32;  // ranks are multiples: the blocks of a q8 row

struct LayerPredictor {
  uint32_t rank = 0;
  std::vector<float> fc1;  // [rank x d_model]
  std::vector<float> fc2;  // [d_ff x rank], by neuron id, whatever the order in a file
  float threshold = 0.0f;  // on the logit
};

}  // namespace sluice

#endif  // SLUICE_PREDICTOR_LAYER_PREDICTOR_H_
