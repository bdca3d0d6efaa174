#include "layout/imported_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "io/status.h"
#include "layout/printable.h"
#include "layout/sluice_format.h"

namespace sluice {
namespace {

struct ExpectedTensor {
  std::string name;
  std::vector<uint64_t> shape;
};

// Every tensor that a model of this config has; rope_freqs.weight aside, all are needed.
std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& c) {
  const uint64_t d = c.d_model, ff = c.d_ff, q = c.q_dim(), kv = c.kv_dim(), v = c.vocab_size;
  const bool layer_norm = c.norm == NormKind::kLayer;
  std::vector<ExpectedTensor> out = {{"token_embd.weight", {v, d}}, {"output_norm.weight", {d}}};
  if (layer_norm) out.push_back({"output_norm.bias", {d}});
  if (c.learned_positions) out.push_back({kPositions, {c.context_length, d}});
  if (!c.tied_head) out.push_back({"output.weight", {v, d}});
  for (uint32_t layer = 0; layer < c.n_layers; ++layer) {
    const auto add = [&](std::string_view part, std::vector<uint64_t> shape) {
      out.push_back({absl::StrFormat("blk.%d.%s", layer, part), std::move(shape)});
    };
    add("attn_norm.weight", {d});
    add("attn_q.weight", {q, d});
    add("attn_k.weight", {kv, d});
    add("attn_v.weight", {kv, d});
    add("attn_output.weight", {d, q});
    if (c.qkv_bias) {
      add("attn_q.bias", {q});
      add("attn_k.bias", {kv});
      add("attn_v.bias", {kv});
    }
    if (c.o_bias) add("attn_output.bias", {d});
    add("ffn_norm.weight", {d});
    if (layer_norm) {
      add("attn_norm.bias", {d});
      add("ffn_norm.bias", {d});
    }
    if (c.gated) add("ffn_gate.weight", {ff, d});
    add("ffn_up.weight", {ff, d});
    add("ffn_down.weight", {d, ff});
    if (c.ffn_bias) {
      add("ffn_up.bias", {ff});
      add("ffn_down.bias", {d});
    }
  }
  return out;
}

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Why a tensor that is not in the table matters, as far as its name tells.
std::string_view WhyUnexpected(std::string_view name) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (has("_exps") || has("_shexp") || has("gate_inp")) {
    return "it belongs to a mixture of experts, which Sluice does not run";
  }
  if (has("q_norm") || has("k_norm")) return "Sluice has no normalisation of queries and keys";
  if (has("bias")) return "Sluice knows no such bias in this architecture";
  return "a decoder of this architecture has no such tensor, and leaving it out would change the "
         "text";
}

}  // namespace

void ImportedSource::AddTensor(SourceTensor tensor) {
  index_.emplace(tensor.name, tensors_.size());
  tensors_.push_back(std::move(tensor));
}

const SourceTensor* ImportedSource::Find(std::string_view name) const {
  const auto it = index_.find(ToAbsl(name));
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

absl::Status ImportedSource::ReadTensor(const SourceTensor& tensor, uint64_t offset,
                                        std::span<std::byte> dst) const {
  const auto it = index_.find(tensor.name);
  if (it == index_.end()) {
    return absl::NotFoundError(absl::StrFormat("%s: has no tensor \"%s\"", path_, tensor.name));
  }
  const auto outside = [&] {
    return absl::OutOfRangeError(
        absl::StrFormat("%s: read outside tensor \"%s\"", path_, tensor.name));
  };
  const auto computed = computed_.find(tensor.name);
  if (computed == computed_.end()) {
    const uint64_t skipped = tensor.name == kPositions ? skipped_positions_ : 0;
    return offset <= UINT64_MAX - skipped ? ReadStored(it->second, offset + skipped, dst)
                                          : outside();
  }
  const auto bytes = std::as_bytes(std::span(computed->second));
  if (offset > bytes.size() || dst.size() > bytes.size() - offset) return outside();
  std::memcpy(dst.data(), bytes.data() + offset, dst.size());
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> ImportedSource::EmbeddingRows() const {
  const SourceTensor* embedding = Find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2 || embedding->shape[0] > UINT32_MAX) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: has no matrix %s; is this a whole model and not a vocabulary or an adapter?", path_,
        StoredName("token_embd.weight")));
  }
  return static_cast<uint32_t>(embedding->shape[0]);
}

absl::StatusOr<std::vector<float>> ImportedSource::ReadAsFloats(const SourceTensor& tensor) const {
  const std::optional<uint64_t> bytes = SourceTensorBytes(tensor.type, tensor.shape);
  if (!bytes || *bytes > (1u << 20)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: tensor \"%s\" has the unexpected shape %s", path_, tensor.name,
                        ShapeText(tensor.shape)));
  }
  std::vector<std::byte> raw(*bytes);
  SLUICE_RETURN_IF_ERROR(ReadTensor(tensor, 0, raw));
  std::vector<float> values(raw.size() / BlockBytes(tensor.type) * BlockElements(tensor.type));
  DecodeSource(tensor.type, raw, values);
  return values;
}

