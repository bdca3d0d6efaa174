#include "layout/tokenizer_data.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/status.h"

namespace sluice {
namespace {

constexpr uint32_t kTokenizerVersion = 1;
constexpr size_t kMinMergeBytes = sizeof(uint32_t) + 3;  // two characters and a space

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool IsKnownType(uint8_t type) {
  return type >= static_cast<uint8_t>(TokenType::kNormal) &&
         type <= static_cast<uint8_t>(TokenType::kByte);
}

absl::Status CheckSizes(const TokenizerData& d) {
  if (d.tokens.empty() || d.tokens.size() > kMaxTokens) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the vocabulary has %d tokens; it must have 1..%d", d.tokens.size(), kMaxTokens));
  }
  if (d.types.size() != d.tokens.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("there are %d token types for %d tokens", d.types.size(), d.tokens.size()));
  }
  const size_t want_scores = d.kind == TokenizerKind::kSentencePiece ? d.tokens.size() : 0;
  if (d.scores.size() != want_scores) {
    return absl::InvalidArgumentError(
        absl::StrFormat("there are %d token scores; expected %d", d.scores.size(), want_scores));
  }
  const size_t max_merges =
      d.kind == TokenizerKind::kByteBpe ? kMaxMergesPerToken * d.tokens.size() : 0;
  if (d.merges.size() > max_merges) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "there are %d merges; at most %d are allowed with this kind of tokenizer and "
        "number of tokens",
        d.merges.size(), max_merges));
  }
  if (d.end_ids.size() > kMaxEndIds) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d ids end generation; at most %d are allowed", d.end_ids.size(), kMaxEndIds));
  }
  return absl::OkStatus();
}

absl::Status CheckToken(const TokenizerData& d, size_t id) {
  const std::string& token = d.tokens[id];
  const auto type = d.types[id];
  if (!IsKnownType(static_cast<uint8_t>(type))) {
    return absl::InvalidArgumentError(
        absl::StrFormat("token %d has unknown type %d", id, static_cast<int>(type)));
  }
  if (type == TokenType::kByte && ParseByteToken(token) < 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "token %d is a byte token but reads \"%s\"; expected \"<0xHH>\"", id, token.substr(0, 32)));
  }
  const bool special = type == TokenType::kControl || type == TokenType::kUserDefined;
  const size_t max_bytes = special ? kMaxSpecialBytes : kMaxTokenBytes;
  if (token.size() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "token %d is %d bytes long; at most %d are allowed", id, token.size(), max_bytes));
  }
  if (!d.scores.empty() && !std::isfinite(d.scores[id])) {
    return absl::InvalidArgumentError(absl::StrFormat("the score of token %d is not finite", id));
  }
  return absl::OkStatus();
}

absl::Status CheckMerge(const std::string& merge, size_t rank) {
  const size_t space = merge.find(' ');
  if (space == std::string::npos || space == 0 || space + 1 == merge.size() ||
      merge.find(' ', space + 1) != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrFormat("merge %d is \"%s\"; expected two parts with one space between", rank,
                        merge.substr(0, 32)));
  }
  return absl::OkStatus();
}

absl::Status CheckId(const TokenizerData& d, const char* name, int32_t id, bool may_be_absent) {
  if (id == kNoToken && may_be_absent) return absl::OkStatus();
  if (id < 0 || static_cast<size_t>(id) >= d.tokens.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the %s token has id %d; the vocabulary has %d tokens", name, id, d.tokens.size()));
  }
  return absl::OkStatus();
}

absl::Status CutShort() { return absl::DataLossError("tokenizer record is cut short"); }

// Reads a count of elements of `min_bytes` or more each, before anything is sized by it.
absl::Status ReadCount(ByteReader& in, const char* what, size_t min_bytes, size_t most,
                       size_t& count) {
  count = in.Get<uint32_t>();
  if (!in.ok() || count > in.remaining() / min_bytes) return CutShort();
  if (count <= most) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("tokenizer record: has %d %s; at most %d are possible", count, what, most));
}

