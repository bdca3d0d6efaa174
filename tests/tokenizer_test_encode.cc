// Encoding and decoding with small vocabularies whose ids can be told by hand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/tokenizer_test_data.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr EncodeOptions kPlain = {.add_special = false};

std::unique_ptr<Tokenizer> Make(const TokenizerData& data) {
  auto tokenizer = Tokenizer::Create(data);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// The ids as the stored texts of their tokens, U+2581 written "_".
std::vector<std::string> Tokens(const TokenizerData& data, const std::vector<int32_t>& ids) {
  std::vector<std::string> tokens;
  for (const int32_t id : ids) {
    tokens.push_back(absl::StrReplaceAll(data.tokens[id], {{"\xE2\x96\x81", "_"}}));
  }
  return tokens;
}

std::vector<std::string> EncodedAs(const TokenizerData& data, std::string_view text,
                                   const EncodeOptions& options = kPlain) {
  return Tokens(data, Make(data)->Encode(text, options));
}

TEST(SentencePieceTest, MergesByScoreAndPutsASpaceInFront) {
  const TokenizerData data = SmallSentencePiece();
  EXPECT_THAT(EncodedAs(data, "hello"), ElementsAre("_hello"));
  EXPECT_THAT(EncodedAs(data, " hello hell"), ElementsAre("_", "_hello", "_", "hell"));
}

TEST(SentencePieceTest, MergesTheLeftmostOfEqualPairsFirst) {
  TokenizerData data = SmallSentencePiece();
  data.space_prefix = SpacePrefix::kNone;
  EXPECT_THAT(EncodedAs(data, "lll"), ElementsAre("ll", "l"));
  EXPECT_THAT(EncodedAs(data, "llll"), ElementsAre("ll", "ll"));
}

TEST(SentencePieceTest, PrefersTheHigherScoreToTheEarlierPosition) {
  TokenizerData data = SmallSentencePiece();
  data.space_prefix = SpacePrefix::kNone;
  // "ll" has a higher score than "lo", and "lo" comes later anyway.
  EXPECT_THAT(EncodedAs(data, "llo"), ElementsAre("ll", "o"));
  data.scores[IdOf(data, "lo")] = 5.0f;
  EXPECT_THAT(EncodedAs(data, "llo"), ElementsAre("l", "lo"));
}

TEST(SentencePieceTest, SpellsUnknownCharactersInBytes) {
  const TokenizerData data = SmallSentencePiece();
  EXPECT_THAT(EncodedAs(data, "é"), ElementsAre("_", "é"));
  EXPECT_THAT(EncodedAs(data, "ß"), ElementsAre("_", "<0xC3>", "<0x9F>"));
}

TEST(SentencePieceTest, GivesOneUnknownTokenForARunWithoutByteTokens) {
  const TokenizerData data = SmallSentencePiece(/*byte_fallback=*/false);
  EXPECT_THAT(EncodedAs(data, "hßßhß"), ElementsAre("_", "h", "<unk>", "h", "<unk>"));
}

TEST(SentencePieceTest, DropsUnknownCharactersWithoutAnUnknownToken) {
  TokenizerData data = SmallSentencePiece(/*byte_fallback=*/false);
  data.unk = kNoToken;
  EXPECT_THAT(EncodedAs(data, "hßh"), ElementsAre("_", "h", "h"));
}

TEST(SentencePieceTest, SpellsBytesThatAreNotUtf8) {
  const TokenizerData data = SmallSentencePiece();
  const std::string bad = "h\xFF\xC3hello\xE2\x82";
  EXPECT_THAT(EncodedAs(data, bad),
              ElementsAre("_", "h", "<0xFF>", "<0xC3>", "hello", "<0xE2>", "<0x82>"));
  const auto tokenizer = Make(data);
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(bad)), bad);
}

TEST(SentencePieceTest, TakesTheSpaceMarkForASpace) {
  const TokenizerData data = SmallSentencePiece();
  EXPECT_THAT(EncodedAs(data, "\xE2\x96\x81hello"), ElementsAre("_", "_hello"));
}

TEST(SentencePieceTest, MergesAcrossSpacesWhereTheVocabularyDoes) {
  TokenizerData data = SmallSentencePiece();
  data.space_prefix = SpacePrefix::kNone;
  AddToken(data, "o\xE2\x96\x81", TokenType::kNormal, 9.0f);
  EXPECT_THAT(EncodedAs(data, "hello hello"), ElementsAre("hell", "o_", "hello"));
}

