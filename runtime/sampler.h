// Chooses the next token from logits. The chain is the one that users of llama.cpp know: repeat
// penalty, top-k, top-p, min-p, temperature, draw.
#ifndef SLUICE_RUNTIME_SAMPLER_H_
#define SLUICE_RUNTIME_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace sluice {

struct SamplerOptions {
  float temperature = 0.8f;     // 0: greedy
  int32_t top_k = 40;           // 0: all
  float top_p = 0.95f;          // 1: off
  float min_p = 0.05f;          // 0: off
  float repeat_penalty = 1.0f;  // 1: off
  int32_t repeat_last_n = 64;   // tokens that the penalty looks at; 0: none, -1: all
  uint64_t seed = 0;
};

// InvalidArgument naming the flag that is out of range.
absl::Status ValidateSampler(const SamplerOptions& options);

// Thread-compatible. The same seed and logits give the same tokens on every machine whose C library
// computes exp alike. Allocates nothing after construction.
class Sampler {
 public:
  // A text has at most `context` tokens.
  Sampler(const SamplerOptions& options, uint32_t vocab_size, uint32_t context);
  static size_t Bytes(uint32_t vocab_size, uint32_t context);

  // `logits` as the decoder gives them; a NaN or infinity among them gives InternalError, since any
  // choice would hide a fault. Ties go to the lowest id.
  absl::Status Sample(std::span<const float> logits, int32_t* token);
  // Tells the sampler of tokens that are part of the text: the prompt, and what was sampled.
  void Accept(int32_t token);

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };
  void Penalise();
  double NextUniform();  // [0, 1)
  int32_t Draw();

  const SamplerOptions options_;
  uint64_t state_;
  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
  std::vector<int32_t> history_;
  std::vector<uint32_t> penalised_;  // by token: the last call of Penalise that met it
  uint32_t n_calls_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_SAMPLER_H_
