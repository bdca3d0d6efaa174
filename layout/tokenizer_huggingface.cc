// Puts together a vocabulary and the settings beside it in a Hugging Face folder.

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

// What config.json says, where nothing else does. Ids that no token has are passed over.
void ApplyModelIds(const TokenizerSettings& settings, TokenizerData& data) {
  const auto exists = [&data](int32_t id) { return id < static_cast<int32_t>(data.tokens.size()); };
  if (data.bos == kNoToken && settings.model_bos_id && exists(*settings.model_bos_id)) {
    data.bos = *settings.model_bos_id;
  }
  if (data.eos != kNoToken) return;
  for (const int32_t id : settings.model_eos_ids) {
    if (!exists(id)) continue;
    if (data.eos == kNoToken) data.eos = id;
    AddEndId(data, id);
  }
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
  for (const int32_t id : settings.eos_ids) AddEndId(data, id);
  ApplyModelIds(settings, data);

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
  std::error_code ignored;
  if (json.empty() && model.empty() && std::filesystem::exists(path / "vocab.json", ignored)) {
    return absl::NotFoundError(absl::StrFormat(
        "%s: has neither tokenizer.json nor tokenizer.model; vocab.json with merges.txt is the "
        "older "
        "form, which Sluice does not read: load the tokenizer with AutoTokenizer of the "
        "transformers library and save it, which writes tokenizer.json",
        folder));
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