TEST(SentencePieceTest, PutsASpaceBeforeThePartsThatTheVocabularyAsksFor) {
  TokenizerData data = SmallSentencePiece();
  const EncodeOptions parse = {.add_special = false, .parse_special = true};
  const auto encoded = [&](SpacePrefix prefix, std::string_view text) {
    data.space_prefix = prefix;
    return EncodedAs(data, text, parse);
  };
  const char* text = "hello[INST]hello</s>hello";
  EXPECT_THAT(encoded(SpacePrefix::kNone, text),
              ElementsAre("hello", "[INST]", "hello", "</s>", "hello"));
  EXPECT_THAT(encoded(SpacePrefix::kEachPart, text),
              ElementsAre("_hello", "[INST]", "_hello", "</s>", "_hello"));
  EXPECT_THAT(encoded(SpacePrefix::kEachPartUnlessSpace, text),
              ElementsAre("_hello", "[INST]", "_hello", "</s>", "_hello"));
  EXPECT_THAT(encoded(SpacePrefix::kFirstPartUnlessSpace, text),
              ElementsAre("_hello", "[INST]", "hello", "</s>", "hello"));
  EXPECT_THAT(encoded(SpacePrefix::kFirstPartUnlessSpace, "[INST]hello"),
              ElementsAre("[INST]", "hello"));
  for (const char* spaced : {" hello[INST] hello", "\xE2\x96\x81hello[INST]\xE2\x96\x81hello"}) {
    EXPECT_THAT(encoded(SpacePrefix::kEachPart, spaced),
                ElementsAre("_", "_hello", "[INST]", "_", "_hello"));
    EXPECT_THAT(encoded(SpacePrefix::kEachPartUnlessSpace, spaced),
                ElementsAre("_hello", "[INST]", "_hello"));
    EXPECT_THAT(encoded(SpacePrefix::kFirstPartUnlessSpace, spaced),
                ElementsAre("_hello", "[INST]", "_hello"));
  }
}

TEST(SentencePieceTest, AddsBosAndEosAsTheVocabularyAsks) {
  TokenizerData data = SmallSentencePiece();
  EXPECT_THAT(EncodedAs(data, "hello", {}), ElementsAre("<s>", "_hello"));
  EXPECT_THAT(EncodedAs(data, "", {}), ElementsAre("<s>"));
  EXPECT_THAT(EncodedAs(data, ""), ElementsAre());
  data.add_eos = true;
  data.add_bos = false;
  EXPECT_THAT(EncodedAs(data, "hello", {}), ElementsAre("_hello", "</s>"));
}

TEST(SpecialTokenTest, AreMatchedInTextOnlyWhenAsked) {
  const TokenizerData data = SmallSentencePiece();
  const EncodeOptions parse = {.add_special = false, .parse_special = true};
  EXPECT_THAT(EncodedAs(data, "hello</s>hello", parse), ElementsAre("_hello", "</s>", "_hello"));
  const auto plain = EncodedAs(data, "hello</s>hello");
  EXPECT_THAT(plain, testing::Not(testing::Contains("</s>")));
  EXPECT_GT(plain.size(), 3u);
}

TEST(SpecialTokenTest, UserDefinedTokensAreAlwaysMatchedAndTheLongestWins) {
  const TokenizerData data = SmallSentencePiece();
  EXPECT_THAT(EncodedAs(data, "hello[INST]hello"), ElementsAre("_hello", "[INST]", "_hello"));
  EXPECT_THAT(EncodedAs(data, "[INST] now[INST]no"),
              ElementsAre("[INST] now", "[INST]", "_", "<0x6E>", "o"));
  const TokenizerData bpe = SmallByteBpe();
  EXPECT_THAT(EncodedAs(bpe, "hello<tool>hello"), ElementsAre("hello", "<tool>", "hello"));
}

TEST(SpecialTokenTest, TheLeftmostMatchWinsOverALongerOneBehind) {
  TokenizerData data = SmallByteBpe();
  AddToken(data, "<a><", TokenType::kUserDefined);
  AddToken(data, "<bbbbbbbbbb>", TokenType::kUserDefined);
  EXPECT_EQ(EncodedAs(data, "<a><bbbbbbbbbb>")[0], "<a><");
}

TEST(SpecialTokenTest, ControlTokensPrintNothing) {
  const TokenizerData data = SmallSentencePiece();
  const auto tokenizer = Make(data);
  EXPECT_EQ(tokenizer->TokenPiece(data.bos), "");
  EXPECT_EQ(tokenizer->TokenPiece(data.unk), "");
  EXPECT_EQ(tokenizer->TokenPiece(IdOf(data, "[INST]")), "[INST]");
  EXPECT_EQ(tokenizer->TokenPiece(-1), "");
  EXPECT_EQ(tokenizer->TokenPiece(static_cast<int32_t>(data.tokens.size())), "");
}