// Grows with what is read, so that no more is held than the record has bytes for.
absl::Status ReadStrings(ByteReader& in, size_t count, std::vector<std::string>& strings) {
  for (size_t i = 0; i < count; ++i) {
    const std::string_view s = in.GetString();
    if (!in.ok()) return CutShort();
    if (s.size() > kMaxTokenBytes) {
      return absl::DataLossError(
          absl::StrFormat("tokenizer record: a string has %d bytes; at most %d are possible",
                          s.size(), kMaxTokenBytes));
    }
    strings.emplace_back(s);
  }
  return absl::OkStatus();
}

absl::Status ReadTokens(ByteReader& in, std::optional<size_t> vocab_size, TokenizerData& d) {
  size_t count = 0;
  SLUICE_RETURN_IF_ERROR(ReadCount(in, "tokens", sizeof(uint32_t), kMaxTokens, count));
  if (vocab_size && count != *vocab_size) {
    return absl::DataLossError(
        absl::StrFormat("tokenizer record: has %d tokens, the model %d", count, *vocab_size));
  }
  SLUICE_RETURN_IF_ERROR(ReadStrings(in, count, d.tokens));
  d.types.resize(count);
  for (TokenType& type : d.types) type = static_cast<TokenType>(in.Get<uint8_t>());
  if (d.kind == TokenizerKind::kSentencePiece) d.scores.resize(count);
  for (float& score : d.scores) score = in.Get<float>();
  return in.ok() ? absl::OkStatus() : CutShort();
}

void WriteStrings(const std::vector<std::string>& strings, ByteWriter& out) {
  out.Put<uint32_t>(static_cast<uint32_t>(strings.size()));
  for (const std::string& s : strings) out.PutString(s);
}

template <typename Enum>
absl::Status ReadEnum(ByteReader& in, const char* name, Enum last, Enum& value) {
  const auto v = in.Get<uint8_t>();
  if (v > static_cast<uint8_t>(last)) {
    return absl::DataLossError(absl::StrFormat("tokenizer record: unknown %s %d", name, v));
  }
  value = static_cast<Enum>(v);
  return absl::OkStatus();
}

}  // namespace

