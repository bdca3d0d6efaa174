// A GGUF file as a ModelSource: architectures "llama", "qwen2", "bamboo", "opt", "nemotron" and
// "arcee".
//
// Read from metadata: <arch>.{block_count, embedding_length, feed_forward_length, context_length,
// vocab_size}, <arch>.attention.{head_count, head_count_kv, key_length, value_length,
// layer_norm_rms_epsilon or layer_norm_epsilon, sliding_window}, <arch>.rope.{freq_base,
// dimension_count, scaling.type, scaling.factor, scale_linear}, and Sluice's own keys
// sluice.activation ("silu", "relu", "relu2", "fatrelu",
// "drelu") and sluice.activation_threshold. What
// would change the text and is not implemented (experts, attention or logit scales, YaRN, ...) is
// refused by name.
//
// The learned positions of "opt" come as llama.cpp's converter writes them, one for each position,
// or as in the checkpoint, with two rows for padding before them. PowerInfer's converter counts
// those two as context: always 2050.
//
// Predictors and PowerInfer's files (magic "PWRI"): blk.N.fc1.weight [rank x d_model] and
// blk.N.fc2.weight [d_ff x rank], fed the residual before the FFN's norm; a neuron is predicted to
// fire where its logit reaches powerinfer.sparse_threshold, 0 by default. Down matrices may be
// turned: blk.N.ffn_down_t.weight [d_ff x d_model]. Such files hold models with ReLU without saying
// so.
#ifndef SLUICE_LAYOUT_GGUF_SOURCE_H_
#define SLUICE_LAYOUT_GGUF_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "layout/model_source.h"

namespace sluice {

constexpr char kActivationKey[] = "sluice.activation";
constexpr char kActivationThresholdKey[] = "sluice.activation_threshold";

absl::StatusOr<std::unique_ptr<ModelSource>> OpenGgufSource(const std::string& path,
                                                            const ImportOptions& options);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_GGUF_SOURCE_H_