absl::Status ImportedSource::SetRopeDivisors(std::vector<float> divisors) {
  if (const SourceTensor* stored = Find(kRopeFreqs)) {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<float> factors, ReadAsFloats(*stored));
    if (divisors.empty()) divisors.assign(factors.size(), 1.0f);
    const uint32_t pairs = config_.rope_dim() / 2;
    if (factors.size() != pairs || divisors.size() != factors.size()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: tensor \"%s\" has %d elements, expected %d (one for each pair of a "
                          "head that RoPE turns)",
                          path_, kRopeFreqs, factors.size(), pairs));
    }
    for (size_t i = 0; i < factors.size(); ++i) divisors[i] *= factors[i];
  }
  if (divisors.empty()) return absl::OkStatus();
  for (const float f : divisors) {
    if (!(std::isfinite(f) && f > 0.0f)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: a RoPE divisor is %g; it must be finite and above 0", path_, f));
    }
  }
  SetComputed(kRopeFreqs, std::move(divisors));
  return absl::OkStatus();
}

void ImportedSource::SetComputed(const std::string& name, std::vector<float> values) {
  const SourceTensor tensor{name, SourceType::kF32, {values.size()}};
  if (const auto it = index_.find(name); it != index_.end()) {
    tensors_[it->second] = tensor;
  } else {
    AddTensor(tensor);
  }
  computed_[name] = std::move(values);
}

void ImportedSource::DropPaddingPositions() {
  SourceTensor& tensor = tensors_[index_.at(kPositions)];
  tensor.shape[0] -= kPaddingPositions;
  skipped_positions_ =
      SourceTensorBytes(tensor.type, {{kPaddingPositions, tensor.shape[1]}}).value();
}

absl::Status ImportedSource::AddOneToNorms() {
  std::vector<std::string> names;
  for (const SourceTensor& t : tensors_) {
    if (std::string_view(t.name).ends_with("norm.weight")) names.push_back(t.name);
  }
  for (const std::string& name : names) {
    SLUICE_ASSIGN_OR_RETURN(std::vector<float> values, ReadAsFloats(*Find(name)));
    for (float& v : values) v += 1.0f;
    SetComputed(name, std::move(values));
  }
  return absl::OkStatus();
}

absl::Status ImportedSource::Check() {
  config_.name = Printable(config_.name, kMaxNameBytes);
  for (std::string& warning : warnings_) warning = Printable(warning);
  SLUICE_RETURN_IF_ERROR(Annotate(ValidateConfig(config_), path_));
  SLUICE_RETURN_IF_ERROR(Annotate(ValidateTokenizer(tokenizer_), path_));
  SLUICE_RETURN_IF_ERROR(CheckTokenCount(tokenizer_.tokens.size()));
  SLUICE_RETURN_IF_ERROR(FindPredictors());
  return CheckTensors();
}

absl::Status ImportedSource::CheckTokenCount(size_t n_tokens) const {
  if (n_tokens == config_.vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: the tokenizer has %d tokens, but token_embd.weight has %d rows", path_,
                      n_tokens, config_.vocab_size));
}

// What predictors there are; their ranks may differ from layer to layer, but all layers have some.
absl::Status ImportedSource::FindPredictors() {
  std::string found, missing;
  SourcePredictors predictors;
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    for (const char* part : {"fc1", "fc2"}) {
      const std::string name = absl::StrFormat("blk.%d.%s.weight", layer, part);
      (Find(name) != nullptr ? found : missing) = name;
    }
    const SourceTensor* fc1 = Find(absl::StrFormat("blk.%d.fc1.weight", layer));
    if (fc1 == nullptr) continue;
    const uint64_t rank = fc1->shape.empty() ? 0 : fc1->shape[0];  // CheckTensors sees the rest
    if (rank == 0 || rank > kMaxRank) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: tensor \"%s\" makes a predictor of rank %d; Sluice runs 1 to %d",
                          path_, StoredName(fc1->name), rank, kMaxRank));
    }
    predictors.ranks.push_back(static_cast<uint32_t>(rank));
  }
  if (found.empty()) return absl::OkStatus();
  if (!missing.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: tensor \"%s\" is missing, but \"%s\" is there: a model has a predictor in every layer "
        "or in none; take these tensors out and make predictors with sluice train",
        path_, StoredName(missing), StoredName(found)));
  }
  if (!std::isfinite(predictor_threshold_)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: the threshold of the predictors is %g; it must be a finite number",
                        path_, predictor_threshold_));
  }
  // What PowerInfer and Bamboo feed theirs.
  predictors.record.input = PredictorInput::kResidual;
  predictors.record.thresholds.assign(config_.n_layers, predictor_threshold_);
  predictors_ = std::move(predictors);
  return absl::OkStatus();
}

