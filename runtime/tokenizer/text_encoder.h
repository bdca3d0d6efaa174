// The two algorithms that turn plain text, in which no special token is left, into ids.
#ifndef SLUICE_RUNTIME_TOKENIZER_TEXT_ENCODER_H_
#define SLUICE_RUNTIME_TOKENIZER_TEXT_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/tokenizer_data.h"
#include "runtime/tokenizer/token_table.h"

namespace sluice {

// Immutable, so thread-safe.
class TextEncoder {
 public:
  virtual ~TextEncoder() = default;

  // Appends the ids of `text`, of at most 2^30 bytes, to `ids`. A byte for which the vocabulary has
  // no token becomes the unknown token, or nothing if there is none. `space_prefix` asks for a
  // space in front.
  virtual void Encode(std::string_view text, bool space_prefix,
                      std::vector<int32_t>& ids) const = 0;

  virtual size_t memory_bytes() const = 0;
};

// Both borrow `table` for life: it has the tokens of `data` as FillTokenTable puts them. `data` is
// valid and borrowed for the call.
std::unique_ptr<TextEncoder> MakeSentencePieceEncoder(const TokenizerData& data,
                                                      const TokenTable& table);
// InvalidArgument for a merge of or into something that is not a token.
absl::StatusOr<std::unique_ptr<TextEncoder>> MakeByteBpeEncoder(const TokenizerData& data,
                                                                const TokenTable& table);

// The bytes that a stored token stands for. With SentencePiece U+2581 stands for a space; with
// byte-level BPE each byte is stored as a printable character of its own. Control and unknown
// tokens stay as they are.
std::string TokenBytes(TokenizerKind kind, TokenType type, const std::string& token);

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

// Used by TokenBytes.
std::string ReplaceSpaceMarks(std::string_view text);  // U+2581 becomes a space
std::string DecodeByteAlphabet(std::string_view token);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_TOKENIZER_TEXT_ENCODER_H_
