// Small random models with everything that a real one has: written as GGUF, the same bytes on every
// machine.
//
// Activations and logits stay of order one. All embeddings share a direction, and gate rows lean
// against it, so that most neurons of a ReLU-gated FFN are off, others for every token.
#ifndef SLUICE_TESTS_TOY_MODEL_H_
#define SLUICE_TESTS_TOY_MODEL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "layout/model_config.h"
#include "layout/source_type.h"

namespace sluice {

struct ToyModel {
  // "qwen2": RoPE by halves, biases on Q, K and V. "opt", "nemotron", "arcee": see ToyRelative.
  std::string architecture = "llama";
  uint32_t n_layers = 3;
  uint32_t d_model = 96;
  uint32_t d_ff = 160;
  uint32_t n_heads = 6;
  uint32_t n_kv_heads = 2;
  uint32_t head_dim = 16;
  uint32_t vocab_size = 300;  // at least 259
  uint32_t context_length = 512;
  Activation activation = Activation::kRelu;
  float threshold = 0.0f;  // kFatRelu
  bool tied_head = false;
  bool rope_divisors = false;
  float rope_base = 10000.0f;
  SourceType type = SourceType::kF32;  // of matrices
  float gate_lean = 2.4f;              // how far gate values lie below zero, in their deviations
  bool equal_rows = false;             // one random row for each matrix: quick to write
  uint64_t seed = 1;
};

// One that takes after a relative of the Llama family: without a gate; "opt" with learned
// positions, layer norms, biases everywhere and ReLU, "nemotron" with layer norms, half of each
// head rotated and ReLU^2, "arcee" with ReLU^2.
ToyModel ToyRelative(const std::string& architecture);

// Replaces `path`.
absl::Status WriteToyModel(const ToyModel& model, const std::string& path);

}  // namespace sluice

#endif  // SLUICE_TESTS_TOY_MODEL_H_