absl::Status ImportedSource::CheckTensors() const {
  std::vector<ExpectedTensor> expected = ExpectedTensors(config_);
  for (uint32_t layer = 0; layer < config_.n_layers && predictors_; ++layer) {
    const uint64_t rank = predictors_->ranks[layer];
    expected.push_back({absl::StrFormat("blk.%d.fc1.weight", layer), {rank, config_.d_model}});
    expected.push_back({absl::StrFormat("blk.%d.fc2.weight", layer), {config_.d_ff, rank}});
  }
  for (ExpectedTensor& e : expected) {
    if (!std::string_view(e.name).ends_with(".ffn_down.weight")) continue;
    const std::string turned = absl::StrReplaceAll(e.name, {{"ffn_down", "ffn_down_t"}});
    if (Find(turned) == nullptr) continue;
    if (Find(e.name) != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: has both \"%s\" and \"%s\", which are one matrix; which of the two "
                          "holds cannot be told: convert the model again",
                          path_, e.name, turned));
    }
    e = {turned, {config_.d_ff, config_.d_model}};
  }
  for (const ExpectedTensor& e : expected) {
    const SourceTensor* tensor = Find(e.name);
    if (tensor == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: tensor \"%s\" is missing; the file does not hold the whole model",
                          path_, StoredName(e.name)));
    }
    if (tensor->shape != e.shape) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: tensor \"%s\" has shape %s, but the config asks for %s", path_,
                          StoredName(e.name), ShapeText(tensor->shape), ShapeText(e.shape)));
    }
  }
  absl::flat_hash_set<absl::string_view> known = {kRopeFreqs};
  for (const ExpectedTensor& e : expected) known.insert(e.name);
  for (const SourceTensor& tensor : tensors_) {
    if (!known.contains(tensor.name)) {
      return absl::UnimplementedError(absl::StrFormat("%s: unexpected tensor \"%s\": %s", path_,
                                                      StoredName(tensor.name),
                                                      WhyUnexpected(tensor.name)));
    }
  }
  return absl::OkStatus();
}

std::optional<Activation> ApplyArchitecture(ModelConfig& c) {
  c.gated = c.architecture != "opt" && c.architecture != "nemotron" && c.architecture != "arcee";
  if (c.architecture == "bamboo") return Activation::kDRelu;
  if (c.gated) return std::nullopt;
  if (c.architecture == "arcee") return Activation::kRelu2;
  c.norm = NormKind::kLayer;
  if (c.architecture == "nemotron") return Activation::kRelu2;
  c.learned_positions = c.qkv_bias = c.o_bias = c.ffn_bias = true;
  return Activation::kRelu;
}

absl::Status SettleActivation(const ImportOptions& options, std::optional<Activation> stated,
                              std::optional<float> threshold, ModelConfig& config) {
  if (options.activation) {
    config.activation = *options.activation;
    config.activation_origin = ActivationOrigin::kFlag;
  } else if (stated) {
    config.activation = *stated;
    config.activation_origin = ActivationOrigin::kMetadata;
  } else {
    config.activation = Activation::kSilu;
    config.activation_origin = ActivationOrigin::kAssumed;
  }
  if (config.activation != Activation::kFatRelu) {
    if (!options.activation_threshold) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrFormat(
        "an activation threshold was given, but the activation is %s; only fatrelu has one",
        ActivationName(config.activation)));
  }
  if (options.activation_threshold) threshold = options.activation_threshold;
  if (!threshold) {
    return absl::InvalidArgumentError(
        "the activation is fatrelu, but neither the model nor a flag gives its threshold");
  }
  config.activation_threshold = *threshold;
  return absl::OkStatus();
}

std::optional<std::string> LimitContextToWindow(uint32_t window, ModelConfig& config) {
  config.attention_window = window;
  if (window == 0 || window >= config.context_length) return std::nullopt;
  const uint32_t trained = std::exchange(config.context_length, window);
  return absl::StrFormat(
      "the model attends to a sliding window of %d tokens, which Sluice does not implement; the "
      "context is limited to that (trained: %d)",
      window, trained);
}

absl::StatusOr<std::vector<float>> LinearRopeDivisors(double factor, uint32_t rope_dim) {
  if (!(factor > 0.0 && factor < 1e6)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the factor of linear RoPE scaling is %g; it must be in 0..1e6", factor));
  }
  if (factor == 1.0) return std::vector<float>();
  return std::vector<float>(rope_dim / 2, static_cast<float>(factor));
}

absl::Status UnsupportedRopeScaling(std::string_view kind) {
  return absl::UnimplementedError(absl::StrFormat(
      "RoPE scaling of type \"%s\" is not supported (linear and llama3 are); convert the model "
      "without RoPE scaling to run it up to its original context length",
      kind));
}

}  // namespace sluice
