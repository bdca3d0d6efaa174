// A tiny `.sluice` model whose every weight follows from a formula, for tests of the format. The
// values are such that each WeightType holds them exactly, so that what is read back can be
// compared bit for bit whatever the type.
#ifndef SLUICE_TESTS_TINY_SLUICE_H_
#define SLUICE_TESTS_TINY_SLUICE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/sluice_format.h"
#include "layout/sparsity_records.h"
#include "layout/tokenizer_data.h"

namespace sluice {

struct TinySluice {
  ModelConfig config;
  Directory directory;
  std::vector<float> vectors;
  TokenizerData tokenizer;
  Provenance provenance;
  std::optional<PredictorRecord> predictor;
  std::optional<ActivityRecord> activity;
  std::optional<HeadPredictorRecord> head_predictor;
  std::vector<float> thresholds;
};

// 2 layers, width 64, FFN 96, 4 heads of 16 with 2 for K and V, biases on Q/K/V, FATReLU, untied
// head, 40 tokens. Matrices other than the gate are f16 and, for attention, q8; gate and bundles
// are of type `ffn`.
TinySluice MakeTinySluice(WeightType ffn);
// The same with predictors of rank 32 and 64, gate rows in the bundles, and a record of activity.
TinySluice MakeTinyPredicted(WeightType ffn);
// And with predictors of heads, of rank 64 and 32.
TinySluice MakeTinyHeadPredicted(WeightType ffn);

// The same with SiLU instead of FATReLU, and activation thresholds.
TinySluice MakeTinyThresholded(WeightType ffn);

// MakeTinySluice's as a relative of the Llama family with all that one may have: layer norms, no
// gate, all biases, learned positions, and half of each head rotated all the same.
TinySluice MakeTinyRelative(WeightType ffn);

// The neuron that lies at a position: not the original order, and another one for each layer.
uint32_t TinyNeuron(uint32_t layer, uint32_t position);

// The weights of a row of a matrix, of an up row and of a down column (by neuron, not position).
std::vector<float> TinyMatrixRow(const TinySluice& model, uint32_t matrix, uint32_t row);
std::vector<float> TinyUpRow(const TinySluice& model, uint32_t layer, uint32_t neuron);
std::vector<float> TinyDownColumn(const TinySluice& model, uint32_t layer, uint32_t neuron);

// Writes it with SluiceWriter; the size of the file.
absl::StatusOr<uint64_t> WriteTinySluice(const TinySluice& model, const std::string& path);

}  // namespace sluice

#endif  // SLUICE_TESTS_TINY_SLUICE_H_
