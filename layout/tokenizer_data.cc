#include "layout/tokenizer_data.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "io/status.h"

namespace sluice {
namespace {

constexpr uint32_t kTokenizerVersion = 1;
constexpr size_t kMaxEndIds = 64;

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
  const size_t max_merges = d.kind == TokenizerKind::kByteBpe ? kMaxMerges : 0;
  if (d.merges.size() > max_merges) {
    return absl::InvalidArgumentError(
        absl::StrFormat("there are %d merges; at most %d are allowed with this kind of tokenizer",
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

// Reads a count of elements that take at least `min_bytes` each; a count that cannot fit is the
// reader's failure, before anything is sized by it.
size_t GetCount(ByteReader& in, size_t min_bytes) {
  const auto count = in.Get<uint32_t>();
  if (count > in.remaining() / min_bytes) {
    in.GetBytes(in.remaining() + 1);  // Fails, so that in.ok() tells.
    return 0;
  }
  return count;
}

void ReadStrings(ByteReader& in, std::vector<std::string>& strings) {
  strings.resize(GetCount(in, sizeof(uint32_t)));
  for (std::string& s : strings) s = in.GetString();
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

absl::Status ValidateTokenizer(const TokenizerData& d) {
  SLUICE_RETURN_IF_ERROR(CheckSizes(d));
  for (size_t id = 0; id < d.tokens.size(); ++id) SLUICE_RETURN_IF_ERROR(CheckToken(d, id));
  for (size_t rank = 0; rank < d.merges.size(); ++rank) {
    SLUICE_RETURN_IF_ERROR(CheckMerge(d.merges[rank], rank));
  }
  SLUICE_RETURN_IF_ERROR(CheckId(d, "BOS", d.bos, true));
  SLUICE_RETURN_IF_ERROR(CheckId(d, "EOS", d.eos, true));
  SLUICE_RETURN_IF_ERROR(CheckId(d, "end-of-turn", d.eot, true));
  SLUICE_RETURN_IF_ERROR(CheckId(d, "unknown", d.unk, true));
  for (const int32_t id : d.end_ids) {
    SLUICE_RETURN_IF_ERROR(CheckId(d, "end-of-generation", id, false));
  }
  return absl::OkStatus();
}

void WriteTokenizer(const TokenizerData& d, ByteWriter& out) {
  out.Put<uint32_t>(kTokenizerVersion);
  out.Put<uint8_t>(static_cast<uint8_t>(d.kind));
  out.Put<uint8_t>(static_cast<uint8_t>(d.pre));
  for (const bool flag : {d.add_bos, d.add_eos, d.add_space_prefix, d.ignore_merges}) {
    out.Put<uint8_t>(flag);
  }
  for (const int32_t id : {d.bos, d.eos, d.eot, d.unk}) out.Put<int32_t>(id);
  out.Put<uint32_t>(static_cast<uint32_t>(d.end_ids.size()));
  for (const int32_t id : d.end_ids) out.Put<int32_t>(id);
  WriteStrings(d.tokens, out);
  for (const TokenType type : d.types) out.Put<uint8_t>(static_cast<uint8_t>(type));
  for (const float score : d.scores) out.Put<float>(score);
  WriteStrings(d.merges, out);
}

absl::StatusOr<TokenizerData> ReadTokenizer(ByteReader& in) {
  const auto version = in.Get<uint32_t>();
  if (!in.ok()) return absl::DataLossError("tokenizer record is cut short");
  if (version != kTokenizerVersion) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "tokenizer record has version %u; this program reads %u", version, kTokenizerVersion));
  }
  TokenizerData d;
  SLUICE_RETURN_IF_ERROR(ReadEnum(in, "kind", TokenizerKind::kByteBpe, d.kind));
  SLUICE_RETURN_IF_ERROR(ReadEnum(in, "pre-tokenizer", PreTokenizer::kQwen2, d.pre));
  for (bool* flag : {&d.add_bos, &d.add_eos, &d.add_space_prefix, &d.ignore_merges}) {
    *flag = in.Get<uint8_t>() != 0;
  }
  for (int32_t* id : {&d.bos, &d.eos, &d.eot, &d.unk}) *id = in.Get<int32_t>();
  d.end_ids.resize(GetCount(in, sizeof(int32_t)));
  for (int32_t& id : d.end_ids) id = in.Get<int32_t>();
  ReadStrings(in, d.tokens);
  // A type has a byte, a score four; both arrays are as long as `tokens`, whose size the bytes of
  // the record have already bounded.
  d.types.resize(d.tokens.size());
  for (TokenType& type : d.types) type = static_cast<TokenType>(in.Get<uint8_t>());
  if (d.kind == TokenizerKind::kSentencePiece) d.scores.resize(d.tokens.size());
  for (float& score : d.scores) score = in.Get<float>();
  ReadStrings(in, d.merges);
  if (!in.ok()) return absl::DataLossError("tokenizer record is cut short");
  SLUICE_RETURN_IF_ERROR(Annotate(ValidateTokenizer(d), "tokenizer record"));
  return d;
}

}  // namespace sluice
