// Puts together a vocabulary and the settings beside it in a Hugging Face folder.

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/input_file.h"
#include "layout/tokenizer_parts.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{64} << 20;  // the largest known take 35 MB
// More ids than this that no token has cannot be meant.
constexpr size_t kMaxHoles = 4096;

constexpr std::string_view kEndTexts[] = {
    "<|eot_id|>", "<|im_end|>",    "<|end|>",         "<end_of_turn>",
    "<|EOT|>",    "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>",
};

void DropUnresolvedMerges(const std::string& where, ImportedTokenizer& imported) {
  const std::vector<MergeIds> ids = ResolveMerges(imported.data);
  std::vector<std::string>& merges = imported.data.merges;
  size_t kept = 0;
  for (size_t rank = 0; rank < ids.size(); ++rank) {
    if (!ids[rank].resolved()) continue;
    if (kept != rank) merges[kept] = std::move(merges[rank]);
    ++kept;
  }
  if (kept == merges.size()) return;
  imported.warnings.push_back(DroppedMerges(where, merges.size() - kept, merges.size()));
  merges.resize(kept);
}

int32_t FindToken(const TokenizerData& data, std::string_view text) {
  if (text.empty()) return kNoToken;
  const auto it = std::find(data.tokens.begin(), data.tokens.end(), text);
  return it == data.tokens.end() ? kNoToken : static_cast<int32_t>(it - data.tokens.begin());
}

// The id of a token that a setting names by its text. One that the vocabulary lacks is said, and
// leaves `id` as it is.
void SetByText(std::string_view text, std::string_view setting, const std::string& folder,
               ImportedTokenizer& imported, int32_t& id) {
  if (text.empty()) return;
  const int32_t found = FindToken(imported.data, text);
  if (found != kNoToken) {
    id = found;
    return;
  }
  imported.warnings.push_back(
      absl::StrFormat("%s names \"%s\" as its %s, which is not in the vocabulary", folder,
                      text.substr(0, 64), setting));
}

void ApplySettings(const TokenizerSettings& settings, const std::string& folder,
                   VocabularyFile& file) {
  TokenizerData& data = file.imported.data;
  SetByText(file.bos, "BOS token", folder, file.imported, data.bos);
  SetByText(file.eos, "EOS token", folder, file.imported, data.eos);
  if (settings.bos_id) data.bos = *settings.bos_id;
  if (!settings.eos_ids.empty()) data.eos = settings.eos_ids[0];
  SetByText(settings.bos, "BOS token", folder, file.imported, data.bos);
  SetByText(settings.eos, "EOS token", folder, file.imported, data.eos);
  SetByText(settings.unk, "unknown token", folder, file.imported, data.unk);
  const auto exists = [&data](int32_t id) { return id < static_cast<int32_t>(data.tokens.size()); };
  if (data.bos == kNoToken && settings.model_bos_id && exists(*settings.model_bos_id)) {
    data.bos = *settings.model_bos_id;
  }
  const bool names_end = data.eos != kNoToken || !settings.eos_ids.empty();
  for (const int32_t id : names_end ? settings.eos_ids : settings.model_eos_ids) {
    if (!names_end && !exists(id)) continue;
    if (data.eos == kNoToken) data.eos = id;
    AddEndId(data, id);
  }

  const bool sentence_piece = data.kind == TokenizerKind::kSentencePiece;
  data.add_bos = settings.add_bos.value_or(file.add_bos.value_or(sentence_piece));
  data.add_eos = settings.add_eos.value_or(file.add_eos.value_or(false));
}

// An absent file is an empty text.
absl::StatusOr<std::string> ReadOptional(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::string();
  return ReadTextFile(path.string(), kMaxFileBytes);
}

}  // namespace

absl::Status FinishTokenizer(const std::string& where, ImportedTokenizer& imported) {
  TokenizerData& data = imported.data;
  for (const std::string_view text : kEndTexts) AddEndId(data, FindToken(data, text));
  if (data.eos == kNoToken && data.end_ids.empty()) {
    imported.warnings.push_back(absl::StrFormat(
        "%s names no token that ends generation; text ends at the number of tokens asked for",
        where));
  }
  SLUICE_RETURN_IF_ERROR(Annotate(ValidateTokenizer(data), where));
  DropUnresolvedMerges(where, imported);
  return absl::OkStatus();
}

