#include "layout/model_config.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/printable.h"

namespace sluice {
namespace {

constexpr uint32_t kConfigVersion = 1;

struct Range {
  const char* field;
  uint32_t value, min, max;
};

// The fields that only relatives of the Llama family set.
absl::Status ValidateRelative(const ModelConfig& c) {
  if (c.unrotated > c.head_dim || c.unrotated % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("RoPE leaves %u of the %u elements of a head alone; it must be an even "
                        "number of them",
                        c.unrotated, c.head_dim));
  }
  if (c.rectifies_up() && !c.gated) {
    return absl::InvalidArgumentError(
        "the activation is drelu, which needs a gate, and the FFN has none");
  }
  if (c.ffn_bias && c.gated) {
    return absl::InvalidArgumentError("biases in a gated FFN are not supported");
  }
  if (c.learned_positions && c.context_length > kMaxLearnedPositions) {
    return absl::InvalidArgumentError(
        absl::StrFormat("context length is %u; with learned positions it must be at most %u",
                        c.context_length, kMaxLearnedPositions));
  }
  return absl::OkStatus();
}

void WriteRelative(const ModelConfig& c, ByteWriter& out) {
  out.Put<uint8_t>(static_cast<uint8_t>(c.norm));
  for (const bool flag : {!c.gated, c.o_bias, c.ffn_bias, c.learned_positions}) {
    out.Put<uint8_t>(flag);
  }
  out.Put<uint32_t>(c.unrotated);
}

absl::Status ReadRelative(ByteReader& in, ModelConfig& c) {
  const auto norm = in.Get<uint8_t>();
  c.gated = in.Get<uint8_t>() == 0;
  for (bool* flag : {&c.o_bias, &c.ffn_bias, &c.learned_positions}) {
    *flag = in.Get<uint8_t>() != 0;
  }
  c.unrotated = in.Get<uint32_t>();
  if (norm > 1) return absl::DataLossError("config record: unknown norm");
  c.norm = static_cast<NormKind>(norm);
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateConfig(const ModelConfig& c) {
  const Range ranges[] = {
      {"layer count", c.n_layers, 1, 1024},
      {"model width", c.d_model, 32, 65536},
      {"FFN width", c.d_ff, 32, 1u << 20},
      {"head count", c.n_heads, 1, 1024},
      {"KV head count", c.n_kv_heads, 1, 1024},
      {"head dimension", c.head_dim, 2, 1024},
      {"vocabulary size", c.vocab_size, 1, 1u << 24},
      {"context length", c.context_length, 1, 1u << 27},
  };
  for (const Range& r : ranges) {
    if (r.value < r.min || r.value > r.max) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s is %u; it must be in %u..%u", r.field, r.value, r.min, r.max));
    }
  }
  if (c.d_model % 32 != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("model width %u must be a multiple of 32", c.d_model));
  }
  if (c.n_heads % c.n_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "head count %u is not a multiple of KV head count %u", c.n_heads, c.n_kv_heads));
  }
  if (c.head_dim % 2 != 0 || c.q_dim() % 32 != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "head dimension %u must be even, and heads x dimension = %u a multiple of 32", c.head_dim,
        c.q_dim()));
  }
  if (!(c.norm_epsilon > 0.0f && c.norm_epsilon < 1.0f)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("norm epsilon is %g; it must be between 0 and 1", c.norm_epsilon));
  }
  if (!(c.rope_base >= 1.0f && c.rope_base <= 1e12f)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("RoPE base is %g; it must be in 1..1e12", c.rope_base));
  }
  if (!std::isfinite(c.activation_threshold) || c.activation_threshold < 0.0f) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "activation threshold is %g; it must be finite and not negative", c.activation_threshold));
  }
  return ValidateRelative(c);
}

std::string_view ActivationName(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return "silu";
    case Activation::kRelu:
      return "relu";
    case Activation::kRelu2:
      return "relu2";
    case Activation::kFatRelu:
      return "fatrelu";
    case Activation::kDRelu:
      return "drelu";
  }
  return "?";
}

