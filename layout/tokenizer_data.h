// A vocabulary with everything that turns text into ids, as an importer reads it and as a `.sluice`
// file stores it. The algorithms that use it are in runtime/tokenizer.
#ifndef SLUICE_LAYOUT_TOKENIZER_DATA_H_
#define SLUICE_LAYOUT_TOKENIZER_DATA_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/byte_io.h"

namespace sluice {

enum class TokenizerKind : uint8_t {
  kSentencePiece = 0,  // scored merges, byte fallback, U+2581 for space
  kByteBpe = 1,        // byte-level BPE with merge ranks
};

// How byte-level BPE first splits text, by model family.
enum class PreTokenizer : uint8_t {
  kDefault = 0,
  kGpt2 = 1,
  kLlamaBpe = 2,
  kDeepSeekLlm = 3,
  kDeepSeekCoder = 4,
  kFalcon = 5,
  kQwen2 = 6,
};

// GGUF's token types.
enum class TokenType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // never printed; matched in text only when special tokens are parsed
  kUserDefined = 4,  // matched in text verbatim, before anything else
  kUnused = 5,
  kByte = 6,  // "<0x41>"
};

// Where SentencePiece puts a space that the text does not have. A part is what lies between special
// tokens that were found in the text.
enum class SpacePrefix : uint8_t {
  kNone = 0,
  kEachPart = 1,              // llama.cpp; tokenizer.json's normaliser "Prepend"
  kFirstPartUnlessSpace = 2,  // "Metaspace" with "first": not before a part that begins with one
  kEachPartUnlessSpace = 3,   // "Metaspace" with "always"
};

constexpr int32_t kNoToken = -1;
// The largest vocabularies have 0.9 million tokens, and two merges for each.
constexpr size_t kMaxTokens = size_t{1} << 20;
constexpr size_t kMaxMergesPerToken = 8;
constexpr size_t kMaxEndIds = 64;
constexpr size_t kMaxTokenBytes = size_t{1} << 16;
// Control and user-defined tokens are searched for at every position of a text.
constexpr size_t kMaxSpecialBytes = 1024;
// The stored record; one of 256k tokens with their merges takes 12 MiB.
constexpr size_t kMaxTokenizerRecord = size_t{24} << 20;

struct TokenizerData {
  TokenizerKind kind = TokenizerKind::kSentencePiece;
  PreTokenizer pre = PreTokenizer::kDefault;
  std::vector<std::string> tokens;  // by id; as stored (U+2581 or byte-level alphabet)
  std::vector<float> scores;        // kSentencePiece: one per token; else empty
  std::vector<TokenType> types;     // one per token
  std::vector<std::string> merges;  // kByteBpe: "left right" in rank order
  int32_t bos = kNoToken;
  int32_t eos = kNoToken;  // ends generation
  int32_t unk = kNoToken;
  std::vector<int32_t> end_ids;  // further ids that end generation (end of turn, of message, ...)
  bool add_bos = false;
  bool add_eos = false;
  SpacePrefix space_prefix = SpacePrefix::kNone;  // kSentencePiece
  bool ignore_merges = false;  // kByteBpe: a word that is a token is taken whole, unmerged
};

// Makes `id` end generation, unless it is kNoToken, does so already, or kMaxEndIds others do.
void AddEndId(TokenizerData& data, int32_t id);

// InvalidArgument naming the first thing that is wrong: ids outside the vocabulary, arrays of
// different length, a score that is not finite, a byte token that is not "<0xHH>", a merge that is
// not two parts with one space between, more than kMaxTokens tokens, ...
// The same text under two ids is allowed: the lower id is the one that encoding gives.
absl::Status ValidateTokenizer(const TokenizerData& data);

// The byte that a token "<0xHH>" (two hexadecimal digits, either case) stands for, or -1.
int ParseByteToken(std::string_view token);

// The ids that a merge stands for.
struct MergeIds {
  int32_t left = kNoToken, right = kNoToken, result = kNoToken;

  bool resolved() const { return left != kNoToken && right != kNoToken && result != kNoToken; }
};
// By rank; kNoToken stands for a text that is no token. Tokens of every type may be merged, as with
// llama.cpp; of equal ones those that text becomes go first, then the lowest id. `data` is valid.
std::vector<MergeIds> ResolveMerges(const TokenizerData& data);

// The record is described in layout/sluice_format.h.
void WriteTokenizer(const TokenizerData& data, ByteWriter& out);
// Validates too. DataLoss for a record that is cut short, holds an unknown enumerator or, where
// `vocab_size` is given, has another number of tokens. What is read takes little more memory than
// the record and `vocab_size` strings.
absl::StatusOr<TokenizerData> ReadTokenizer(ByteReader& in,
                                            std::optional<size_t> vocab_size = std::nullopt);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_TOKENIZER_DATA_H_
