// config.json of a Hugging Face folder: model types llama, mistral, qwen2, bamboo, opt, nemotron
// and arcee.
//
// What would change the text and is not implemented (other model types, experts, quantised
// checkpoints, partial rotation but for nemotron, YaRN, ...) is refused by name.
#ifndef SLUICE_LAYOUT_HF_CONFIG_H_
#define SLUICE_LAYOUT_HF_CONFIG_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/model_config.h"
#include "layout/model_source.h"

namespace sluice {

struct HfConfig {
  // tied_head is what the file says, qkv_bias of a gated model what the tensors will say.
  // vocab_size is the file's and may be 0: the embedding has the last word.
  ModelConfig model;
  std::vector<float> rope_divisors;  // rope_dim / 2 of them; empty without RoPE scaling
  std::vector<std::string> warnings;
};

// `path` is for messages. The dimensions are in range when this returns OK.
absl::StatusOr<HfConfig> ParseHfConfig(std::string_view json, const std::string& path,
                                       const ImportOptions& options);

// The divisors of "llama3" RoPE scaling. Rotations of wavelength L (in tokens) shorter than
// original / high_freq_factor stay; longer than original / low_freq_factor are slowed by `factor`;
// between, 1/divisor goes linearly from 1/factor to 1 with original / L.
struct Llama3Scaling {
  double factor = 0, low_freq_factor = 0, high_freq_factor = 0, original_context = 0;
};
std::vector<float> Llama3RopeDivisors(const Llama3Scaling& scaling, double rope_base,
                                      uint32_t rope_dim);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_HF_CONFIG_H_