float Activate(Activation activation, float threshold, float gate) {
  switch (activation) {
    case Activation::kSilu:
      return gate / (1.0f + std::exp(-gate));
    case Activation::kRelu:
    case Activation::kDRelu:
      return gate < 0.0f ? 0.0f : gate;
    case Activation::kRelu2:
      return gate < 0.0f ? 0.0f : gate * gate;
    case Activation::kFatRelu:
      return gate < threshold ? 0.0f : gate;
  }
  return 0.0f;
}

absl::StatusOr<Activation> ParseActivation(std::string_view name) {
  for (const Activation a : {Activation::kSilu, Activation::kRelu, Activation::kRelu2,
                             Activation::kFatRelu, Activation::kDRelu}) {
    if (name == ActivationName(a)) return a;
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "unknown activation \"%s\"; known are silu, relu, relu2, fatrelu, drelu", name));
}

void WriteConfig(const ModelConfig& c, ByteWriter& out) {
  out.Put<uint32_t>(kConfigVersion);
  out.PutString(c.architecture);
  out.PutString(c.name);
  for (const uint32_t v : {c.n_layers, c.d_model, c.d_ff, c.n_heads, c.n_kv_heads, c.head_dim,
                           c.vocab_size, c.context_length}) {
    out.Put<uint32_t>(v);
  }
  for (const float v : {c.norm_epsilon, c.rope_base, c.activation_threshold}) out.Put<float>(v);
  out.Put<uint8_t>(static_cast<uint8_t>(c.rope_style));
  out.Put<uint8_t>(static_cast<uint8_t>(c.activation));
  out.Put<uint8_t>(static_cast<uint8_t>(c.activation_origin));
  out.Put<uint8_t>(c.tied_head);
  out.Put<uint8_t>(c.qkv_bias);
  out.Put<uint32_t>(c.attention_window);
  // Llama's end here, as they always did.
  if (!c.is_llama_family()) WriteRelative(c, out);
}

absl::StatusOr<ModelConfig> ReadConfig(ByteReader& in) {
  const auto version = in.Get<uint32_t>();
  if (version != kConfigVersion) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "config record has version %u; this program reads %u", version, kConfigVersion));
  }
  ModelConfig c;
  c.architecture = Printable(in.GetString(), kMaxNameBytes);
  c.name = Printable(in.GetString(), kMaxNameBytes);
  for (uint32_t* v : {&c.n_layers, &c.d_model, &c.d_ff, &c.n_heads, &c.n_kv_heads, &c.head_dim,
                      &c.vocab_size, &c.context_length}) {
    *v = in.Get<uint32_t>();
  }
  for (float* v : {&c.norm_epsilon, &c.rope_base, &c.activation_threshold}) *v = in.Get<float>();
  const auto rope_style = in.Get<uint8_t>();
  const auto activation = in.Get<uint8_t>();
  const auto origin = in.Get<uint8_t>();
  c.tied_head = in.Get<uint8_t>() != 0;
  c.qkv_bias = in.Get<uint8_t>() != 0;
  // Format 1.0 ended here.
  if (in.remaining() > 0) c.attention_window = in.Get<uint32_t>();
  if (in.remaining() > 0) SLUICE_RETURN_IF_ERROR(ReadRelative(in, c));
  if (!in.ok()) return absl::DataLossError("config record is cut short");
  if (rope_style > 1) return absl::DataLossError("config record: unknown RoPE style");
  if (activation > 4) return absl::DataLossError("config record: unknown activation");
  if (origin > 2) return absl::DataLossError("config record: unknown activation origin");
  c.rope_style = static_cast<RopeStyle>(rope_style);
  c.activation = static_cast<Activation>(activation);
  c.activation_origin = static_cast<ActivationOrigin>(origin);
  SLUICE_RETURN_IF_ERROR(Annotate(ValidateConfig(c), "config record"));
  return c;
}

}  // namespace sluice
