#include "runtime/tokenizer/tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_format.h"
#include "io/status.h"

namespace sluice {
namespace {

// The encoders count bytes in 31 bits; a longer text is cut.
constexpr size_t kMaxTextBytes = size_t{1} << 30;

TokenTable MakeTokenTable(const TokenizerData& data) {
  size_t n_bytes = 0;
  for (const std::string& token : data.tokens) n_bytes += token.size();
  TokenTable table;
  table.Reserve(data.tokens.size(), n_bytes);
  std::vector<bool> searchable(data.tokens.size());
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    table.Add(TokenBytes(data.kind, data.types[id], data.tokens[id]));
    searchable[id] = data.types[id] == TokenType::kNormal;
  }
  table.BuildIndex(searchable);
  return table;
}

std::vector<int32_t> IdsOfTypes(const TokenizerData& data, std::initializer_list<TokenType> types) {
  std::vector<int32_t> ids;
  for (size_t id = 0; id < data.types.size(); ++id) {
    if (std::find(types.begin(), types.end(), data.types[id]) != types.end()) {
      ids.push_back(static_cast<int32_t>(id));
    }
  }
  return ids;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(TokenizerData data) {
  SLUICE_RETURN_IF_ERROR(ValidateTokenizer(data));
  size_t n_bytes = 0;
  for (const std::string& token : data.tokens) n_bytes += token.size();
  if (n_bytes > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the tokens take %d bytes; less than 4 GiB are allowed", n_bytes));
  }
  auto tokenizer = absl::WrapUnique(new Tokenizer(data));
  if (data.kind == TokenizerKind::kSentencePiece) {
    tokenizer->encoder_ = MakeSentencePieceEncoder(data, tokenizer->table_);
  } else {
    SLUICE_ASSIGN_OR_RETURN(tokenizer->encoder_, MakeByteBpeEncoder(data, tokenizer->table_));
  }
  return tokenizer;
}

Tokenizer::Tokenizer(const TokenizerData& data)
    : table_(MakeTokenTable(data)),
      types_(data.types),
      user_defined_(table_, IdsOfTypes(data, {TokenType::kUserDefined})),
      special_(table_, IdsOfTypes(data, {TokenType::kUserDefined, TokenType::kControl,
                                         TokenType::kUnknown})),
      end_ids_(data.end_ids),
      bos_(data.bos),
      eos_(data.eos),
      add_bos_(data.add_bos && data.bos != kNoToken),
      add_eos_(data.add_eos && data.eos != kNoToken),
      space_prefix_(data.kind == TokenizerKind::kSentencePiece ? data.space_prefix
                                                               : SpacePrefix::kNone) {
  if (data.eos != kNoToken) end_ids_.push_back(data.eos);
}

bool Tokenizer::HasType(int32_t id, TokenType type) const {
  return id >= 0 && static_cast<size_t>(id) < types_.size() && types_[id] == type;
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  if (options.add_special && add_bos_) ids.push_back(bos_);
  const SpecialMatcher& matcher = options.parse_special ? special_ : user_defined_;
  for (size_t pos = 0; pos < text.size();) {
    const SpecialMatcher::Found found = matcher.FindNext(text, pos);
    const std::string_view part = text.substr(pos, found.begin - pos);
    if (!part.empty()) EncodeText(part, NeedsSpacePrefix(part, /*first=*/pos == 0), ids);
    if (found.id != kNoToken) ids.push_back(found.id);
    pos = found.begin + found.length;
  }
  if (options.add_special && add_eos_) ids.push_back(eos_);
  return ids;
}

bool Tokenizer::NeedsSpacePrefix(std::string_view part, bool first) const {
  const bool has_space = part.starts_with(' ') || part.starts_with(kSpaceMark);
  switch (space_prefix_) {
    case SpacePrefix::kNone:
      break;
    case SpacePrefix::kEachPart:
      return true;
    case SpacePrefix::kFirstPartUnlessSpace:
      return first && !has_space;
    case SpacePrefix::kEachPartUnlessSpace:
      return !has_space;
  }
  return false;
}

void Tokenizer::EncodeText(std::string_view text, bool space_prefix,
                           std::vector<int32_t>& ids) const {
  for (; text.size() > kMaxTextBytes; text.remove_prefix(kMaxTextBytes)) {
    encoder_->Encode(text.substr(0, kMaxTextBytes), std::exchange(space_prefix, false), ids);
  }
  encoder_->Encode(text, space_prefix, ids);
}

std::string_view Tokenizer::TokenPiece(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= types_.size() || types_[id] == TokenType::kControl ||
      types_[id] == TokenType::kUnknown) {
    return {};
  }
  return table_[id];
}

bool Tokenizer::HasSpacePrefix(int32_t id) const {
  return space_prefix_ != SpacePrefix::kNone && !HasType(id, TokenType::kUserDefined) &&
         TokenPiece(id).starts_with(' ');
}

std::string Tokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  bool at_start = true;
  for (const int32_t id : ids) {
    std::string_view piece = TokenPiece(id);
    if (piece.empty()) continue;
    if (at_start && HasSpacePrefix(id)) piece.remove_prefix(1);
    text.append(piece);
    at_start = false;
  }
  return text;
}

bool Tokenizer::IsEndOfGeneration(int32_t id) const {
  return std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end();
}

size_t Tokenizer::memory_bytes() const {
  return sizeof(*this) + table_.memory_bytes() + types_.capacity() * sizeof(TokenType) +
         user_defined_.memory_bytes() + special_.memory_bytes() + encoder_->memory_bytes() +
         end_ids_.capacity() * sizeof(int32_t);
}

}  // namespace sluice
