#include "runtime/tokenizer/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace sluice {
namespace {

constexpr uint32_t kRanges[] = {
#include "runtime/tokenizer/unicode_table.inc"
};

constexpr Category SearchCategory(char32_t c) {
  // The last range that begins at or before c; 7 is above every category.
  const auto* after = std::upper_bound(std::begin(kRanges), std::end(kRanges), c << 3 | 7);
  return static_cast<Category>(after[-1] & 7);
}

constexpr auto kAscii = [] {
  std::array<Category, 128> table{};
  for (char32_t a = 0; a < table.size(); ++a) table[a] = SearchCategory(a);
  return table;
}();

// The second byte of a character is the only one whose range depends on the first.
struct LeadByte {
  uint8_t length;
  uint8_t second_min, second_max;
};

constexpr LeadByte ClassifyLead(uint8_t b) {
  if (b >= 0xC2 && b <= 0xDF) return {2, 0x80, 0xBF};
  if (b == 0xE0) return {3, 0xA0, 0xBF};
  if (b == 0xED) return {3, 0x80, 0x9F};
  if (b >= 0xE1 && b <= 0xEF) return {3, 0x80, 0xBF};
  if (b == 0xF0) return {4, 0x90, 0xBF};
  if (b >= 0xF1 && b <= 0xF3) return {4, 0x80, 0xBF};
  if (b == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Char DecodeUtf8(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (byte(0) < 0x80) return {byte(0), 1, Utf8Status::kValid};
  const LeadByte lead = ClassifyLead(byte(0));
  if (lead.length == 0) return {kReplacementCharacter, 1, Utf8Status::kInvalid};

  char32_t c = byte(0) & (0x7F >> lead.length);
  for (uint8_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {kReplacementCharacter, i, Utf8Status::kTruncated};
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (byte(i) < min || byte(i) > max) return {kReplacementCharacter, i, Utf8Status::kInvalid};
    c = c << 6 | (byte(i) & 0x3F);
  }
  return {c, lead.length, Utf8Status::kValid};
}

Category CategoryOf(char32_t c) {
  if (c < kAscii.size()) return kAscii[c];
  return c > 0x10FFFF ? Category::kOther : SearchCategory(c);
}

bool IsWhitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || CategoryOf(c) == Category::kSeparator;
}

}  // namespace sluice
