// What the vectors of a model outside the Llama family add to activations; with one of it they do
// nothing. Plain functions; thread-safe.
#ifndef SLUICE_RUNTIME_LAYER_VECTORS_H_
#define SLUICE_RUNTIME_LAYER_VECTORS_H_

#include <cstdint>

#include "layout/sluice_file.h"

namespace sluice {

// To the embeddings x [n x d_model] of the tokens at positions first .. first + n - 1, which are
// within the context that the model was trained with.
void AddLearnedPositions(const SluiceFile& file, uint32_t first, uint32_t n, float* x);

// To the products up [n x d_ff] by position of a layer without a gate.
void AddUpBias(const SluiceFile& file, uint32_t layer, uint32_t n, float* up);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_LAYER_VECTORS_H_