int ParseByteToken(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  const int high = HexDigit(token[3]);
  const int low = HexDigit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

void AddEndId(TokenizerData& data, int32_t id) {
  std::vector<int32_t>& ids = data.end_ids;
  if (id == kNoToken || id == data.eos || ids.size() == kMaxEndIds) return;
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
}

absl::Status ValidateTokenizer(const TokenizerData& d) {
  SLUICE_RETURN_IF_ERROR(CheckSizes(d));
  for (size_t id = 0; id < d.tokens.size(); ++id) SLUICE_RETURN_IF_ERROR(CheckToken(d, id));
  for (size_t rank = 0; rank < d.merges.size(); ++rank) {
    SLUICE_RETURN_IF_ERROR(CheckMerge(d.merges[rank], rank));
  }
  SLUICE_RETURN_IF_ERROR(CheckId(d, "BOS", d.bos, true));
  SLUICE_RETURN_IF_ERROR(CheckId(d, "EOS", d.eos, true));
  SLUICE_RETURN_IF_ERROR(CheckId(d, "unknown", d.unk, true));
  for (const int32_t id : d.end_ids) {
    SLUICE_RETURN_IF_ERROR(CheckId(d, "end-of-generation", id, false));
  }
  return absl::OkStatus();
}

std::vector<MergeIds> ResolveMerges(const TokenizerData& data) {
  absl::flat_hash_map<absl::string_view, int32_t> ids;
  ids.reserve(data.tokens.size());
  for (const bool ordinary : {true, false}) {
    for (size_t id = 0; id < data.tokens.size(); ++id) {
      const TokenType type = data.types[id];
      const bool is_ordinary = type == TokenType::kNormal || type == TokenType::kUserDefined;
      if (is_ordinary == ordinary) ids.emplace(data.tokens[id], static_cast<int32_t>(id));
    }
  }
  const auto find = [&ids](absl::string_view text) {
    const auto it = ids.find(text);
    return it == ids.end() ? kNoToken : it->second;
  };
  std::vector<MergeIds> merges;
  merges.reserve(data.merges.size());
  for (const absl::string_view merge : data.merges) {
    const absl::string_view left = merge.substr(0, merge.find(' '));
    const absl::string_view right = merge.substr(left.size() + 1);
    merges.push_back({find(left), find(right), find(absl::StrCat(left, right))});
  }
  return merges;
}

void WriteTokenizer(const TokenizerData& d, ByteWriter& out) {
  out.Put<uint32_t>(kTokenizerVersion);
  out.Put<uint8_t>(static_cast<uint8_t>(d.kind));
  out.Put<uint8_t>(static_cast<uint8_t>(d.pre));
  out.Put<uint8_t>(d.add_bos);
  out.Put<uint8_t>(d.add_eos);
  out.Put<uint8_t>(static_cast<uint8_t>(d.space_prefix));
  out.Put<uint8_t>(d.ignore_merges);
  // The end of turn had a place of its own in format 1.0; now it is one of end_ids.
  for (const int32_t id : {d.bos, d.eos, kNoToken, d.unk}) out.Put<int32_t>(id);
  out.Put<uint32_t>(static_cast<uint32_t>(d.end_ids.size()));
  for (const int32_t id : d.end_ids) out.Put<int32_t>(id);
  WriteStrings(d.tokens, out);
  for (const TokenType type : d.types) out.Put<uint8_t>(static_cast<uint8_t>(type));
  for (const float score : d.scores) out.Put<float>(score);
  WriteStrings(d.merges, out);
}

absl::StatusOr<TokenizerData> ReadTokenizer(ByteReader& in, std::optional<size_t> vocab_size) {
  const auto version = in.Get<uint32_t>();
  if (!in.ok()) return CutShort();
  if (version != kTokenizerVersion) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "tokenizer record has version %u; this program reads %u", version, kTokenizerVersion));
  }
  TokenizerData d;
  SLUICE_RETURN_IF_ERROR(ReadEnum(in, "kind", TokenizerKind::kByteBpe, d.kind));
  SLUICE_RETURN_IF_ERROR(ReadEnum(in, "pre-tokenizer", PreTokenizer::kQwen2, d.pre));
  d.add_bos = in.Get<uint8_t>() != 0;
  d.add_eos = in.Get<uint8_t>() != 0;
  SLUICE_RETURN_IF_ERROR(
      ReadEnum(in, "space prefix", SpacePrefix::kEachPartUnlessSpace, d.space_prefix));
  d.ignore_merges = in.Get<uint8_t>() != 0;
  int32_t end_of_turn = kNoToken;  // of format 1.0
  for (int32_t* id : {&d.bos, &d.eos, &end_of_turn, &d.unk}) *id = in.Get<int32_t>();
  size_t count = 0;
  SLUICE_RETURN_IF_ERROR(ReadCount(in, "end ids", sizeof(int32_t), kMaxEndIds, count));
  for (size_t i = 0; i < count; ++i) d.end_ids.push_back(in.Get<int32_t>());
  AddEndId(d, end_of_turn);
  SLUICE_RETURN_IF_ERROR(ReadTokens(in, vocab_size, d));
  SLUICE_RETURN_IF_ERROR(
      ReadCount(in, "merges", kMinMergeBytes, kMaxMergesPerToken * d.tokens.size(), count));
  SLUICE_RETURN_IF_ERROR(ReadStrings(in, count, d.merges));
  SLUICE_RETURN_IF_ERROR(Annotate(ValidateTokenizer(d), "tokenizer record"));
  return d;
}

}  // namespace sluice
