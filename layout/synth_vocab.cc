#include "layout/synth_vocab.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"

namespace sluice {
namespace {

constexpr std::string_view kSpace = "\u2581";

// Pieces of a length are built from shorter ones, so that each is two others joined. The shapes of
// the kinds differ, so no piece is made twice.
std::vector<std::string> MakePieces(size_t n) {
  std::vector<std::string> pieces = {std::string(kSpace)};
  for (char c = '!'; c <= '~'; ++c) pieces.emplace_back(1, c);

  std::vector<std::string> syllables;
  for (const char consonant : std::string_view("bcdfghjklmnpqrstvwxyz")) {
    for (const char vowel : std::string_view("aeiou")) syllables.push_back({consonant, vowel});
  }
  const auto append = [&pieces](std::string_view left, const std::vector<std::string>& right) {
    for (const std::string& r : right) pieces.push_back(std::string(left) + r);
  };
  std::vector<std::string> letters;
  for (char c = 'a'; c <= 'z'; ++c) letters.emplace_back(1, c);
  std::vector<std::string> consonants;
  for (const std::string& s : syllables) {
    if (s[1] == 'a') consonants.push_back(s.substr(0, 1));
  }

  append("", syllables);
  append(kSpace, letters);
  append(kSpace, syllables);
  for (const std::string& s : syllables) append(s, consonants);
  for (const std::string& s : syllables) append(std::string(kSpace) + s, consonants);
  for (const std::string& s : syllables) append(s, syllables);
  for (const std::string& s : syllables) append(std::string(kSpace) + s, syllables);
  for (size_t i = 0; i < syllables.size() && pieces.size() < n; ++i) {
    for (const std::string& s : syllables) append(syllables[i] + s, consonants);
  }
  pieces.resize(n);
  return pieces;
}

}  // namespace

TokenizerData MakeSynthVocabulary(uint32_t size) {
  TokenizerData data;
  data.kind = TokenizerKind::kSentencePiece;
  data.bos = kSynthBosToken;
  data.eos = kSynthEosToken;
  data.unk = kSynthUnknownToken;
  data.add_bos = true;
  data.space_prefix = SpacePrefix::kEachPart;
  const auto add = [&data](std::string piece, float score, TokenType type) {
    data.tokens.push_back(std::move(piece));
    data.scores.push_back(score);
    data.types.push_back(type);
  };
  add("<unk>", 0.0f, TokenType::kUnknown);
  add("<s>", 0.0f, TokenType::kControl);
  add("</s>", 0.0f, TokenType::kControl);
  for (int byte = 0; byte < 256; ++byte) {
    add(absl::StrFormat("<0x%02X>", byte), 0.0f, TokenType::kByte);
  }
  float score = 0.0f;
  for (std::string& piece : MakePieces(size - kFirstSynthOrdinaryToken)) {
    add(std::move(piece), score, TokenType::kNormal);
    score -= 1.0f;  // earlier, shorter pieces merge first
  }
  return data;
}

}  // namespace sluice
