// Tiny models that bring their predictors, as PowerInfer's converter writes them.
#ifndef SLUICE_TESTS_POWERINFER_MODEL_H_
#define SLUICE_TESTS_POWERINFER_MODEL_H_

#include <map>
#include <string>

#include "tests/import_test_models.h"

namespace sluice {

enum class Foresight {
  kGate,  // logits are gate(x) times the root mean square of the residual: of the gate's sign
  kNone,  // logits are negative, always
};

using TensorTable = std::map<std::string, TinyTensor>;

// blk.N.fc1.weight and blk.N.fc2.weight for both layers of a gated TinyTensors model; their ranks
// are 64 and 70.
TensorTable TinyPredictors(const TensorTable& model, Foresight foresight);

// Turns the down matrix of every layer: blk.N.ffn_down_t.weight in place of ffn_down, and so with
// its bias.
void TurnDown(TensorTable& model);

// A tiny model with predictors and turned down matrices.
TinyGguf PowerInferGguf(const std::string& architecture, Foresight foresight);

// Writes it with the magic "PWRI".
void WritePowerInfer(const TinyGguf& model, const std::string& path);

}  // namespace sluice

#endif  // SLUICE_TESTS_POWERINFER_MODEL_H_
