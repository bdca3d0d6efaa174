#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/sluice_file.h"
#include "runtime/memory_plan.h"
#include "tools/flags.h"
#include "tools/range_text.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

std::string_view OriginName(ActivationOrigin origin) {
  switch (origin) {
    case ActivationOrigin::kAssumed:
      return "assumed, the source did not say";
    case ActivationOrigin::kMetadata:
      return "from the source";
    case ActivationOrigin::kFlag:
      return "from --activation";
  }
  return "?";
}

struct RoleTotal {
  std::string type;
  uint64_t count = 0, bytes = 0;
  // Of each matrix: predictors have ranks of their own in each layer.
  std::vector<uint32_t> rows, columns;
};

// Null where they differ: "predictors" has the rank of each layer.
Json SizeJson(const std::vector<uint32_t>& sizes) {
  if (std::ranges::min(sizes) < std::ranges::max(sizes)) return nullptr;
  return sizes[0];
}

// An FFN without a gate has its up matrix in that place.
std::string_view RoleName(MatrixRole role, const ModelConfig& config) {
  return role == MatrixRole::kGate && !config.gated ? "up" : MatrixRoleName(role);
}

std::string PositionsText(const ModelConfig& c) {
  if (c.learned_positions) return absl::StrFormat("%u learned positions", c.context_length);
  std::string text =
      absl::StrFormat("%u trained; RoPE base %g, %s", c.context_length, c.rope_base,
                      c.rope_style == RopeStyle::kInterleaved ? "interleaved" : "half");
  if (c.unrotated > 0)
    absl::StrAppendFormat(&text, ", %u of %u of a head", c.rope_dim(), c.head_dim);
  return text;
}

std::map<MatrixRole, RoleTotal> TotalsByRole(const Directory& directory) {
  std::map<MatrixRole, RoleTotal> totals;
  for (const MatrixEntry& m : directory.matrices) {
    RoleTotal& t = totals[m.role];
    t.type = WeightTypeName(m.type);
    t.rows.push_back(m.rows);
    t.columns.push_back(m.columns);
    ++t.count;
    t.bytes += m.n_bytes();
  }
  return totals;
}

std::string_view InputName(PredictorInput input) {
  switch (input) {
    case PredictorInput::kNormed:
      return "normed";
    case PredictorInput::kResidual:
      return "residual";
    case PredictorInput::kPrevious:
      return "previous";
  }
  return "?";
}

// Null if there are none; `fc1` says of which predictors.
Json PredictorsJson(const SluiceFile& file, const PredictorRecord* p, MatrixRole fc1) {
  if (p == nullptr) return nullptr;
  return {{"input", InputName(p->input)},
          {"ranks", file.directory().ranks(fc1)},
          {"thresholds", p->thresholds}};
}

Json HeadPredictorsJson(const SluiceFile& file) {
  const HeadPredictorRecord* p = file.head_predictor();
  if (p == nullptr) return nullptr;
  Json json = PredictorsJson(file, &p->use, MatrixRole::kHeadPredictor1);
  json["label_share"] = p->label_share;
  return json;
}

// Of activations; null if there are none.
Json ThresholdsJson(const SluiceFile& file) {
  if (file.thresholds().empty()) return nullptr;
  return std::vector<float>(file.thresholds().begin(), file.thresholds().end());
}

std::string PredictorsText(const SluiceFile& file, const PredictorRecord* p, MatrixRole fc1) {
  if (p == nullptr) return "none";
  return absl::StrFormat("input %s, rank %s, threshold %s", InputName(p->input),
                         RangeText(file.directory().ranks(fc1)), RangeText(p->thresholds));
}

std::string_view SparsityText(const SluiceFile& file) {
  if (file.config().sparse()) return "neurons at zero are skipped";
  if (file.sparse()) return "no exact zeros: exact mode skips neurons below thresholds";
  return "no exact zeros: every neuron is needed";
}

Json ToJson(const SluiceFile& file, const TokenizerData& tokenizer) {
  const ModelConfig& c = file.config();
  const BundleLayout& b = file.bundles();
  const Provenance& p = file.provenance();
  Json matrices = Json::array();
  for (const auto& [role, t] : TotalsByRole(file.directory())) {
    matrices.push_back({{"role", RoleName(role, c)},
                        {"count", t.count},
                        {"type", t.type},
                        {"rows", SizeJson(t.rows)},
                        {"columns", SizeJson(t.columns)},
                        {"bytes", t.bytes}});
  }
  return {
      {"path", file.path()},
      {"file_bytes", file.file_size()},
      {"format", absl::StrFormat("%u.%u", file.major_version(), file.minor_version())},
      {"model_id", absl::StrFormat("%016x", file.model_id())},
      {"config",
       {{"architecture", c.architecture},
        {"name", c.name},
        {"layers", c.n_layers},
        {"d_model", c.d_model},
        {"d_ff", c.d_ff},
        {"heads", c.n_heads},
        {"kv_heads", c.n_kv_heads},
        {"head_dim", c.head_dim},
        {"vocab_size", c.vocab_size},
        {"context_length", c.context_length},
        {"norm_epsilon", c.norm_epsilon},
        {"rope_base", c.rope_base},
        {"rope_style", c.rope_style == RopeStyle::kInterleaved ? "interleaved" : "half"},
        {"activation", ActivationName(c.activation)},
        {"activation_threshold", c.activation_threshold},
        {"activation_origin", OriginName(c.activation_origin)},
        {"tied_head", c.tied_head},
        {"qkv_bias", c.qkv_bias},
        {"norm", c.norm == NormKind::kRms ? "rms" : "layer"},
        {"gated", c.gated},
        {"o_bias", c.o_bias},
        {"ffn_bias", c.ffn_bias},
        {"learned_positions", c.learned_positions},
        {"rope_dim", c.rope_dim()}}},
      {"matrices", std::move(matrices)},
      {"bundles",
       {{"type", WeightTypeName(b.type)},
        {"block", b.block},
        {"payload_bytes", b.payload_bytes()},
        {"stride", b.stride},
        {"bundles_per_blob", b.bundles_per_blob},
        {"blob_bytes", b.blob_bytes},
        {"blobs_per_layer", b.blobs_per_layer()},
        {"layer_offsets", b.layer_offsets}}},
      {"predictors", PredictorsJson(file, file.predictor(), MatrixRole::kPredictor1)},
      {"head_predictors", HeadPredictorsJson(file)},
      {"thresholds", ThresholdsJson(file)},
      {"tokenizer",
       {{"kind", tokenizer.kind == TokenizerKind::kSentencePiece ? "sentencepiece" : "byte bpe"},
        {"tokens", tokenizer.tokens.size()},
        {"merges", tokenizer.merges.size()},
        {"bos", tokenizer.bos},
        {"eos", tokenizer.eos}}},
      {"provenance",
       {{"source", p.source_name},
        {"source_types", p.source_types},
        {"writer", p.writer},
        {"relative_error",
         {{"resident", p.resident_error},
          {"gate", p.gate_error},
          {"up", p.up_error},
          {"down", p.down_error}}}}}};
}

