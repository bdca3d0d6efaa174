#include "layout/gguf_source.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "io/status.h"
#include "layout/gguf.h"
#include "layout/imported_source.h"
#include "layout/tokenizer_import.h"

namespace sluice {
namespace {

// Typed access to the keys of one architecture.
class ArchKeys {
 public:
  ArchKeys(const GgufFile& file, std::string arch) : file_(file), arch_(std::move(arch)) {}

  std::string Key(std::string_view name) const { return absl::StrFormat("%s.%s", arch_, name); }
  bool Has(std::string_view name) const { return file_.Has(Key(name)); }

  // A value that must be there. Some files store one value a layer; they must all be equal.
  absl::Status Read(std::string_view name, uint32_t& out) const {
    const std::string key = Key(name);
    absl::StatusOr<uint64_t> value = file_.GetUint(key);
    if (!value.ok() && !absl::IsNotFound(value.status())) value = UniformValue(key, value.status());
    if (!value.ok()) return value.status();
    if (*value > UINT32_MAX) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: metadata \"%s\" is %d, far too large", file_.path(), key, *value));
    }
    out = static_cast<uint32_t>(*value);
    return absl::OkStatus();
  }
  // `out` keeps its value where the key is absent.
  absl::Status ReadOptional(std::string_view name, uint32_t& out) const {
    return Has(name) ? Read(name, out) : absl::OkStatus();
  }
  absl::Status Read(std::string_view name, float& out) const {
    SLUICE_ASSIGN_OR_RETURN(const double value, file_.GetFloat(Key(name)));
    out = static_cast<float>(value);
    return absl::OkStatus();
  }
  absl::Status ReadOptional(std::string_view name, float& out) const {
    return Has(name) ? Read(name, out) : absl::OkStatus();
  }

 private:
  absl::StatusOr<uint64_t> UniformValue(const std::string& key, const absl::Status& scalar) const {
    const absl::StatusOr<std::vector<int64_t>> values = file_.GetIntArray(key);
    if (!values.ok() || values->empty() || values->front() < 0) return scalar;
    if (std::adjacent_find(values->begin(), values->end(), std::not_equal_to<>()) !=
        values->end()) {
      return absl::UnimplementedError(absl::StrFormat(
          "%s: metadata \"%s\" differs from layer to layer; Sluice runs models of equal layers",
          file_.path(), key));
    }
    return static_cast<uint64_t>(values->front());
  }

  const GgufFile& file_;
  std::string arch_;
};

class GgufSource : public ImportedSource {
 public:
  GgufSource(std::string path, std::unique_ptr<GgufFile> file)
      : ImportedSource(std::move(path)), file_(std::move(file)) {}

  std::vector<std::string> files() const override { return file_->files(); }

  absl::Status Import(const ImportOptions& options) {
    SLUICE_ASSIGN_OR_RETURN(config_.architecture, file_->GetString("general.architecture"));
    SLUICE_RETURN_IF_ERROR(CheckArchitecture());
    if (file_->Has("general.name")) {
      SLUICE_ASSIGN_OR_RETURN(config_.name, file_->GetString("general.name"));
    }
    const ArchKeys keys(*file_, config_.architecture);
    SLUICE_RETURN_IF_ERROR(CheckForeignKeys(keys));
    SLUICE_RETURN_IF_ERROR(ReadDimensions(keys));
    SLUICE_RETURN_IF_ERROR(ReadActivation(options));
    SLUICE_RETURN_IF_ERROR(ListTensors());
    SLUICE_RETURN_IF_ERROR(ReadPredictorThreshold());
    PlacePositions();
    SLUICE_RETURN_IF_ERROR(ReadVocabulary(keys));
    SLUICE_RETURN_IF_ERROR(ReadRope(keys));
    return Check();
  }

