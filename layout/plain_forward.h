// A plain float forward pass over a GGUF file of the `llama` architecture, for measuring a model
// before it is repacked. Weights are read row by row and never held, so memory does not depend on
// the model's size; all positions go through a layer together, so each weight is read once.
//
// It is greedy decoding as well: where the largest logit of every position is the token that comes
// next, decoding one token at a time would have given the same sequence.
#ifndef SLUICE_LAYOUT_PLAIN_FORWARD_H_
#define SLUICE_LAYOUT_PLAIN_FORWARD_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/gguf.h"
#include "layout/model_config.h"

namespace sluice {

struct ForwardResult {
  // By position.
  std::vector<uint32_t> best_token;  // of the largest logit
  std::vector<float> margin;         // by which it leads the second
};

struct ForwardOptions {
  uint32_t n_threads = 2;  // any number gives the same floats
  // Gets each layer's gate values before the activation, {tokens, d_ff}.
  std::function<void(uint32_t layer, std::span<const float> gates)> on_gates;
};

// Runs `tokens` from position 0. `config` must be that of the file and have interleaved RoPE
// without scaling factors, ReLU, and no biases, as generated models do. NotFound if a tensor is
// missing, InvalidArgument if one has another shape.
absl::StatusOr<ForwardResult> RunPlainForward(const GgufFile& file, const ModelConfig& config,
                                              std::span<const uint32_t> tokens,
                                              const ForwardOptions& options);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_PLAIN_FORWARD_H_