TEST(SpecialTokenTest, EosAndListedIdsEndGeneration) {
  TokenizerData data = SmallSentencePiece();
  data.end_ids = {5};
  const auto tokenizer = Make(data);
  for (const int32_t id : {data.eos, 5}) EXPECT_TRUE(tokenizer->IsEndOfGeneration(id));
  for (const int32_t id : {data.bos, 6, kNoToken}) EXPECT_FALSE(tokenizer->IsEndOfGeneration(id));
}

TEST(ByteBpeTest, MergesByRank) {
  const TokenizerData data = SmallByteBpe();
  EXPECT_THAT(EncodedAs(data, "hello hello"), ElementsAre("hello", ByteSymbol(' ') + "hello"));
  EXPECT_THAT(EncodedAs(data, "llo"), ElementsAre("ll", "o"));
  EXPECT_THAT(EncodedAs(data, "lllll"), ElementsAre("ll", "ll", "l"));
}

TEST(ByteBpeTest, KeepsBytesThatAreNotUtf8) {
  const TokenizerData data = SmallByteBpe();
  const auto tokenizer = Make(data);
  const std::string bad = "h\xFF\xC3\xC3\xA9\xE2\x82 \x80";
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(bad)), bad);
  EXPECT_THAT(tokenizer->Encode("\xFF\xFE"), ElementsAre(0xFF, 0xFE));
}

TEST(ByteBpeTest, TakesAWholeWordUnmergedIfMergesAreIgnored) {
  TokenizerData data = SmallByteBpe();
  AddToken(data, "oleh");
  EXPECT_THAT(EncodedAs(data, "oleh"), ElementsAre("o", "l", "e", "h"));
  data.ignore_merges = true;
  EXPECT_THAT(EncodedAs(data, "oleh"), ElementsAre("oleh"));
}

TEST(ByteBpeTest, GivesUnknownOrNothingForAByteWithoutToken) {
  TokenizerData data = SmallByteBpe();
  data.tokens['q'] = "not a byte";
  EXPECT_THAT(EncodedAs(data, "hqh"), ElementsAre("h", "h"));
  data.unk = IdOf(data, "<tool>");
  EXPECT_THAT(EncodedAs(data, "hqh"), ElementsAre("h", "<tool>", "h"));
}

TEST(ByteBpeTest, RefusesAMergeOfWhatIsNotAToken) {
  for (const char* merge : {"x y", "hello nothing", "nothing h"}) {
    TokenizerData data = SmallByteBpe();
    data.merges.push_back(merge);
    const auto tokenizer = Tokenizer::Create(data);
    ASSERT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument) << merge;
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(merge));
  }
}

TEST(TokenizerTest, GivesTheLowestIdOfEqualTokens) {
  TokenizerData sp = SmallSentencePiece();
  sp.space_prefix = SpacePrefix::kNone;
  AddToken(sp, "hello", TokenType::kNormal, 100.0f);
  EXPECT_THAT(Make(sp)->Encode("hello", kPlain), ElementsAre(IdOf(sp, "hello")));
  TokenizerData bpe = SmallByteBpe();
  AddToken(bpe, "hello");
  AddToken(bpe, "<tool>", TokenType::kUserDefined);
  EXPECT_THAT(Make(bpe)->Encode("hello<tool>"),
              ElementsAre(IdOf(bpe, "hello"), IdOf(bpe, "<tool>")));
}

TEST(TokenizerTest, RefusesAnInvalidVocabulary) {
  TokenizerData data = SmallByteBpe();
  data.bos = 100000;
  EXPECT_EQ(Tokenizer::Create(data).status().code(), absl::StatusCode::kInvalidArgument);
}

// A quadratic algorithm takes the better part of an hour on these.
TEST(TokenizerTest, EncodesAMebibyteOfOneCharacterQuickly) {
  const auto byte_bpe = [](PreTokenizer pre) {
    TokenizerData data = SmallByteBpe();
    data.pre = pre;
    return data;
  };
  const std::pair<TokenizerData, char> cases[] = {
      {SmallSentencePiece(), 'l'},
      {SmallSentencePiece(), ' '},
      {byte_bpe(PreTokenizer::kGpt2), 'l'},
      {byte_bpe(PreTokenizer::kLlamaBpe), ' '},
      {byte_bpe(PreTokenizer::kDeepSeekLlm), ' '},
      {byte_bpe(PreTokenizer::kFalcon), '1'},
  };
  for (const auto& [data, c] : cases) {
    const auto tokenizer = Make(data);
    std::string text(size_t{1} << 20, c);
    text += "1x";  // so that runs of spaces do not end the text
    const auto start = std::chrono::steady_clock::now();
    const auto ids = tokenizer->Encode(text);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_LT(took.count(), 60.0) << "character '" << c << "'";
    EXPECT_EQ(tokenizer->Decode(ids), text);
  }
}

}  // namespace
}  // namespace sluice
