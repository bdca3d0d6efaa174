// The little of Unicode that tokenizers need: strict UTF-8 decoding and the major general
// categories that the pre-tokenizers' regular expressions name (\p{L}, \p{N}, \p{P}, \s).
// Everything here is thread-safe and allocates nothing.
#ifndef SLUICE_RUNTIME_TOKENIZER_UNICODE_H_
#define SLUICE_RUNTIME_TOKENIZER_UNICODE_H_

#include <cstdint>
#include <string_view>

namespace sluice {

constexpr char32_t kReplacementCharacter = 0xFFFD;
constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

enum class Utf8Status : uint8_t {
  kValid,
  kInvalid,    // the bytes cannot begin a character
  kTruncated,  // the text ends inside what may be a character
};

struct Utf8Char {
  char32_t code_point;  // U+FFFD unless valid
  uint8_t length;       // in bytes, 1..4; if not valid, of the longest prefix of a valid character
  Utf8Status status;
};

// Decodes the first character of `text`, which must not be empty. Follows table 3-7 of the Unicode
// standard: no overlong forms, no surrogates, nothing above U+10FFFF.
Utf8Char DecodeUtf8(std::string_view text);

// The values are those of unicode_table.inc.
enum class Category : uint8_t {
  kOther = 0,
  kLetter = 1,
  kMark = 2,
  kNumber = 3,
  kPunctuation = 4,
  kSymbol = 5,
  kSeparator = 6,
};

// kOther for anything above U+10FFFF.
Category CategoryOf(char32_t c);

// The White_Space property, which is what \s means in the regular expressions.
bool IsWhitespace(char32_t c);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_TOKENIZER_UNICODE_H_
