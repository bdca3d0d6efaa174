// Vocabularies from GGUF metadata.

#include <optional>

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/pre_tokenizer_names.h"
#include "layout/tokenizer_import.h"
#include "layout/tokenizer_parts.h"

namespace sluice {
namespace {

constexpr char kTokens[] = "tokenizer.ggml.tokens";
constexpr char kScores[] = "tokenizer.ggml.scores";
constexpr char kTypes[] = "tokenizer.ggml.token_type";
constexpr char kMerges[] = "tokenizer.ggml.merges";
constexpr int32_t kOptBos = 2;  // "</s>", which ends a text as well

absl::Status ReadId(const GgufFile& file, const char* key, int32_t& id) {
  if (!file.Has(key)) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const uint64_t value, file.GetUint(key));
  // All ones is how some writers say that there is none.
  if (value == 0xFFFFFFFF) {
    id = kNoToken;
    return absl::OkStatus();
  }
  if (value >= kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s is %d; ids are below %d", file.path(), key, value, kMaxTokens));
  }
  id = static_cast<int32_t>(value);
  return absl::OkStatus();
}

absl::Status ReadFlag(const GgufFile& file, const char* key, bool& flag) {
  if (!file.Has(key)) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(flag, file.GetBool(key));
  return absl::OkStatus();
}

absl::Status ReadTypes(GgufFile& file, TokenizerData& data) {
  if (!file.Has(kTypes)) {
    data.types.assign(data.tokens.size(), TokenType::kNormal);
    return absl::OkStatus();
  }
  SLUICE_ASSIGN_OR_RETURN(const std::vector<int64_t> types, file.GetIntArray(kTypes));
  file.DropMetadata(kTypes);
  if (types.size() != data.tokens.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s has %d entries for %d tokens",
                                                      file.path(), kTypes, types.size(),
                                                      data.tokens.size()));
  }
  data.types.reserve(types.size());
  for (size_t id = 0; id < types.size(); ++id) {
    if (types[id] < 0 || types[id] > 6) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: %s: token %d has unknown type %d",
                                                        file.path(), kTypes, id, types[id]));
    }
    // 0 is "undefined", which llama.cpp takes for an ordinary token.
    data.types.push_back(types[id] == 0 ? TokenType::kNormal : static_cast<TokenType>(types[id]));
  }
  return absl::OkStatus();
}

absl::Status ReadSentencePiece(GgufFile& file, TokenizerData& data) {
  data.kind = TokenizerKind::kSentencePiece;
  data.bos = 1;
  data.eos = 2;
  data.unk = 0;
  data.add_bos = true;
  bool space_prefix = true;
  SLUICE_RETURN_IF_ERROR(ReadFlag(file, "tokenizer.ggml.add_space_prefix", space_prefix));
  data.space_prefix = space_prefix ? SpacePrefix::kEachPart : SpacePrefix::kNone;
  SLUICE_ASSIGN_OR_RETURN(const std::vector<double> scores, file.GetFloatArray(kScores));
  file.DropMetadata(kScores);
  data.scores.assign(scores.begin(), scores.end());
  return absl::OkStatus();
}

absl::Status ReadByteBpe(GgufFile& file, TokenizerData& data, std::vector<std::string>& warnings) {
  data.kind = TokenizerKind::kByteBpe;
  SLUICE_ASSIGN_OR_RETURN(data.merges, file.TakeStringArray(kMerges));
  std::string name;
  if (file.Has("tokenizer.ggml.pre")) {
    SLUICE_ASSIGN_OR_RETURN(name, file.GetString("tokenizer.ggml.pre"));
  }
  // Converters of OPT need not say any of this.
  const bool is_opt = file.GetString("general.architecture").value_or("") == "opt";
  if (is_opt && name.empty()) name = "gpt-2";
  const std::optional<NamedPreTokenizer> known = PreTokenizerByGgufName(name);
  if (!known) {
    warnings.push_back(
        name.empty() ? absl::StrFormat("%s does not name its pre-tokenizer; taking the default, "
                                       "which may split text into other tokens",
                                       file.path())
                     : absl::StrFormat("%s has unknown pre-tokenizer \"%s\"; taking the default, "
                                       "which may split text into other tokens",
                                       file.path(), name));
  }
  const NamedPreTokenizer pre = known.value_or(NamedPreTokenizer());
  data.pre = pre.pre;
  data.ignore_merges = pre.ignore_merges;
  data.add_bos = pre.add_bos || is_opt;
  if (is_opt) data.bos = data.eos = kOptBos;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ImportedTokenizer> ImportGgufTokenizer(GgufFile& file) {
  ImportedTokenizer imported;
  TokenizerData& data = imported.data;
  SLUICE_ASSIGN_OR_RETURN(const std::string model, file.GetString("tokenizer.ggml.model"));
  SLUICE_ASSIGN_OR_RETURN(data.tokens, file.TakeStringArray(kTokens));
  SLUICE_RETURN_IF_ERROR(ReadTypes(file, data));
  if (model == "llama") {
    SLUICE_RETURN_IF_ERROR(ReadSentencePiece(file, data));
  } else if (model == "gpt2") {
    SLUICE_RETURN_IF_ERROR(ReadByteBpe(file, data, imported.warnings));
  } else {
    return absl::UnimplementedError(absl::StrFormat(
        "%s: tokenizer.ggml.model is \"%s\"; known are \"llama\" (SentencePiece) and \"gpt2\" "
        "(byte-level BPE)",
        file.path(), model));
  }
  SLUICE_RETURN_IF_ERROR(ReadId(file, "tokenizer.ggml.bos_token_id", data.bos));
  SLUICE_RETURN_IF_ERROR(ReadId(file, "tokenizer.ggml.eos_token_id", data.eos));
  SLUICE_RETURN_IF_ERROR(ReadId(file, "tokenizer.ggml.unknown_token_id", data.unk));
  SLUICE_RETURN_IF_ERROR(ReadFlag(file, "tokenizer.ggml.add_bos_token", data.add_bos));
  SLUICE_RETURN_IF_ERROR(ReadFlag(file, "tokenizer.ggml.add_eos_token", data.add_eos));
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    int32_t id = kNoToken;
    SLUICE_RETURN_IF_ERROR(ReadId(file, key, id));
    AddEndId(data, id);
  }
  SLUICE_RETURN_IF_ERROR(FinishTokenizer(file.path(), imported));
  return imported;
}

}  // namespace sluice
