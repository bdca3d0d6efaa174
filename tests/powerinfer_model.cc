#include "tests/powerinfer_model.h"

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace sluice {

TensorTable TinyPredictors(const TensorTable& model, Foresight foresight) {
  TensorTable out;
  for (int layer = 0; layer < 2; ++layer) {
    const std::string blk = absl::StrCat("blk.", layer, ".");
    const TinyTensor& gate = model.at(blk + "ffn_gate.weight");
    const TinyTensor& norm = model.at(blk + "ffn_norm.weight");
    const size_t n_ff = gate.shape[0], d = gate.shape[1], rank = layer == 0 ? 2 * d : 2 * d + 6;
    TinyTensor fc1{{rank, d}, std::vector<float>(rank * d)};
    TinyTensor fc2{{n_ff, rank}, std::vector<float>(n_ff * rank)};
    // Hidden units max(x, 0) and max(-x, 0); what is beyond them weighs nothing.
    for (size_t i = 0; i < d; ++i) {
      fc1.values[i * d + i] = 1.0f;
      fc1.values[(d + i) * d + i] = -1.0f;
    }
    for (size_t r = 2 * d; r < rank; ++r) fc1.values[r * d + r % d] = 0.5f;
    for (size_t n = 0; n < n_ff; ++n) {
      for (size_t i = 0; i < d; ++i) {
        const float weight = gate.values[n * d + i] * norm.values[i];
        const bool sees = foresight == Foresight::kGate;
        fc2.values[n * rank + i] = sees ? weight : -1.0f;
        fc2.values[n * rank + d + i] = sees ? -weight : -1.0f;
      }
    }
    out[blk + "fc1.weight"] = std::move(fc1);
    out[blk + "fc2.weight"] = std::move(fc2);
  }
  return out;
}

void TurnDown(TensorTable& model) {
  TensorTable turned;
  for (auto it = model.begin(); it != model.end();) {
    if (it->first.find("ffn_down.") == std::string::npos) {
      ++it;
      continue;
    }
    TinyTensor t = std::move(it->second);
    if (t.shape.size() == 2) {
      const size_t rows = t.shape[0], columns = t.shape[1];
      const std::vector<float> values = t.values;
      t.shape = {columns, rows};
      for (size_t r = 0; r < rows; ++r) {
        for (size_t c = 0; c < columns; ++c) t.values[c * rows + r] = values[r * columns + c];
      }
    }
    turned[absl::StrReplaceAll(it->first, {{"ffn_down", "ffn_down_t"}})] = std::move(t);
    it = model.erase(it);
  }
  model.merge(turned);
}

TinyGguf PowerInferGguf(const std::string& architecture, Foresight foresight) {
  TinyGguf model(architecture);
  model.tensors.merge(TinyPredictors(model.tensors, foresight));
  TurnDown(model.tensors);
  return model;
}

void WritePowerInfer(const TinyGguf& model, const std::string& path) {
  model.Write(path);
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).write("PWRI", 4);
}

}  // namespace sluice
