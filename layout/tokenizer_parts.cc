#include "layout/tokenizer_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "io/status.h"

namespace sluice {
namespace {

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

}  // namespace

int32_t FindToken(const TokenizerData& data, std::string_view text) {
  if (text.empty()) return kNoToken;
  const auto it = std::find(data.tokens.begin(), data.tokens.end(), text);
  return it == data.tokens.end() ? kNoToken : static_cast<int32_t>(it - data.tokens.begin());
}

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

}  // namespace sluice