void Print(const SluiceFile& file, const TokenizerData& tokenizer) {
  const ModelConfig& c = file.config();
  const BundleLayout& b = file.bundles();
  const Provenance& p = file.provenance();
  absl::PrintF("%s: %s, format %u.%u, model %016x\n", file.path(), FormatBytes(file.file_size()),
               file.major_version(), file.minor_version(), file.model_id());
  absl::PrintF(
      "model       %s%s%s: %u layers, width %u, FFN %u, heads %u/%u of %u, vocabulary %u\n",
      c.architecture, c.name.empty() ? "" : " ", c.name, c.n_layers, c.d_model, c.d_ff, c.n_heads,
      c.n_kv_heads, c.head_dim, c.vocab_size);
  absl::PrintF("activation  %s", ActivationName(c.activation));
  if (c.activation == Activation::kFatRelu) absl::PrintF(" at %g", c.activation_threshold);
  absl::PrintF(" (%s); %s%s\n", OriginName(c.activation_origin), SparsityText(file),
               c.gated ? "" : "; no gate: the up rows decide");
  absl::PrintF("context     %s; %s epsilon %g\n", PositionsText(c),
               c.norm == NormKind::kRms ? "norm" : "layer norm", c.norm_epsilon);
  absl::PrintF("head        %s\n", c.tied_head ? "tied to the embedding" : "its own matrix");
  absl::PrintF("tokenizer   %s, %u tokens\n",
               tokenizer.kind == TokenizerKind::kSentencePiece ? "SentencePiece" : "byte-level BPE",
               tokenizer.tokens.size());
  for (const auto& [role, t] : TotalsByRole(file.directory())) {
    absl::PrintF("%-11s %3u x %s x %s %s, %s\n", RoleName(role, c), t.count, RangeText(t.rows),
                 RangeText(t.columns), t.type, FormatBytes(t.bytes));
  }
  absl::PrintF(
      "bundles     %u x %u, %s, %u bytes in a stride of %u, blocks of %u; %u blobs of %s a "
      "layer\n",
      c.n_layers, c.d_ff, WeightTypeName(b.type), b.payload_bytes(), b.stride, b.block,
      b.blobs_per_layer(), FormatBytes(b.blob_bytes));
  absl::PrintF("predictors  %s\n", PredictorsText(file, file.predictor(), MatrixRole::kPredictor1));
  if (const HeadPredictorRecord* h = file.head_predictor(); h != nullptr) {
    absl::PrintF("of heads    %s; for %g of the squared norms\n",
                 PredictorsText(file, &h->use, MatrixRole::kHeadPredictor1), h->label_share);
  }
  if (!file.thresholds().empty()) {
    absl::PrintF("thresholds  |%s(gate)| at least %s\n", ActivationName(c.activation),
                 RangeText(file.thresholds()));
  }
  absl::PrintF("source      %s (%s), written by %s\n", p.source_name, p.source_types, p.writer);
  const std::string gate = c.gated ? absl::StrFormat("gate %.2e, ", p.gate_error) : "";
  absl::PrintF("packing     relative error: resident %.2e, %sup %.2e, down %.2e\n",
               p.resident_error, gate, p.up_error, p.down_error);
}

int RunInspect(const std::string& path, bool json) {
  const auto file = SluiceFile::Open(path);
  if (!file.ok()) return ReportError(file.status());
  const auto tokenizer = (*file)->LoadTokenizer();
  if (!tokenizer.ok()) return ReportError(tokenizer.status());
  if (json) {
    absl::PrintF("%s\n",
                 ToJson(**file, *tokenizer).dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    Print(**file, *tokenizer);
  }
  return kExitOk;
}

}  // namespace

void RegisterInspect(CLI::App& app, std::function<int()>* action) {
  auto path = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  CLI::App* cmd = app.add_subcommand("inspect", "Print what a .sluice file holds");
  cmd->add_option("FILE", *path, "The .sluice file")->required()->check(NotEmpty());
  cmd->add_flag("--json", *json, "One JSON document on stdout");
  cmd->callback([=] { *action = [=] { return RunInspect(*path, *json); }; });
}

}  // namespace sluice
