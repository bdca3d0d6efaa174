// The tensors of a generated model and the values of their rows.
#ifndef SLUICE_LAYOUT_SYNTH_WEIGHTS_H_
#define SLUICE_LAYOUT_SYNTH_WEIGHTS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "layout/synth_plan.h"

namespace sluice {

enum class SynthTensorKind : uint8_t {
  kNorm,
  kEmbedding,
  kHead,
  kQuery,
  kKey,
  kValue,
  kAttentionOut,
  kGate,
  kUp,
  kDown,
};

struct SynthTensor {
  std::string name;  // GGUF's
  SynthTensorKind kind = SynthTensorKind::kNorm;
  uint32_t layer = 0;
  // A norm is one row.
  uint32_t rows = 0;
  uint32_t columns = 0;
};

// In the order of the file.
std::vector<SynthTensor> ListSynthTensors(const SynthPlan& plan);

// Fills one row of `columns` floats.
using RowFiller = std::function<void(uint32_t row, std::span<float> values)>;

// The filler of one tensor; thread-safe. Borrows `plan`; a gate's filler holds the layer's group
// directions (a few MB), so make it when the tensor's turn comes and drop it after.
RowFiller MakeRowFiller(const SynthPlan& plan, const SynthTensor& tensor);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_SYNTH_WEIGHTS_H_
