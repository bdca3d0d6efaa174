// Text to token ids and back, for SentencePiece and byte-level BPE vocabularies.
//
// Any bytes can be encoded: bytes that are not UTF-8 become byte tokens (SentencePiece) or the
// symbols of their bytes (byte-level BPE), so that decoding gives them back. Encoding n bytes takes
// O(n log n) time and memory O(n).
//
// Immutable after Create, so thread-safe.
#ifndef SLUICE_RUNTIME_TOKENIZER_TOKENIZER_H_
#define SLUICE_RUNTIME_TOKENIZER_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/tokenizer_data.h"
#include "runtime/tokenizer/special_matcher.h"
#include "runtime/tokenizer/text_encoder.h"
#include "runtime/tokenizer/token_table.h"

namespace sluice {

struct EncodeOptions {
  bool add_special = true;     // BOS in front and EOS behind, where the vocabulary asks for them
  bool parse_special = false;  // the text of a control token becomes that token
};

class Tokenizer {
 public:
  // InvalidArgument if `data` is not valid (ValidateTokenizer) or a merge is not between tokens.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(TokenizerData data);
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // User-defined tokens, and with parse_special control tokens, are taken out of the text first:
  // the leftmost, of those the longest. SpacePrefix says before which of the parts between them
  // SentencePiece puts a space.
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options = {}) const;

  // The bytes that a token adds to the text, which need not be whole characters. Empty for control
  // and unknown tokens and for ids outside the vocabulary. Borrowed.
  std::string_view TokenPiece(int32_t id) const;

  // The bytes of a text that begins with the first of `ids`, the space prefix taken off. TextStream
  // is the way to valid UTF-8.
  std::string Decode(std::span<const int32_t> ids) const;

  // Whether the piece of `id`, as the first of a text, begins with the space that Encode put there.
  bool HasSpacePrefix(int32_t id) const;

  bool IsEndOfGeneration(int32_t id) const;

  size_t vocab_size() const { return types_.size(); }
  int32_t bos() const { return bos_; }
  bool adds_bos() const { return add_bos_; }  // Encode puts it in front, if asked to add_special
  int32_t eos() const { return eos_; }

  // What this object holds, for the memory budget.
  size_t memory_bytes() const;

 private:
  explicit Tokenizer(const TokenizerData& data);

  bool HasType(int32_t id, TokenType type) const;
  // Whether a space goes in front of `part`, what lies between special tokens of a text.
  bool NeedsSpacePrefix(std::string_view part, bool first) const;
  void EncodeText(std::string_view text, bool space_prefix, std::vector<int32_t>& ids) const;

  TokenTable table_;
  std::vector<TokenType> types_;
  SpecialMatcher user_defined_;  // user-defined tokens
  SpecialMatcher special_;       // these and control and unknown tokens
  std::unique_ptr<TextEncoder> encoder_;
  std::vector<int32_t> end_ids_;
  int32_t bos_;
  int32_t eos_;
  bool add_bos_;
  bool add_eos_;
  SpacePrefix space_prefix_;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_TOKENIZER_TOKENIZER_H_
