// The hyperparameters of a decoder of the Llama family or one of its relatives (OPT, Nemotron,
// Arcee), as an importer reads them and as a `.sluice` file stores them.
#ifndef SLUICE_LAYOUT_MODEL_CONFIG_H_
#define SLUICE_LAYOUT_MODEL_CONFIG_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "layout/byte_io.h"

namespace sluice {

// FFN(x) = down(activation(gate(x)) * up(x)), or without a gate down(activation(up(x))). Values are
// stored in files.
enum class Activation : uint8_t {
  kSilu = 0,
  kRelu = 1,
  kRelu2 = 2,    // max(x, 0)^2
  kFatRelu = 3,  // x if x >= threshold, else 0
  kDRelu = 4,    // max(x, 0), and up(x) goes through it too (Bamboo, TurboSparse)
};

// Which two elements of a head one rotation turns.
enum class RopeStyle : uint8_t {
  kInterleaved = 0,  // (2i, 2i+1): GGUF `llama`
  kHalf = 1,         // (i, i + head_dim/2): Hugging Face, GGUF `qwen2`
};

// Where the activation was learned, shown by `inspect` since a wrong guess ruins the text.
enum class ActivationOrigin : uint8_t { kAssumed = 0, kMetadata = 1, kFlag = 2 };

enum class NormKind : uint8_t {
  kRms = 0,    // x / sqrt(mean(x^2) + epsilon) * weight
  kLayer = 1,  // (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias
};

constexpr size_t kMaxNameBytes = 256;
constexpr uint32_t kMaxLearnedPositions = 1u << 16;

struct ModelConfig {
  std::string architecture;  // "llama", "qwen2", "bamboo", "opt", "nemotron", "arcee"
  std::string name;          // printable, at most kMaxNameBytes
  uint32_t n_layers = 0;
  uint32_t d_model = 0;
  uint32_t d_ff = 0;
  uint32_t n_heads = 0;
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t vocab_size = 0;
  // Trained length, but at most the attention window.
  uint32_t context_length = 0;
  // Tokens that a position attends to; 0: all. Windowed attention is not implemented, so a context
  // beyond the window would give other text than the model's.
  uint32_t attention_window = 0;
  float norm_epsilon = 1e-5f;
  float rope_base = 10000.0f;
  RopeStyle rope_style = RopeStyle::kInterleaved;
  Activation activation = Activation::kSilu;
  ActivationOrigin activation_origin = ActivationOrigin::kAssumed;
  float activation_threshold = 0.0f;  // kFatRelu only
  bool tied_head = false;             // the head is the embedding matrix
  bool qkv_bias = false;

  // Of the relatives; a model of the Llama family keeps these values.
  NormKind norm = NormKind::kRms;
  bool gated = true;      // false: the up matrix stands where a gate matrix would
  bool o_bias = false;    // on what attention adds
  bool ffn_bias = false;  // on the rows of up and on what the FFN adds; only ungated
  bool learned_positions =
      false;               // a vector for each position of the context, added to the token's
  uint32_t unrotated = 0;  // elements at the end of a head that RoPE leaves alone

  uint32_t q_dim() const { return n_heads * head_dim; }
  uint32_t kv_dim() const { return n_kv_heads * head_dim; }
  uint32_t rope_dim() const { return head_dim - unrotated; }
  bool is_llama_family() const {
    return norm == NormKind::kRms && gated && !o_bias && !ffn_bias && !learned_positions &&
           unrotated == 0;
  }
  // True if the activation gives exact zeros, so that `exact` mode may skip neurons.
  bool sparse() const { return activation != Activation::kSilu; }
  // True if a negative up(x) makes a zero as well.
  bool rectifies_up() const { return activation == Activation::kDRelu; }
};

// InvalidArgument naming the first field that is out of range or does not fit the others (heads not
// a multiple of KV heads, d_model not a multiple of 32, ...). Every importer and the `.sluice`
// reader call it before anything is sized from the config.
absl::Status ValidateConfig(const ModelConfig& config);

std::string_view ActivationName(Activation activation);
// The activation of one gate value; `threshold` is that of kFatRelu.
float Activate(Activation activation, float threshold, float gate);
// Accepts "silu", "relu", "relu2", "fatrelu", "drelu".
absl::StatusOr<Activation> ParseActivation(std::string_view name);

// The record is described in layout/sluice_format.h.
void WriteConfig(const ModelConfig& config, ByteWriter& out);
absl::StatusOr<ModelConfig> ReadConfig(ByteReader& in);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_MODEL_CONFIG_H_