std::string DroppedMerges(const std::string& where, size_t dropped, size_t all) {
  return absl::StrFormat(
      "%s: %d of %d merges are not between tokens of the vocabulary and were "
      "left out; text may give other tokens",
      where, dropped, all);
}

absl::Status PlaceTokens(std::vector<PlacedToken> placed, TokenizerData& data) {
  size_t size = data.tokens.size();
  for (const PlacedToken& token : placed) {
    size = std::max(size, static_cast<size_t>(token.id) + 1);
  }
  if (size > data.tokens.size() + placed.size() + kMaxHoles) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the largest token id is %d, but there are only %d tokens", size - 1,
                        data.tokens.size() + placed.size()));
  }
  const size_t old_size = data.tokens.size();
  data.tokens.resize(size);
  data.types.resize(size, TokenType::kUnused);
  if (data.kind == TokenizerKind::kSentencePiece) data.scores.resize(size, 0.0f);
  std::vector<bool> is_placed(size);
  for (PlacedToken& token : placed) {
    data.tokens[token.id] = std::move(token.text);
    data.types[token.id] = token.type;
    is_placed[token.id] = true;
  }
  for (size_t id = old_size; id < size; ++id) {
    if (!is_placed[id]) data.tokens[id] = absl::StrFormat("[PAD%d]", id);
  }
  return absl::OkStatus();
}

absl::Status PadVocabulary(TokenizerData& data, size_t vocab_size) {
  if (data.tokens.size() > vocab_size || vocab_size > kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the vocabulary has %d tokens, but the model has %d rows for them",
                        data.tokens.size(), vocab_size));
  }
  for (size_t id = data.tokens.size(); id < vocab_size; ++id) {
    data.tokens.push_back(absl::StrFormat("[PAD%d]", id));
  }
  data.types.resize(vocab_size, TokenType::kUnused);
  if (data.kind == TokenizerKind::kSentencePiece) data.scores.resize(vocab_size, 0.0f);
  return absl::OkStatus();
}

absl::StatusOr<ImportedTokenizer> ImportHuggingFaceTokenizer(const HuggingFaceTokenizerFiles& files,
                                                             const std::string& folder) {
  SLUICE_ASSIGN_OR_RETURN(TokenizerSettings settings, ReadTokenizerSettings(files, folder));
  VocabularyFile file;
  if (!files.tokenizer_json.empty()) {
    SLUICE_ASSIGN_OR_RETURN(file,
                            ReadTokenizerJson(files.tokenizer_json, folder + "/tokenizer.json"));
  } else if (!files.tokenizer_model.empty()) {
    SLUICE_ASSIGN_OR_RETURN(
        file, ReadSentencePieceModel(files.tokenizer_model, folder + "/tokenizer.model"));
    // tokenizer.json lists these itself.
    SLUICE_RETURN_IF_ERROR(
        Annotate(PlaceTokens(std::move(settings.added), file.imported.data), folder));
  } else {
    return absl::NotFoundError(
        absl::StrFormat("%s: has neither tokenizer.json nor tokenizer.model", folder));
  }
  ApplySettings(settings, folder, file);
  SLUICE_RETURN_IF_ERROR(FinishTokenizer(folder, file.imported));
  return std::move(file.imported);
}

absl::StatusOr<ImportedTokenizer> ImportHuggingFaceTokenizer(const std::string& folder) {
  const std::filesystem::path path(folder);
  SLUICE_ASSIGN_OR_RETURN(const std::string json, ReadOptional(path / "tokenizer.json"));
  std::string model;
  if (json.empty()) {
    SLUICE_ASSIGN_OR_RETURN(model, ReadOptional(path / "tokenizer.model"));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string config, ReadOptional(path / "tokenizer_config.json"));
  SLUICE_ASSIGN_OR_RETURN(const std::string map, ReadOptional(path / "special_tokens_map.json"));
  SLUICE_ASSIGN_OR_RETURN(const std::string generation,
                          ReadOptional(path / "generation_config.json"));
  SLUICE_ASSIGN_OR_RETURN(const std::string model_config, ReadOptional(path / "config.json"));
  SLUICE_ASSIGN_OR_RETURN(const std::string added, ReadOptional(path / "added_tokens.json"));
  return ImportHuggingFaceTokenizer({.tokenizer_json = json,
                                     .tokenizer_model = model,
                                     .tokenizer_config = config,
                                     .special_tokens_map = map,
                                     .generation_config = generation,
                                     .model_config = model_config,
                                     .added_tokens = added},
                                    folder);
}

}  // namespace sluice
