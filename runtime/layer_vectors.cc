#include "runtime/layer_vectors.h"

#include "runtime/tensor_ops.h"

namespace sluice {

void AddLearnedPositions(const SluiceFile& file, uint32_t first, uint32_t n, float* x) {
  if (!file.config().learned_positions) return;
  const uint32_t d = file.config().d_model;
  for (uint32_t t = 0; t < n; ++t) {
    AddInPlace({x + size_t{t} * d, d}, file.learned_position(first + t));
  }
}

void AddUpBias(const SluiceFile& file, uint32_t layer, uint32_t n, float* up) {
  const auto bias = file.up_bias(layer);  // by neuron id
  for (uint32_t t = 0; t < n; ++t) {
    float* row = up + t * bias.size();
    for (uint32_t p = 0; p < bias.size(); ++p) row[p] += bias[file.NeuronAt(layer, p)];
  }
}

}  // namespace sluice