 private:
  absl::Status CheckArchitecture() {
    for (const char* known : {"llama", "qwen2", "bamboo", "opt", "nemotron", "arcee"}) {
      if (config_.architecture != known) continue;
      implied_activation_ = ApplyArchitecture(config_);
      return absl::OkStatus();
    }
    return absl::UnimplementedError(absl::StrFormat(
        "%s: the architecture is \"%s\"; Sluice runs llama, qwen2, bamboo, opt, nemotron and arcee",
        path_, config_.architecture));
  }

  // Keys of relatives of the Llama family that change the computation, with the value that does
  // not.
  absl::Status CheckForeignKeys(const ArchKeys& keys) const {
    struct Neutral {
      std::string_view name;
      float value;
    };
    static constexpr Neutral kNeutral[] = {
        {"expert_count", 0.0f},
        {"embedding_scale", 1.0f},
        {"residual_scale", 1.0f},
        {"logit_scale", 1.0f},
        {"attention.scale", 0.0f},
        {"attention.clamp_kqv", 0.0f},
        {"attention.max_alibi_bias", 0.0f},
        {"attn_logit_softcapping", 0.0f},
        {"final_logit_softcapping", 0.0f},
        {"rope.scaling.attn_factor", 1.0f},
    };
    for (const Neutral& n : kNeutral) {
      float value = n.value;
      SLUICE_RETURN_IF_ERROR(keys.ReadOptional(n.name, value));
      if (value != n.value && value != 0.0f) {
        return absl::UnimplementedError(absl::StrFormat(
            "%s: metadata \"%s\" is %g; Sluice does not implement it (a mixture of experts or "
            "another relative of the Llama family)",
            path_, keys.Key(n.name), value));
      }
    }
    SLUICE_RETURN_IF_ERROR(CheckForeignFlag(keys.Key("attention.causal"), true));
    return CheckForeignFlag(keys.Key("use_parallel_residual"), false);
  }

