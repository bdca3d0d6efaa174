#include "runtime/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "runtime/tokenizer/unicode.h"

// How a list of regular expressions splits: the first one cuts the text into its matches and the
// gaps between them; the next one cuts each of these pieces as if it were a text of its own; and so
// on. Below, a *matcher* answers how many bytes its expression matches at a position (0: none), and
// a *finder* gives the leftmost match from a position on.

namespace sluice {
namespace {

// --- Classes of characters ---------------------------------------------------------------------

bool IsLetter(char32_t c) { return CategoryOf(c) == Category::kLetter; }
bool IsNumber(char32_t c) { return CategoryOf(c) == Category::kNumber; }
bool IsPunctuation(char32_t c) { return CategoryOf(c) == Category::kPunctuation; }
bool IsNewline(char32_t c) { return c == '\r' || c == '\n'; }
bool IsAsciiDigit(char32_t c) { return c >= '0' && c <= '9'; }

// [^\s\p{L}\p{N}]
bool IsOtherThanWordOrSpace(char32_t c) {
  const Category category = CategoryOf(c);
  return category != Category::kLetter && category != Category::kNumber && !IsWhitespace(c);
}

// [\p{P}\$\+<=>\^~\|], the default's notion of punctuation ...
bool IsPunctuationOrAsciiSymbol(char32_t c) {
  return IsPunctuation(c) || (c < 0x80 && c != '`' && CategoryOf(c) == Category::kSymbol);
}
// ... and Falcon's, which has the backquote too.
bool IsFalconPunctuation(char32_t c) { return c == '`' || IsPunctuationOrAsciiSymbol(c); }

struct CodePointRange {
  char32_t first, last;
};

bool InRanges(const CodePointRange* begin, const CodePointRange* end, char32_t c) {
  const auto* after = std::upper_bound(
      begin, end, c, [](char32_t value, const CodePointRange& r) { return value < r.first; });
  return after != begin && c <= after[-1].last;
}

// The letters with case that DeepSeek LLM's expression lists one by one.
constexpr CodePointRange kDeepSeekLetters[] = {
    {0x41, 0x5A},       {0x61, 0x7A},       {0xB5, 0xB5},       {0xC0, 0xD6},
    {0xD8, 0xF6},       {0xF8, 0x1BA},      {0x1BC, 0x1BF},     {0x1C4, 0x293},
    {0x295, 0x2AF},     {0x370, 0x373},     {0x376, 0x377},     {0x37B, 0x37D},
    {0x37F, 0x37F},     {0x386, 0x386},     {0x388, 0x38A},     {0x38C, 0x38C},
    {0x38E, 0x3A1},     {0x3A3, 0x3F5},     {0x3F7, 0x481},     {0x48A, 0x52F},
    {0x531, 0x556},     {0x10A0, 0x10C5},   {0x13A0, 0x13F5},   {0x13F8, 0x13FD},
    {0x1C90, 0x1CBA},   {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},   {0x1D6B, 0x1D77},
    {0x1D79, 0x1D9A},   {0x1E00, 0x1F15},   {0x1F18, 0x1F1D},   {0x1F20, 0x1F45},
    {0x1F48, 0x1F4D},   {0x1F50, 0x1F57},   {0x1F59, 0x1F59},   {0x1F5B, 0x1F5B},
    {0x1F5D, 0x1F5D},   {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},   {0x1FB6, 0x1FBC},
    {0x1FBE, 0x1FBE},   {0x1FC2, 0x1FC4},   {0x1FC6, 0x1FCC},   {0x1FD0, 0x1FD3},
    {0x1FD6, 0x1FDB},   {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},   {0x1FF6, 0x1FFC},
    {0x2102, 0x2102},   {0x2107, 0x2107},   {0x210A, 0x2113},   {0x2115, 0x2115},
    {0x2119, 0x211D},   {0x2124, 0x2124},   {0x2126, 0x2126},   {0x2128, 0x2128},
    {0x212A, 0x212D},   {0x212F, 0x2134},   {0x2139, 0x2139},   {0x213C, 0x213F},
    {0x2145, 0x2149},   {0x214E, 0x214E},   {0x2183, 0x2184},   {0x2C00, 0x2C7B},
    {0x2C7E, 0x2CE4},   {0x2CEB, 0x2CEE},   {0x2CF2, 0x2CF3},   {0xA640, 0xA66D},
    {0xA680, 0xA69B},   {0xA722, 0xA76F},   {0xA771, 0xA787},   {0xA78B, 0xA78E},
    {0xAB70, 0xABBF},   {0xFB00, 0xFB06},   {0xFB13, 0xFB17},   {0xFF21, 0xFF3A},
    {0xFF41, 0xFF5A},   {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB},
    {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943},
};
bool IsDeepSeekLetter(char32_t c) {
  return InRanges(std::begin(kDeepSeekLetters), std::end(kDeepSeekLetters), c);
}

constexpr CodePointRange kDeepSeekPunctuation[] = {
    {'!', '/'}, {':', '~'}, {0x2018, 0x201F}, {0x3000, 0x3002}, {0xFF01, 0xFF0F}, {0xFF1A, 0xFF5E},
};
bool IsDeepSeekPunctuation(char32_t c) {
  return InRanges(std::begin(kDeepSeekPunctuation), std::end(kDeepSeekPunctuation), c);
}

// [一-龥ࠀ-一가-퟿]
bool IsDeepSeekCjk(char32_t c) {
  return (c >= 0x800 && c <= 0x9FA5) || (c >= 0xAC00 && c <= 0xD7FF);
}

// --- Matchers ----------------------------------------------------------------------------------

Utf8Char CharAt(std::string_view text, size_t pos) { return DecodeUtf8(text.substr(pos)); }

// X+
template <typename IsX>
size_t MatchRun(std::string_view text, size_t pos, IsX is_x) {
  size_t end = pos;
  while (end < text.size()) {
    const Utf8Char c = CharAt(text, end);
    if (!is_x(c.code_point)) break;
    end += c.length;
  }
  return end - pos;
}

// O?X+
template <typename IsO, typename IsX>
size_t MatchRunAfterOptional(std::string_view text, size_t pos, IsO is_optional, IsX is_x) {
  const Utf8Char c = CharAt(text, pos);
  if (is_optional(c.code_point)) {
    const size_t run = MatchRun(text, pos + c.length, is_x);
    if (run > 0) return c.length + run;
  }
  return MatchRun(text, pos, is_x);
}

// 's|'t|'re|'ve|'m|'ll|'d
size_t MatchContraction(std::string_view text, size_t pos, bool ignore_case) {
  if (text[pos] != '\'') return 0;
  const auto letter = [&](size_t i) {
    const char c = pos + i < text.size() ? text[pos + i] : '\0';
    return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = letter(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  const char second = letter(2);
  if ((first == 'r' || first == 'v') && second == 'e') return 3;
  return first == 'l' && second == 'l' ? 3 : 0;
}

// \s+(?!\S)|\s+ : leaves the last space of a run to the word that follows.
size_t MatchSpaces(std::string_view text, size_t pos) {
  size_t end = pos;
  size_t last = pos;
  while (end < text.size()) {
    const Utf8Char c = CharAt(text, end);
    if (!IsWhitespace(c.code_point)) break;
    last = end;
    end += c.length;
  }
  return end == text.size() || last == pos ? end - pos : last - pos;
}

// \s*[\r\n]+
size_t MatchSpacesToNewline(std::string_view text, size_t pos) {
  size_t matched = 0;
  for (size_t end = pos; end < text.size();) {
    const Utf8Char c = CharAt(text, end);
    if (!IsWhitespace(c.code_point)) break;
    end += c.length;
    if (IsNewline(c.code_point)) matched = end - pos;
  }
  return matched;
}

bool IsBlank(char32_t c) { return c == ' '; }

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t MatchGpt2(std::string_view text, size_t pos) {
  if (const size_t n = MatchContraction(text, pos, /*ignore_case=*/false)) return n;
  if (const size_t n = MatchRunAfterOptional(text, pos, IsBlank, IsLetter)) return n;
  if (const size_t n = MatchRunAfterOptional(text, pos, IsBlank, IsNumber)) return n;
  if (const size_t n = MatchRunAfterOptional(text, pos, IsBlank, IsOtherThanWordOrSpace)) return n;
  return MatchSpaces(text, pos);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,kMaxDigits}|
//  ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
template <int kMaxDigits>
size_t MatchLlamaBpe(std::string_view text, size_t pos) {
  if (const size_t n = MatchContraction(text, pos, /*ignore_case=*/true)) return n;
  const auto joins_word = [](char32_t c) { return !IsNewline(c) && !IsLetter(c) && !IsNumber(c); };
  if (const size_t n = MatchRunAfterOptional(text, pos, joins_word, IsLetter)) return n;
  int digits = 0;
  const auto is_digit = [&digits](char32_t c) { return IsNumber(c) && digits++ < kMaxDigits; };
  if (const size_t n = MatchRun(text, pos, is_digit)) return n;
  if (const size_t n = MatchRunAfterOptional(text, pos, IsBlank, IsOtherThanWordOrSpace)) {
    return n + MatchRun(text, pos + n, IsNewline);
  }
  if (const size_t n = MatchSpacesToNewline(text, pos)) return n;
  return MatchSpaces(text, pos);
}

// [0-9][0-9][0-9]
size_t MatchThreeDigits(std::string_view text, size_t pos) {
  if (text.size() - pos < 3) return 0;
  const auto is_digit = [&](size_t i) { return IsAsciiDigit(static_cast<uint8_t>(text[pos + i])); };
  return is_digit(0) && is_digit(1) && is_digit(2) ? 3 : 0;
}

// --- Finders -----------------------------------------------------------------------------------

struct Match {
  size_t begin;
  size_t length;  // 0: there is no match
};

template <typename Matcher>
auto Leftmost(Matcher matcher) {
  return [matcher](std::string_view text, size_t pos) -> Match {
    while (pos < text.size()) {
      if (const size_t n = matcher(text, pos)) return {pos, n};
      pos += CharAt(text, pos).length;
    }
    return {text.size(), 0};
  };
}

// X+
template <typename IsX>
auto Runs(IsX is_x) {
  return Leftmost([is_x](std::string_view text, size_t pos) { return MatchRun(text, pos, is_x); });
}

// \s?X+
template <typename IsX>
auto RunsAfterSpace(IsX is_x) {
  return Leftmost([is_x](std::string_view text, size_t pos) {
    return MatchRunAfterOptional(text, pos, IsWhitespace, is_x);
  });
}

// X
template <typename IsX>
auto Singles(IsX is_x) {
  return Leftmost([is_x](std::string_view text, size_t pos) -> size_t {
    const Utf8Char c = CharAt(text, pos);
    return is_x(c.code_point) ? c.length : 0;
  });
}

// \s+$ ; a matcher would look through the same run of spaces from each of its positions.
Match FindTrailingSpaces(std::string_view text, size_t pos) {
  size_t begin = pos;
  while (pos < text.size()) {
    const Utf8Char c = CharAt(text, pos);
    pos += c.length;
    if (!IsWhitespace(c.code_point)) begin = pos;
  }
  return {begin, text.size() - begin};
}

// --- Splitting ---------------------------------------------------------------------------------

template <typename Sink>
void Cascade(std::string_view text, Sink& sink) {
  sink(text);
}

// Cuts by `finder`, and every piece by the finders that follow.
template <typename Sink, typename Finder, typename... Rest>
void Cascade(std::string_view text, Sink& sink, const Finder& finder, const Rest&... rest) {
  for (size_t pos = 0; pos < text.size();) {
    const Match match = finder(text, pos);
    if (match.begin > pos) Cascade(text.substr(pos, match.begin - pos), sink, rest...);
    if (match.length > 0) Cascade(text.substr(match.begin, match.length), sink, rest...);
    pos = match.begin + match.length;
  }
}

}  // namespace

void SplitWords(PreTokenizer pre, std::string_view text,
                absl::FunctionRef<void(std::string_view)> sink) {
  switch (pre) {
    case PreTokenizer::kDefault:
      return Cascade(text, sink, Runs(IsPunctuationOrAsciiSymbol), Leftmost(MatchGpt2),
                     Runs(IsNumber), Leftmost(MatchThreeDigits));
    case PreTokenizer::kGpt2:
      return Cascade(text, sink, Leftmost(MatchGpt2));
    case PreTokenizer::kLlamaBpe:
      return Cascade(text, sink, Leftmost(MatchLlamaBpe<3>));
    case PreTokenizer::kQwen2:
      return Cascade(text, sink, Leftmost(MatchLlamaBpe<1>));
    case PreTokenizer::kFalcon:
      return Cascade(text, sink, Runs(IsFalconPunctuation), Leftmost(MatchGpt2),
                     Leftmost(MatchThreeDigits));
    case PreTokenizer::kDeepSeekCoder:
      return Cascade(text, sink, Singles(IsNewline), RunsAfterSpace(IsLetter),
                     RunsAfterSpace(IsPunctuation), Runs(IsDeepSeekCjk), Singles(IsNumber));
    case PreTokenizer::kDeepSeekLlm:
      return Cascade(text, sink, Singles(IsNewline), RunsAfterSpace(IsDeepSeekLetter),
                     RunsAfterSpace(IsDeepSeekPunctuation), FindTrailingSpaces, Runs(IsDeepSeekCjk),
                     Runs(IsNumber));
  }
}

}  // namespace sluice
