#include "layout/hf_source.h"

#include <unistd.h>

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/hf_config.h"
#include "layout/imported_source.h"
#include "layout/input_file.h"
#include "layout/safetensors.h"
#include "layout/tokenizer_import.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxConfigBytes = 256 << 10;
constexpr uint64_t kMaxIndexBytes = 16 << 20;
constexpr size_t kMaxShards = 512;  // each keeps a descriptor open
constexpr size_t kMaxTensors = 32768;

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";

struct NamePair {
  std::string_view hf, canonical;
};

constexpr NamePair kGlobalNames[] = {
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"model.norm.bias", "output_norm.bias"},
    {"lm_head.weight", "output.weight"},
};
constexpr NamePair kLayerNames[] = {
    {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"}, {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},       {"mlp.predictor.fc1", "fc1"},
    {"mlp.predictor.fc2", "fc2"},
};
// Some checkpoints have "model." before all of these.
constexpr NamePair kOptGlobalNames[] = {
    {"decoder.embed_tokens.weight", "token_embd.weight"},
    {"decoder.embed_positions.weight", "position_embd.weight"},
    {"decoder.final_layer_norm.weight", "output_norm.weight"},
    {"decoder.final_layer_norm.bias", "output_norm.bias"},
    {"lm_head.weight", "output.weight"},
};
constexpr NamePair kOptLayerNames[] = {
    {"self_attn_layer_norm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.out_proj", "attn_output"},
    {"final_layer_norm", "ffn_norm"},
    {"fc1", "ffn_up"},
    {"fc2", "ffn_down"},
};

// The names of a kind of checkpoint.
struct NameTable {
  NamePair prefix;  // of tensors of layers
  std::span<const NamePair> globals, layers;
};
constexpr NameTable kNames = {{"model.layers.", "blk."}, kGlobalNames, kLayerNames};
constexpr NameTable kOptNames = {{"decoder.layers.", "blk."}, kOptGlobalNames, kOptLayerNames};

// Translates one form of a name into the other: with `to_canonical`
// "model.layers.3.mlp.up_proj.bias" into "blk.3.ffn_up.bias", else back. Unknown names stay, so
// that the check of the table names them as the folder does.
std::string Translate(const NameTable& table, const std::string& name, bool to_canonical) {
  const auto from = [&](const NamePair& n) { return to_canonical ? n.hf : n.canonical; };
  const auto to = [&](const NamePair& n) { return to_canonical ? n.canonical : n.hf; };
  for (const NamePair& n : table.globals) {
    if (name == from(n)) return std::string(to(n));
  }
  const std::string_view text = name;
  const size_t number = from(table.prefix).size();
  const size_t part = text.find('.', number);
  const size_t suffix = text.rfind('.');
  if (!text.starts_with(from(table.prefix)) || part == std::string::npos || suffix <= part) {
    return name;
  }
  for (const NamePair& n : table.layers) {
    if (text.substr(part + 1, suffix - part - 1) == from(n)) {
      return absl::StrFormat("%s%s.%s%s", to(table.prefix), text.substr(number, part - number),
                             to(n), text.substr(suffix));
    }
  }
  return name;
}

class HfSource : public ImportedSource {
 public:
  explicit HfSource(std::string folder) : ImportedSource(std::move(folder)) {}

  absl::Status Import(const ImportOptions& options) {
    const std::string config_path = File("config.json");
    SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(config_path, kMaxConfigBytes));
    SLUICE_ASSIGN_OR_RETURN(HfConfig parsed, ParseHfConfig(text, config_path, options));
    config_ = std::move(parsed.model);
    warnings_ = std::move(parsed.warnings);
    if (config_.name.empty()) config_.name = FolderName();
    SLUICE_RETURN_IF_ERROR(OpenShards());
    SLUICE_RETURN_IF_ERROR(ListTensors());
    if (config_.learned_positions) SLUICE_RETURN_IF_ERROR(PlacePositions());
    if (config_.architecture == "nemotron") SLUICE_RETURN_IF_ERROR(AddOneToNorms());
    SLUICE_RETURN_IF_ERROR(ReadVocabulary());
    SLUICE_RETURN_IF_ERROR(SetRopeDivisors(std::move(parsed.rope_divisors)));
    return Check();
  }

  std::vector<std::string> files() const override {
    std::vector<std::string> out;
    for (const char* name :
         {"config.json", kIndexFile, "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
          "special_tokens_map.json", "generation_config.json", "added_tokens.json"}) {
      out.push_back(File(name));
    }
    for (const auto& file : files_) out.push_back(file->path());
    return out;
  }

 private:
  // Where a tensor of the table lies.
  struct Stored {
    const SafetensorsFile* file;
    const SafetensorsTensor* tensor;
  };

  std::string File(std::string_view name) const { return absl::StrFormat("%s/%s", path_, name); }
  bool HasFile(std::string_view name) const { return access(File(name).c_str(), F_OK) == 0; }

  std::string FolderName() const {
    const size_t end = path_.find_last_not_of('/');
    if (end == std::string::npos) return path_;
    const size_t slash = path_.rfind('/', end);
    const size_t begin = slash == std::string::npos ? 0 : slash + 1;
    return path_.substr(begin, end + 1 - begin);
  }

  // The single file goes before the index, as with the transformers library.
  absl::Status OpenShards() {
    if (HasFile(kSingleFile)) {
      SLUICE_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(File(kSingleFile)));
      files_.push_back(std::move(file));
      if (HasFile(kIndexFile)) {
        warnings_.push_back(absl::StrFormat("%s: the weights are those of %s; %s was ignored",
                                            path_, kSingleFile, kIndexFile));
      }
      return absl::OkStatus();
    }
    if (HasFile(kIndexFile)) return OpenIndexedShards();
    const bool pickled = HasFile("pytorch_model.bin") || HasFile("pytorch_model.bin.index.json");
    return absl::NotFoundError(absl::StrFormat(
        "%s: has neither %s nor %s%s", path_, kSingleFile, kIndexFile,
        pickled ? "; pytorch_model.bin is a Python pickle, which Sluice does not load since it can "
                  "run code: convert it to safetensors"
                : ""));
  }

  absl::Status OpenIndexedShards() {
    const std::string index_path = File(kIndexFile);
    SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(index_path, kMaxIndexBytes));
    SLUICE_ASSIGN_OR_RETURN(const auto index, ParseSafetensorsIndex(text, index_path));
    std::set<std::string> names;
    for (const auto& [tensor, shard] : index) names.insert(shard);
    if (names.size() > kMaxShards) {
      return absl::UnimplementedError(absl::StrFormat("%s: names %d files; Sluice opens at most %d",
                                                      index_path, names.size(), kMaxShards));
    }
    std::map<std::string, std::string> shard_of;  // what the shards hold
    for (const std::string& name : names) {
      SLUICE_RETURN_IF_ERROR(OpenShard(name, names.size()));
      for (const SafetensorsTensor& t : files_.back()->tensors()) shard_of.emplace(t.name, name);
    }
    for (const auto& [tensor, shard] : index) {
      const auto it = shard_of.find(tensor);
      if (it != shard_of.end() && it->second == shard) continue;
      return absl::DataLossError(
          absl::StrFormat("%s: tensor \"%s\" is not there, but %s says that it is", File(shard),
                          tensor, kIndexFile));
    }
    return absl::OkStatus();
  }

  absl::Status OpenShard(const std::string& name, size_t count) {
    auto file = SafetensorsFile::Open(File(name));
    if (absl::IsNotFound(file.status())) {
      return absl::NotFoundError(absl::StrFormat("%s: shard %d of %d is missing: %s", path_,
                                                 files_.size() + 1, count, name));
    }
    SLUICE_RETURN_IF_ERROR(file.status());
    n_tensors_ += (*file)->tensors().size();
    if (n_tensors_ > kMaxTensors) {
      return absl::DataLossError(
          absl::StrFormat("%s: the shards hold more than %d tensors", path_, kMaxTensors));
    }
    files_.push_back(*std::move(file));
    return absl::OkStatus();
  }

  absl::Status ListTensors() {
    for (const auto& file : files_) {
      for (const SafetensorsTensor& t : file->tensors()) {
        if (IsLeftOut(t.name)) continue;
        std::string name = CanonicalName(t.name);
        if (Find(name) != nullptr) {
          return absl::DataLossError(
              absl::StrFormat("%s: tensor \"%s\" is also in another file", file->path(), t.name));
        }
        AddTensor({std::move(name), t.type, t.shape});
        stored_.push_back({file.get(), &t});
      }
    }
    if (config_.gated) config_.qkv_bias = Find("blk.0.attn_q.bias") != nullptr;
    return absl::OkStatus();
  }

  // The first two rows of OPT's positions are for padding. Check() says it if there are none.
  absl::Status PlacePositions() {
    const SourceTensor* positions = Find(kPositions);
    if (positions == nullptr || positions->shape.size() != 2) return absl::OkStatus();
    if (positions->shape[0] != uint64_t{config_.context_length} + kPaddingPositions) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: tensor \"%s\" has %d rows; max_position_embeddings is %d, and OPT has two rows more",
          path_, StoredName(kPositions), positions->shape[0], config_.context_length));
    }
    DropPaddingPositions();
    return absl::OkStatus();
  }

  // Tensors that do not enter the computation; the first of each kind is named.
  bool IsLeftOut(const std::string& name) {
    if (name == "lm_head.weight" && config_.tied_head) {
      warnings_.push_back(
          "lm_head.weight was left out: config.json ties the head to the embedding");
      return true;
    }
    // Older checkpoints store the frequencies that rope_theta gives.
    if (!std::string_view(name).ends_with(".self_attn.rotary_emb.inv_freq")) return false;
    if (!std::exchange(named_inv_freq_, true)) {
      warnings_.push_back(absl::StrCat(
          name, " and the like were left out: the frequencies follow from config.json"));
    }
    return true;
  }

  absl::Status ReadVocabulary() {
    SLUICE_ASSIGN_OR_RETURN(const uint32_t rows, EmbeddingRows());
    if (config_.vocab_size != 0 && config_.vocab_size != rows) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: vocab_size is %d, but %s has %d rows",
                                                        File("config.json"), config_.vocab_size,
                                                        StoredName("token_embd.weight"), rows));
    }
    config_.vocab_size = rows;
    // Before the vocabulary is padded to a size that a damaged file may have chosen.
    SLUICE_RETURN_IF_ERROR(Annotate(ValidateConfig(config_), path_));
    SLUICE_ASSIGN_OR_RETURN(ImportedTokenizer imported, ImportHuggingFaceTokenizer(path_));
    SLUICE_RETURN_IF_ERROR(Annotate(PadVocabulary(imported.data, rows), path_));
    tokenizer_ = std::move(imported.data);
    for (std::string& w : imported.warnings) warnings_.push_back(std::move(w));
    return absl::OkStatus();
  }

  const NameTable& names() const { return config_.architecture == "opt" ? kOptNames : kNames; }

  std::string CanonicalName(const std::string& name) {
    constexpr std::string_view kPrefix = "model.";
    // Some of Bamboo's checkpoints have their predictors outside "model.".
    if (name.starts_with("layers.") && name.find(".mlp.predictor.") != std::string::npos) {
      bare_predictors_ = true;
      return Translate(names(), std::string(kPrefix) + name, /*to_canonical=*/true);
    }
    const bool has_prefix = &names() == &kOptNames && name.starts_with("model.decoder.");
    if (has_prefix) opt_prefix_ = kPrefix;
    return Translate(names(), has_prefix ? name.substr(kPrefix.size()) : name,
                     /*to_canonical=*/true);
  }
  std::string StoredName(const std::string& name) const override {
    const std::string stored = Translate(names(), name, /*to_canonical=*/false);
    if (bare_predictors_ && stored.find(".mlp.predictor.") != std::string::npos) {
      return stored.substr(stored.find('.') + 1);
    }
    return stored.starts_with("decoder.") ? absl::StrCat(opt_prefix_, stored) : stored;
  }

  absl::Status ReadStored(size_t index, uint64_t offset, std::span<std::byte> dst) const override {
    const Stored& s = stored_[index];
    return s.file->ReadTensor(*s.tensor, offset, dst);
  }

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  size_t n_tensors_ = 0;        // in all shards
  std::vector<Stored> stored_;  // by index in tensors()
  bool named_inv_freq_ = false;
  bool bare_predictors_ = false;  // their names begin with "layers."
  std::string opt_prefix_;        // before "decoder.", if there is one
};

}  // namespace

absl::StatusOr<std::unique_ptr<ModelSource>> OpenHfSource(const std::string& folder,
                                                          const ImportOptions& options) {
  auto source = std::make_unique<HfSource>(folder);
  SLUICE_RETURN_IF_ERROR(source->Import(options));
  return source;
}

}  // namespace sluice