  absl::Status CheckForeignFlag(const std::string& key, bool neutral) const {
    if (!file_->Has(key)) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(const bool value, file_->GetBool(key));
    if (value == neutral) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrFormat("%s: metadata \"%s\" is %s; Sluice does not implement it", path_, key,
                        value ? "true" : "false"));
  }

  absl::Status ReadDimensions(const ArchKeys& keys) {
    SLUICE_RETURN_IF_ERROR(keys.Read("block_count", config_.n_layers));
    SLUICE_RETURN_IF_ERROR(keys.Read("embedding_length", config_.d_model));
    SLUICE_RETURN_IF_ERROR(keys.Read("feed_forward_length", config_.d_ff));
    SLUICE_RETURN_IF_ERROR(keys.Read("context_length", config_.context_length));
    SLUICE_RETURN_IF_ERROR(keys.Read("attention.head_count", config_.n_heads));
    config_.n_kv_heads = config_.n_heads;
    SLUICE_RETURN_IF_ERROR(keys.ReadOptional("attention.head_count_kv", config_.n_kv_heads));
    if (config_.n_heads == 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: metadata \"%s\" is 0", path_, keys.Key("attention.head_count")));
    }
    config_.head_dim = config_.d_model / config_.n_heads;
    SLUICE_RETURN_IF_ERROR(keys.ReadOptional("attention.key_length", config_.head_dim));
    uint32_t value_length = config_.head_dim;
    SLUICE_RETURN_IF_ERROR(keys.ReadOptional("attention.value_length", value_length));
    if (value_length != config_.head_dim) {
      return absl::UnimplementedError(absl::StrFormat(
          "%s: keys of %d and values of %d elements a head; Sluice needs them equal", path_,
          config_.head_dim, value_length));
    }
    if (config_.norm == NormKind::kRms) {
      SLUICE_RETURN_IF_ERROR(keys.Read("attention.layer_norm_rms_epsilon", config_.norm_epsilon));
    } else {  // 1e-5 in all of them; PowerInfer's converter does not say
      SLUICE_RETURN_IF_ERROR(
          keys.ReadOptional("attention.layer_norm_epsilon", config_.norm_epsilon));
    }
    uint32_t window = 0;
    SLUICE_RETURN_IF_ERROR(keys.ReadOptional("attention.sliding_window", window));
    if (auto note = LimitContextToWindow(window, config_)) warnings_.push_back(*std::move(note));
    return absl::OkStatus();
  }

  absl::Status ReadActivation(const ImportOptions& options) {
    std::optional<Activation> stated = implied_activation_;
    // PowerInfer runs models with ReLU only, and its files do not say that they are.
    const bool predicts =
        file_->is_powerinfer() || file_->FindTensor("blk.0.fc1.weight") != nullptr;
    if (!stated && predicts) stated = Activation::kRelu;
    // The flag overrides a name that is not known as well.
    if (file_->Has(kActivationKey) && !options.activation) {
      SLUICE_ASSIGN_OR_RETURN(const std::string name, file_->GetString(kActivationKey));
      const absl::StatusOr<Activation> activation = ParseActivation(name);
      SLUICE_RETURN_IF_ERROR(
          Annotate(activation.status(), absl::StrCat(path_, ": ", kActivationKey)));
      stated = *activation;
    }
    std::optional<float> threshold;
    if (file_->Has(kActivationThresholdKey)) {
      SLUICE_ASSIGN_OR_RETURN(const double value, file_->GetFloat(kActivationThresholdKey));
      threshold = static_cast<float>(value);
    }
    return Annotate(SettleActivation(options, stated, threshold, config_), path_);
  }

  absl::Status ListTensors() {
    for (const GgufTensor& t : file_->tensors()) {
      std::string name = t.name;
      // PowerInfer turns the matrix, and its bias gets the name too.
      if (name.ends_with(".ffn_down_t.bias")) {
        name = absl::StrReplaceAll(name, {{"ffn_down_t", "ffn_down"}});
        turned_down_ = true;
      }
      if (Find(name) != nullptr) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s: has both \"%s\" and \"%s\": convert the model again", path_, name, t.name));
      }
      AddTensor({std::move(name), t.type, t.shape});
    }
    NoteTensors();
    return absl::OkStatus();
  }

  // What tensors say of the config.
  void NoteTensors() {
    bool interleaved = false;
    for (const char* name : {"llama", "bamboo", "arcee"}) {
      interleaved = interleaved || config_.architecture == name;
    }
    config_.rope_style = interleaved ? RopeStyle::kInterleaved : RopeStyle::kHalf;
    config_.tied_head = Find("output.weight") == nullptr;
    if (config_.architecture == "opt") return;  // always with biases
    config_.qkv_bias = Find("blk.0.attn_q.bias") != nullptr;
    if (config_.gated) return;  // never with others
    config_.o_bias = Find("blk.0.attn_output.bias") != nullptr;
    config_.ffn_bias = Find("blk.0.ffn_up.bias") != nullptr;
  }

  absl::Status ReadPredictorThreshold() {
    constexpr char kThreshold[] = "powerinfer.sparse_threshold";
    if (!file_->Has(kThreshold)) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(const double value, file_->GetFloat(kThreshold));
    predictor_threshold_ = static_cast<float>(value);
    return absl::OkStatus();
  }

  std::string StoredName(const std::string& name) const override {
    if (!turned_down_ || !name.ends_with(".ffn_down.bias")) return name;
    return absl::StrReplaceAll(name, {{"ffn_down", "ffn_down_t"}});
  }

  // See the header. Check() says what does not fit.
  void PlacePositions() {
    constexpr uint32_t kPowerInferContext = 2048 + kPaddingPositions;
    const SourceTensor* positions = Find(kPositions);
    if (!config_.learned_positions || positions == nullptr || positions->shape.size() != 2) return;
    uint32_t& context = config_.context_length;
    if (positions->shape[0] == context && context == kPowerInferContext) {
      context -= kPaddingPositions;
    }
    if (positions->shape[0] == uint64_t{context} + kPaddingPositions) DropPaddingPositions();
  }

  absl::Status ReadVocabulary(const ArchKeys& keys) {
    SLUICE_ASSIGN_OR_RETURN(config_.vocab_size, EmbeddingRows());
    uint32_t stated = config_.vocab_size;
    SLUICE_RETURN_IF_ERROR(keys.ReadOptional("vocab_size", stated));
    if (stated != config_.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: metadata \"%s\" is %d, but token_embd.weight has %d rows", path_,
                          keys.Key("vocab_size"), stated, config_.vocab_size));
    }
    // Before anything is made of the tokens: a small file may name a million.
    SLUICE_ASSIGN_OR_RETURN(const auto tokens, file_->GetStringArray("tokenizer.ggml.tokens"));
    SLUICE_RETURN_IF_ERROR(CheckTokenCount(tokens.size()));
    SLUICE_ASSIGN_OR_RETURN(ImportedTokenizer imported, ImportGgufTokenizer(*file_));
    tokenizer_ = std::move(imported.data);
    for (std::string& w : imported.warnings) warnings_.push_back(std::move(w));
    return absl::OkStatus();
  }

  absl::Status ReadRope(const ArchKeys& keys) {
    SLUICE_RETURN_IF_ERROR(keys.ReadOptional("rope.freq_base", config_.rope_base));
    uint32_t rotated = config_.head_dim;
    SLUICE_RETURN_IF_ERROR(keys.ReadOptional("rope.dimension_count", rotated));
    if (config_.learned_positions) rotated = 0;
    const bool in_part = !config_.gated && rotated < config_.head_dim;
    if (rotated != config_.head_dim && !in_part) {
      return absl::UnimplementedError(absl::StrFormat(
          "%s: %d of the %d elements of a head are rotated; Sluice rotates whole heads of this "
          "architecture",
          path_, rotated, config_.head_dim));
    }
    config_.unrotated = config_.head_dim - rotated;
    // Bounds what the divisors of a damaged file may take.
    SLUICE_RETURN_IF_ERROR(Annotate(ValidateConfig(config_), path_));
    SLUICE_ASSIGN_OR_RETURN(const float factor, RopeFactor(keys));
    absl::StatusOr<std::vector<float>> divisors = LinearRopeDivisors(factor, config_.rope_dim());
    SLUICE_RETURN_IF_ERROR(Annotate(divisors.status(), path_));
    return SetRopeDivisors(*std::move(divisors));
  }

  // With llama.cpp's defaults: linear where the type is not given, 1 where the factor is 0.
  absl::StatusOr<float> RopeFactor(const ArchKeys& keys) const {
    std::string type = "linear";
    if (keys.Has("rope.scaling.type")) {
      SLUICE_ASSIGN_OR_RETURN(type, file_->GetString(keys.Key("rope.scaling.type")));
    }
    if (type == "none") return 1.0f;
    if (type != "linear") return Annotate(UnsupportedRopeScaling(type), path_);
    float factor = 0.0f;
    SLUICE_RETURN_IF_ERROR(keys.ReadOptional(
        keys.Has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear", factor));
    return factor == 0.0f ? 1.0f : factor;
  }

  absl::Status ReadStored(size_t index, uint64_t offset, std::span<std::byte> dst) const override {
    return file_->ReadTensor(file_->tensors()[index], offset, dst);
  }

  std::unique_ptr<GgufFile> file_;
  std::optional<Activation> implied_activation_;
  bool turned_down_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ModelSource>> OpenGgufSource(const std::string& path,
                                                            const ImportOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  auto source = std::make_unique<GgufSource>(path, std::move(file));
  SLUICE_RETURN_IF_ERROR(source->Import(options));
  return source;
}

}  // namespace sluice
