#include "layout/hf_config.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/imported_source.h"
#include "layout/json_access.h"

namespace sluice {
namespace {

using nlohmann::json;

class ConfigReader {
 public:
  ConfigReader(const json& root, const std::string& path) : root_(root), path_(path) {}

  absl::StatusOr<HfConfig> Read(const ImportOptions& options) {
    SLUICE_RETURN_IF_ERROR(CheckModelType());
    SLUICE_RETURN_IF_ERROR(CheckForeignFields());
    SLUICE_RETURN_IF_ERROR(ReadDimensions());
    SLUICE_RETURN_IF_ERROR(ReadActivation(options));
    SLUICE_RETURN_IF_ERROR(ReadRope());
    SLUICE_RETURN_IF_ERROR(ReadWindow());
    c_.rope_style = RopeStyle::kHalf;
    return std::move(out_);
  }

 private:
  absl::Status CheckModelType() {
    const std::string type(StringMember(root_, "model_type"));
    for (const char* known : {"llama", "mistral", "qwen2", "bamboo", "opt", "nemotron", "arcee"}) {
      if (type != known) continue;
      c_.architecture = type == "mistral" ? "llama" : type;
      model_type_ = type;
      c_.name = StringMember(root_, "_name_or_path");
      implied_activation_ = ApplyArchitecture(c_);
      if (type == "nemotron") rotated_ = 0.5f;  // where the file does not say
      return absl::OkStatus();
    }
    return absl::UnimplementedError(absl::StrFormat(
        "%s: model_type is \"%s\"; Sluice imports llama, mistral, qwen2, bamboo, opt, nemotron and "
        "arcee. Relatives with other names scale, normalise or gate differently, so reading one as "
        "llama "
        "would ruin its text",
        path_, type));
  }
  bool is_opt() const { return model_type_ == "opt"; }

  absl::Status CheckForeignFields() {
    if (FindMember(root_, "quantization_config") != nullptr) {
      return absl::UnimplementedError(absl::StrCat(
          path_,
          ": quantization_config: the checkpoint is quantised; take the original in F32, F16 "
          "or BF16, or a GGUF"));
    }
    for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
      if (FindMember(root_, key) != nullptr) {
        return absl::UnimplementedError(absl::StrFormat(
            "%s: %s: the model is a mixture of experts, which Sluice does not run", path_, key));
      }
    }
    if (is_opt()) SLUICE_RETURN_IF_ERROR(CheckOpt());
    return CheckRotation(root_);
  }

