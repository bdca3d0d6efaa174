// Readers of the small files beside a vocabulary in a Hugging Face folder.

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/json_access.h"
#include "layout/tokenizer_parts.h"

namespace sluice {
namespace {

using nlohmann::json;

// A special token is named by its text or by an object that has it as "content".
void ReadTokenText(const json& root, const char* key, std::string& text) {
  if (!text.empty()) return;
  text = StringMember(root, key);
  const json* object = FindMember(root, key);
  if (text.empty() && object != nullptr) text = StringMember(*object, "content");
}

void ReadTokenTexts(const json& root, TokenizerSettings& settings) {
  ReadTokenText(root, "bos_token", settings.bos);
  ReadTokenText(root, "eos_token", settings.eos);
  ReadTokenText(root, "unk_token", settings.unk);
}

absl::Status ReadOptionalFlag(const json& root, const char* key, const std::string& path,
                              std::optional<bool>& flag) {
  if (FindMember(root, key) == nullptr) return absl::OkStatus();
  return ReadMember(root, key, path, flag.emplace());
}

// "added_tokens_decoder": {"32000": {"content": "<|im_end|>", "special": true}, ...}
absl::Status ReadAddedTokensDecoder(const json& root, const std::string& path,
                                    TokenizerSettings& settings) {
  const json* added = FindMember(root, "added_tokens_decoder");
  if (added == nullptr) return absl::OkStatus();
  if (!added->is_object()) return WrongJson(path, "added_tokens_decoder", *added, "an object");
  for (const auto& [key, token] : added->items()) {
    int32_t id = kNoToken;
    const std::string_view content = StringMember(token, "content");
    if (!absl::SimpleAtoi(key, &id) || id < 0 || id >= static_cast<int32_t>(kMaxTokens) ||
        content.empty()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: entry \"%s\" of added_tokens_decoder has no valid id or no content",
                          path, key.substr(0, 32)));
    }
    bool special = false;
    SLUICE_RETURN_IF_ERROR(ReadMember(token, "special", path, special));
    settings.added.push_back(
        {id, std::string(content), special ? TokenType::kControl : TokenType::kUserDefined});
  }
  return absl::OkStatus();
}

absl::Status ReadTokenizerConfig(std::string_view text, const std::string& path,
                                 TokenizerSettings& settings) {
  SLUICE_ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, path));
  ReadTokenTexts(root, settings);
  SLUICE_RETURN_IF_ERROR(ReadOptionalFlag(root, "add_bos_token", path, settings.add_bos));
  SLUICE_RETURN_IF_ERROR(ReadOptionalFlag(root, "add_eos_token", path, settings.add_eos));
  return ReadAddedTokensDecoder(root, path, settings);
}

absl::Status ReadGenerationConfig(std::string_view text, const std::string& path,
                                  TokenizerSettings& settings) {
  SLUICE_ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, path));
  if (const json* bos = FindMember(root, "bos_token_id")) {
    SLUICE_ASSIGN_OR_RETURN(settings.bos_id, JsonTokenId(*bos, path, "bos_token_id"));
  }
  const json* eos = FindMember(root, "eos_token_id");
  if (eos == nullptr) return absl::OkStatus();
  // One id, or a list of them.
  const json list = eos->is_array() ? *eos : json::array({*eos});
  for (const json& value : list) {
    SLUICE_ASSIGN_OR_RETURN(const int32_t id, JsonTokenId(value, path, "eos_token_id"));
    settings.eos_ids.push_back(id);
  }
  return absl::OkStatus();
}

// The same fields of config.json, which says much else: what is no id is passed over.
absl::Status ReadModelConfig(std::string_view text, const std::string& path,
                             TokenizerSettings& settings) {
  SLUICE_ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, path));
  const auto read_id = [&path](const json& value, const auto& use) {
    const absl::StatusOr<int32_t> id = JsonTokenId(value, path, "an id");
    if (id.ok()) use(*id);
  };
  if (const json* bos = FindMember(root, "bos_token_id")) {
    read_id(*bos, [&](int32_t id) { settings.model_bos_id = id; });
  }
  const json* eos = FindMember(root, "eos_token_id");
  if (eos == nullptr) return absl::OkStatus();
  const json list = eos->is_array() ? *eos : json::array({*eos});
  for (const json& value : list) {
    read_id(value, [&](int32_t id) { settings.model_eos_ids.push_back(id); });
  }
  return absl::OkStatus();
}

// {"<|im_end|>": 32000, ...}: says nothing of the kind; what looks like a tag is a control token.
absl::Status ReadAddedTokens(std::string_view text, const std::string& path,
                             TokenizerSettings& settings) {
  SLUICE_ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, path));
  for (const auto& [content, id] : root.items()) {
    if (content.empty()) continue;
    SLUICE_ASSIGN_OR_RETURN(const int32_t token_id, JsonTokenId(id, path, "the id of a token"));
    const bool is_tag = content.front() == '<' && content.back() == '>';
    settings.added.push_back(
        {token_id, content, is_tag ? TokenType::kControl : TokenType::kUserDefined});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSettings> ReadTokenizerSettings(const HuggingFaceTokenizerFiles& files,
                                                        const std::string& folder) {
  TokenizerSettings settings;
  if (!files.added_tokens.empty()) {
    SLUICE_RETURN_IF_ERROR(
        ReadAddedTokens(files.added_tokens, folder + "/added_tokens.json", settings));
  }
  // After added_tokens.json, whose guesses it corrects.
  if (!files.tokenizer_config.empty()) {
    SLUICE_RETURN_IF_ERROR(
        ReadTokenizerConfig(files.tokenizer_config, folder + "/tokenizer_config.json", settings));
  }
  if (!files.special_tokens_map.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const json root, ParseJsonObject(files.special_tokens_map,
                                                             folder + "/special_tokens_map.json"));
    ReadTokenTexts(root, settings);
  }
  if (!files.generation_config.empty()) {
    SLUICE_RETURN_IF_ERROR(ReadGenerationConfig(files.generation_config,
                                                folder + "/generation_config.json", settings));
  }
  if (!files.model_config.empty()) {
    SLUICE_RETURN_IF_ERROR(ReadModelConfig(files.model_config, folder + "/config.json", settings));
  }
  return settings;
}

}  // namespace sluice
