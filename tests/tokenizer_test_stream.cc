#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/tokenizer/text_stream.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/unicode.h"
#include "tests/tokenizer_test_data.h"

namespace sluice {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

std::unique_ptr<Tokenizer> Make(const TokenizerData& data) {
  auto tokenizer = Tokenizer::Create(data);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// What each byte, as a token of its own, and then Flush bring out.
std::vector<std::string> StreamBytes(std::string_view bytes) {
  const auto tokenizer = Make(SmallByteBpe());
  TextStream stream(*tokenizer, /*begins_text=*/true);
  std::vector<std::string> parts;
  for (const char c : bytes) {
    stream.Append(static_cast<uint8_t>(c), parts.emplace_back());
  }
  stream.Flush(parts.emplace_back());
  return parts;
}

std::string Joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += part;
  return all;
}

using Parts = std::vector<std::string>;

TEST(TextStreamTest, HoldsACharacterBackUntilItIsWhole) {
  EXPECT_EQ(StreamBytes("a€b"), (Parts{"a", "", "", "€", "b", ""}));
  EXPECT_EQ(StreamBytes("🦙"), (Parts{"", "", "", "🦙", ""}));
}

TEST(TextStreamTest, ReplacesWhatStaysIncomplete) {
  EXPECT_EQ(StreamBytes("a\xF0\x9F\xA6"), (Parts{"a", "", "", "", kReplacement}));
  EXPECT_EQ(StreamBytes("\xE2\x82"
                        "a"),
            (Parts{"", "", std::string(kReplacement) + "a", ""}));
}

TEST(TextStreamTest, ReplacesEveryLongestPrefixOfACharacterOnce) {
  const std::string r = kReplacement;
  // The Unicode standard's own example, section 3.9.
  EXPECT_EQ(Joined(StreamBytes("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64")),
            "a" + r + r + r + "b" + r + "c" + r + r + "d");
  EXPECT_EQ(Joined(StreamBytes("\xC0\xAF")), r + r);                  // overlong
  EXPECT_EQ(Joined(StreamBytes("\xED\xA0\x80")), r + r + r);          // a surrogate
  EXPECT_EQ(Joined(StreamBytes("\xF4\x90\x80\x80")), r + r + r + r);  // above U+10FFFF
}

TEST(TextStreamTest, DropsTheSpacePrefixOnlyWhereATextBegins) {
  const TokenizerData data = SmallSentencePiece();
  const auto tokenizer = Make(data);
  const std::vector<int32_t> ids = {data.bos, IdOf(data, "\xE2\x96\x81hello"),
                                    IdOf(data, "\xE2\x96\x81world")};
  for (const bool begins_text : {true, false}) {
    TextStream stream(*tokenizer, begins_text);
    std::string out;
    for (const int32_t id : ids) stream.Append(id, out);
    EXPECT_EQ(out, begins_text ? "hello world" : " hello world");
  }
}

TEST(TextStreamTest, KeepsASpaceThatAUserDefinedTokenBeginsWith) {
  TokenizerData data = SmallSentencePiece();
  data.space_prefix = SpacePrefix::kFirstPartUnlessSpace;
  const int32_t id = AddToken(data, " user", TokenType::kUserDefined);
  const auto tokenizer = Make(data);
  const std::vector<int32_t> ids = tokenizer->Encode(" userhello", {.add_special = false});
  ASSERT_EQ(ids[0], id);
  EXPECT_EQ(tokenizer->Decode(ids), " userhello");
  TextStream stream(*tokenizer, /*begins_text=*/true);
  std::string out;
  stream.Append(id, out);
  EXPECT_EQ(out, " user");
}

TEST(TextStreamTest, IgnoresIdsOutsideTheVocabulary) {
  const auto tokenizer = Make(SmallByteBpe());
  TextStream stream(*tokenizer, /*begins_text=*/true);
  std::string out;
  for (const int32_t id : {-1, 100000, int32_t{'a'}}) stream.Append(id, out);
  EXPECT_EQ(out, "a");
}

TEST(UnicodeTest, DecodesEveryCodePointThatItsEncodingGives) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    std::string s;
    if (c < 0x80) {
      s = {static_cast<char>(c)};
    } else if (c < 0x800) {
      s = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    } else if (c < 0x10000) {
      s = {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
           static_cast<char>(0x80 | (c & 63))};
    } else {
      s = {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
           static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
    }
    const Utf8Char decoded = DecodeUtf8(s);
    const bool surrogate = c >= 0xD800 && c <= 0xDFFF;
    ASSERT_EQ(decoded.status, surrogate ? Utf8Status::kInvalid : Utf8Status::kValid);
    ASSERT_EQ(decoded.code_point, surrogate ? kReplacementCharacter : c);
    ASSERT_EQ(decoded.length, surrogate ? 1 : s.size());
  }
}

TEST(UnicodeTest, KnowsTheCategories) {
  EXPECT_EQ(CategoryOf(U'a'), Category::kLetter);
  EXPECT_EQ(CategoryOf(U'я'), Category::kLetter);
  EXPECT_EQ(CategoryOf(U'中'), Category::kLetter);
  EXPECT_EQ(CategoryOf(0x1E943), Category::kLetter);  // the last Adlam letter
  EXPECT_EQ(CategoryOf(0x0301), Category::kMark);
  EXPECT_EQ(CategoryOf(U'7'), Category::kNumber);
  EXPECT_EQ(CategoryOf(U'½'), Category::kNumber);
  EXPECT_EQ(CategoryOf(U'٣'), Category::kNumber);
  EXPECT_EQ(CategoryOf(U'!'), Category::kPunctuation);
  EXPECT_EQ(CategoryOf(U'。'), Category::kPunctuation);
  EXPECT_EQ(CategoryOf(U'$'), Category::kSymbol);
  EXPECT_EQ(CategoryOf(U'🦙'), Category::kSymbol);
  EXPECT_EQ(CategoryOf(U' '), Category::kSeparator);
  EXPECT_EQ(CategoryOf(U'\n'), Category::kOther);
  EXPECT_EQ(CategoryOf(0x10FFFF), Category::kOther);
  EXPECT_EQ(CategoryOf(0x110000), Category::kOther);
  EXPECT_EQ(CategoryOf(0xFFFFFFFF), Category::kOther);
}

TEST(UnicodeTest, KnowsWhiteSpace) {
  std::vector<char32_t> spaces;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (IsWhitespace(c)) spaces.push_back(c);
  }
  // PropList.txt, White_Space.
  EXPECT_EQ(spaces, (std::vector<char32_t>{0x09,   0x0A,   0x0B,   0x0C,   0x0D,   0x20,   0x85,
                                           0xA0,   0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004,
                                           0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200A, 0x2028,
                                           0x2029, 0x202F, 0x205F, 0x3000}));
}

}  // namespace
}  // namespace sluice