  // What some of the family do otherwise, OPT-350m above all.
  absl::Status CheckOpt() {
    uint32_t hidden = 0, projected = 0;
    SLUICE_RETURN_IF_ERROR(ReadCount("hidden_size", hidden));
    projected = hidden;
    SLUICE_RETURN_IF_ERROR(ReadCount("word_embed_proj_dim", projected));
    if (projected != hidden) {
      return absl::UnimplementedError(absl::StrFormat(
          "%s: word_embed_proj_dim is %d and hidden_size %d: Sluice does not project embeddings; "
          "take an OPT model other than 350m",
          path_, projected, hidden));
    }
    struct Flag {
      const char* key;
      bool value;  // that Sluice implements, and the default
    };
    for (const Flag& flag :
         {Flag{"do_layer_norm_before", true}, Flag{"enable_bias", true},
          Flag{"layer_norm_elementwise_affine", true}, Flag{"_remove_final_layer_norm", false}}) {
      bool value = flag.value;
      SLUICE_RETURN_IF_ERROR(ReadMember(root_, flag.key, path_, value));
      if (value == flag.value) continue;
      return absl::UnimplementedError(
          absl::StrFormat("%s: %s is %s, which Sluice does not implement; OPT models other than "
                          "350m have it otherwise",
                          path_, flag.key, value ? "true" : "false"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckRotation(const json& object) {
    SLUICE_RETURN_IF_ERROR(ReadNumber(object, "partial_rotary_factor", rotated_));
    if (model_type_ == "nemotron" && rotated_ > 0.0f && rotated_ <= 1.0f) return absl::OkStatus();
    if (rotated_ == 1.0f) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrFormat(
        "%s: partial_rotary_factor is %g; Sluice rotates whole heads", path_, rotated_));
  }

  absl::Status ReadDimensions() {
    SLUICE_RETURN_IF_ERROR(NeedCount("hidden_size", c_.d_model));
    SLUICE_RETURN_IF_ERROR(NeedCount(is_opt() ? "ffn_dim" : "intermediate_size", c_.d_ff));
    SLUICE_RETURN_IF_ERROR(NeedCount("num_hidden_layers", c_.n_layers));
    SLUICE_RETURN_IF_ERROR(NeedCount("num_attention_heads", c_.n_heads));
    SLUICE_RETURN_IF_ERROR(NeedCount("max_position_embeddings", c_.context_length));
    if (c_.n_heads == 0) return Bad("num_attention_heads is 0");
    c_.n_kv_heads = c_.n_heads;
    if (model_type_ == "llama" || !c_.gated) {
      SLUICE_RETURN_IF_ERROR(ReadCount("num_key_value_heads", c_.n_kv_heads));
    } else {
      SLUICE_RETURN_IF_ERROR(NeedCount("num_key_value_heads", c_.n_kv_heads));
    }
    c_.head_dim = c_.d_model / c_.n_heads;
    SLUICE_RETURN_IF_ERROR(ReadCount("head_dim", c_.head_dim));
    SLUICE_RETURN_IF_ERROR(ReadCount("vocab_size", c_.vocab_size));
    // What the types take when the file does not say; OPT never says.
    c_.norm_epsilon = c_.gated ? 1e-6f : 1e-5f;
    const char* epsilon = c_.norm == NormKind::kLayer ? "norm_eps" : "rms_norm_eps";
    if (!is_opt()) SLUICE_RETURN_IF_ERROR(ReadNumber(root_, epsilon, c_.norm_epsilon));
    if (!c_.gated && !is_opt()) SLUICE_RETURN_IF_ERROR(ReadBiases());
    c_.tied_head = is_opt();
    return ReadMember(root_, "tie_word_embeddings", path_, c_.tied_head);
  }

  absl::Status ReadBiases() {
    SLUICE_RETURN_IF_ERROR(ReadMember(root_, "attention_bias", path_, c_.qkv_bias));
    c_.o_bias = c_.qkv_bias;
    return ReadMember(root_, "mlp_bias", path_, c_.ffn_bias);
  }

  absl::Status ReadActivation(const ImportOptions& options) {
    const char* key = is_opt() ? "activation_function" : "hidden_act";
    std::string name;
    SLUICE_RETURN_IF_ERROR(ReadMember(root_, key, path_, name));
    if (name == "swish") name = "silu";  // two names of one function
    std::optional<Activation> stated = implied_activation_;
    // The flag overrides a name that is not known as well.
    if (!name.empty() && !options.activation) {
      const absl::StatusOr<Activation> activation = ParseActivation(name);
      SLUICE_RETURN_IF_ERROR(Annotate(activation.status(), absl::StrCat(path_, ": ", key)));
      stated = *activation;
      if (model_type_ == "bamboo") {
        SLUICE_ASSIGN_OR_RETURN(stated, ApplyTwice(*activation));
      }
    }
    std::optional<float> threshold;
    if (FindMember(root_, "hidden_act_param") != nullptr) {
      threshold = 0.0f;
      SLUICE_RETURN_IF_ERROR(ReadNumber(root_, "hidden_act_param", *threshold));
    }
    return Annotate(SettleActivation(options, stated, threshold, c_), path_);
  }

  // Bamboo's code applies the activation to gate and up.
  absl::StatusOr<Activation> ApplyTwice(Activation activation) const {
    if (activation == Activation::kRelu || activation == Activation::kDRelu) {
      return Activation::kDRelu;
    }
    return absl::UnimplementedError(absl::StrFormat(
        "%s: hidden_act is %s, and a bamboo model applies it to gate and up; Sluice "
        "implements that for relu",
        path_, ActivationName(activation)));
  }

  // rope_theta and rope_scaling, or both in rope_parameters (newer files).
  absl::Status ReadRope() {
    SLUICE_RETURN_IF_ERROR(ReadNumber(root_, "rope_theta", c_.rope_base));
    std::string type;
    const json* scaling = nullptr;  // the object that gives the type
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
      const json* object = FindMember(root_, key);
      if (object == nullptr || c_.learned_positions) continue;
      SLUICE_RETURN_IF_ERROR(CheckRopeObject(key, *object));
      if (key == std::string_view("rope_parameters")) {
        SLUICE_RETURN_IF_ERROR(ReadNumber(*object, "rope_theta", c_.rope_base));
      }
      if (!type.empty()) continue;
      SLUICE_ASSIGN_OR_RETURN(type, RopeType(*object));
      scaling = object;
    }
    const double rotated = c_.learned_positions ? 0.0 : static_cast<double>(rotated_);
    c_.unrotated = c_.head_dim - static_cast<uint32_t>(rotated * c_.head_dim);
    // Bounds what the divisors of a damaged file may take; the vocabulary is settled later.
    ModelConfig bounded = c_;
    if (bounded.vocab_size == 0) bounded.vocab_size = 1;
    SLUICE_RETURN_IF_ERROR(Annotate(ValidateConfig(bounded), path_));
    if (type.empty() || type == "default") return absl::OkStatus();
    if (type == "linear") return ReadLinear(*scaling);
    if (type == "llama3") return ReadLlama3(*scaling);
    return Annotate(UnsupportedRopeScaling(type), path_);
  }

  // Refuses what would be passed over in silence.
  absl::Status CheckRopeObject(const char* key, const json& object) {
    if (!object.is_object()) return WrongJson(path_, key, object, "an object");
    SLUICE_RETURN_IF_ERROR(CheckRotation(object));
    for (const auto& [name, value] : object.items()) {
      if (!value.is_object()) continue;
      return absl::UnimplementedError(absl::StrFormat(
          "%s: %s gives \"%s\" a rotation of its own; Sluice rotates all layers alike", path_, key,
          name));
    }
    SLUICE_ASSIGN_OR_RETURN(const std::string type, RopeType(object));
    if (!type.empty() || FindMember(object, "factor") == nullptr) return absl::OkStatus();
    return Bad(absl::StrFormat("%s has a factor but no rope_type", key));
  }

  // "" if the object does not say.
  absl::StatusOr<std::string> RopeType(const json& object) {
    std::string type;
    SLUICE_RETURN_IF_ERROR(ReadMember(object, "type", path_, type));  // the older name
    SLUICE_RETURN_IF_ERROR(ReadMember(object, "rope_type", path_, type));
    return type;
  }

  absl::Status ReadLinear(const json& scaling) {
    float factor = 0.0f;
    SLUICE_RETURN_IF_ERROR(ReadNumber(scaling, "factor", factor));
    absl::StatusOr<std::vector<float>> divisors = LinearRopeDivisors(factor, c_.rope_dim());
    SLUICE_RETURN_IF_ERROR(Annotate(divisors.status(), path_));
    out_.rope_divisors = *std::move(divisors);
    return absl::OkStatus();
  }

  absl::Status ReadLlama3(const json& scaling) {
    float factor = 0, low = 0, high = 0, original = 0;
    SLUICE_RETURN_IF_ERROR(ReadNumber(scaling, "factor", factor));
    SLUICE_RETURN_IF_ERROR(ReadNumber(scaling, "low_freq_factor", low));
    SLUICE_RETURN_IF_ERROR(ReadNumber(scaling, "high_freq_factor", high));
    SLUICE_RETURN_IF_ERROR(ReadNumber(scaling, "original_max_position_embeddings", original));
    if (!(factor >= 1 && factor < 1e6f && low > 0 && high > low && high < 1e6f && original >= 1 &&
          original < 1e9f)) {
      return Bad(
          "rope_scaling of type llama3 needs factor >= 1, 0 < low_freq_factor < high_freq_factor "
          "and original_max_position_embeddings >= 1");
    }
    out_.rope_divisors =
        Llama3RopeDivisors({factor, low, high, original}, c_.rope_base, c_.rope_dim());
    return absl::OkStatus();
  }

  absl::Status ReadWindow() {
    // Qwen2 files name a window but mostly switch it off.
    bool used = model_type_ == "mistral" || model_type_ == "bamboo";
    SLUICE_RETURN_IF_ERROR(ReadMember(root_, "use_sliding_window", path_, used));
    uint32_t window = 0;
    SLUICE_RETURN_IF_ERROR(ReadCount("sliding_window", window));
    if (!used) return absl::OkStatus();
    if (auto note = LimitContextToWindow(window, c_)) out_.warnings.push_back(*std::move(note));
    return absl::OkStatus();
  }

  // Absent members leave `value` as it is.
  absl::Status ReadCount(const char* key, uint32_t& value) {
    const json* member = FindMember(root_, key);
    if (member == nullptr) return absl::OkStatus();
    if (!member->is_number_unsigned() || member->get<uint64_t>() > UINT32_MAX) {
      return Bad(absl::StrFormat("%s is not a count that fits 32 bits", key));
    }
    value = member->get<uint32_t>();
    return absl::OkStatus();
  }
  absl::Status NeedCount(const char* key, uint32_t& value) {
    if (FindMember(root_, key) == nullptr) return Bad(absl::StrCat(key, " is missing"));
    return ReadCount(key, value);
  }
  absl::Status ReadNumber(const json& object, const char* key, float& value) {
    const json* member = FindMember(object, key);
    if (member == nullptr) return absl::OkStatus();
    if (!member->is_number()) return WrongJson(path_, key, *member, "a number");
    value = static_cast<float>(member->get<double>());
    return absl::OkStatus();
  }

  absl::Status Bad(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s", path_, what));
  }

  const json& root_;
  const std::string& path_;
  std::string model_type_;
  std::optional<Activation> implied_activation_;
  float rotated_ = 1.0f;  // share of a head that RoPE turns
  HfConfig out_;
  ModelConfig& c_ = out_.model;
};

}  // namespace

absl::StatusOr<HfConfig> ParseHfConfig(std::string_view text, const std::string& path,
                                       const ImportOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, path));
  return ConfigReader(root, path).Read(options);
}

std::vector<float> Llama3RopeDivisors(const Llama3Scaling& s, double rope_base, uint32_t rope_dim) {
  std::vector<float> divisors;
  for (uint32_t i = 0; i < rope_dim / 2; ++i) {
    const double wavelength =
        2.0 * std::numbers::pi * std::pow(rope_base, 2.0 * i / static_cast<double>(rope_dim));
    const double turns = s.original_context / wavelength;
    double divisor = s.factor;
    if (turns > s.high_freq_factor) {
      divisor = 1.0;
    } else if (turns >= s.low_freq_factor) {
      const double share = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
      divisor = 1.0 / ((1.0 - share) / s.factor + share);
    }
    divisors.push_back(static_cast<float>(divisor));
  }
  return divisors;
}

}  // namespace sluice
