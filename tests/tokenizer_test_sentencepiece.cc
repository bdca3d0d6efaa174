// tokenizer.model, made by hand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "layout/tokenizer_import.h"
#include "tests/cost_bound.h"
#include "tests/tokenizer_test_data.h"
#include "tests/tokenizer_test_files.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(SentencePieceModelTest, ReadsBackWhatWasWritten) {
  const TokenizerData data = SmallSentencePiece();
  const std::string model = SentencePieceModel(data);
  const auto imported = ImportHuggingFaceTokenizer({.tokenizer_model = model}, "folder");
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data.kind, TokenizerKind::kSentencePiece);
  EXPECT_EQ(imported->data.tokens, data.tokens);
  EXPECT_EQ(imported->data.scores, data.scores);
  EXPECT_EQ(imported->data.types, data.types);
  EXPECT_EQ(imported->data.bos, data.bos);
  EXPECT_EQ(imported->data.eos, data.eos);
  EXPECT_EQ(imported->data.unk, data.unk);
  EXPECT_THAT(imported->data.end_ids, ElementsAre(IdOf(data, "<|end|>")));
  EXPECT_TRUE(imported->data.add_bos);
  EXPECT_EQ(imported->data.space_prefix, SpacePrefix::kEachPart);
  EXPECT_THAT(imported->warnings, IsEmpty());
}

TEST(SentencePieceModelTest, TakesAddedTokensAndSettingsFromTheFilesBesideIt) {
  const TokenizerData data = SmallSentencePiece();
  const auto n = static_cast<int32_t>(data.tokens.size());
  const std::string model = SentencePieceModel(data);
  const std::string added = json({{"<|im_end|>", n}, {"word", n + 1}}).dump();
  const std::string config =
      json({{"add_bos_token", false},
            {"eos_token", "<|im_end|>"},
            {"added_tokens_decoder",
             {{std::to_string(n + 2), {{"content", "<x>"}, {"special", false}}}}}})
          .dump();
  const auto imported = ImportHuggingFaceTokenizer(
      {.tokenizer_model = model, .tokenizer_config = config, .added_tokens = added}, "folder");
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_FALSE(imported->data.add_bos);
  EXPECT_EQ(imported->data.eos, n);
  EXPECT_EQ(imported->data.types[n], TokenType::kControl);
  EXPECT_EQ(imported->data.types[n + 1], TokenType::kUserDefined);
  EXPECT_EQ(imported->data.tokens[n + 2], "<x>");
}

TEST(SentencePieceModelTest, SkipsFieldsThatItDoesNotKnow) {
  std::string model = SentencePieceModel(SmallSentencePiece());
  absl::StrAppend(&model, VarintField(77, ~uint64_t{0}), BytesField(78, "future"),
                  FloatField(79, 1.0f), Varint(80 << 3 | 1), "8 bytes.");
  EXPECT_TRUE(ImportHuggingFaceTokenizer({.tokenizer_model = model}, "folder").ok());
}

TEST(SentencePieceModelTest, RefusesHostileWireData) {
  const std::string good = SentencePieceModel(SmallSentencePiece());
  const std::string huge = Varint(~uint64_t{0});
  const std::string bpe = VarintField(3, 2);
  // What each appends to a good model.
  const std::pair<const char*, std::string> cases[] = {
      {"length past the end", absl::StrCat(Varint(1 << 3 | 2), huge)},
      {"length of 2^62", absl::StrCat(Varint(1 << 3 | 2), Varint(uint64_t{1} << 62), "abc")},
      {"varint without end", std::string(11, '\xFF')},
      {"varint cut short", "\x80"},
      {"group", Varint(1 << 3 | 3)},
      {"end of a group", Varint(1 << 3 | 4)},
      {"wire type 6", Varint(1 << 3 | 6)},
      {"field 0", absl::StrCat(Varint(0), "a")},
      {"fixed32 cut short", absl::StrCat(Varint(9 << 3 | 5), "abc")},
      {"fixed64 cut short", absl::StrCat(Varint(9 << 3 | 1), "abcdefg")},
      {"piece cut short", BytesField(1, absl::StrCat(Varint(1 << 3 | 2), huge))},
      {"type of a piece out of range", BytesField(1, VarintField(3, 0))},
      {"type of a piece huge", BytesField(1, VarintField(3, ~uint64_t{0}))},
      {"score not a number",
       Piece("z", std::numeric_limits<float>::quiet_NaN(), TokenType::kNormal)},
      {"byte token out of range", Piece("<0x-1>", 0, TokenType::kByte)},
      {"byte token not hexadecimal", Piece("<0xZZ>", 0, TokenType::kByte)},
      {"BOS out of range", BytesField(2, absl::StrCat(bpe, VarintField(41, 1 << 30)))},
      {"BOS beyond 32 bits", BytesField(2, absl::StrCat(bpe, VarintField(41, 1ULL << 40)))},
      {"unigram", BytesField(2, VarintField(3, 1))},
  };
  ASSERT_TRUE(ImportHuggingFaceTokenizer({.tokenizer_model = good}, "folder").ok());
  for (const auto& [name, bytes] : cases) {
    const std::string model = absl::StrCat(good, bytes);
    const auto imported = ImportHuggingFaceTokenizer({.tokenizer_model = model}, "folder");
    ASSERT_FALSE(imported.ok()) << name;
    EXPECT_THAT(std::string(imported.status().message()), HasSubstr("folder")) << name;
  }
}

TEST(SentencePieceModelTest, DoesNotFollowNesting) {
  std::string nested;
  for (int i = 0; i < 1000; ++i) nested = BytesField(1, nested);
  const std::string model = absl::StrCat(SentencePieceModel(SmallSentencePiece()), nested);
  const auto imported = ImportHuggingFaceTokenizer({.tokenizer_model = model}, "folder");
  ASSERT_TRUE(imported.ok()) << imported.status();
  // The second level is the text of a piece, whatever it looks like.
  EXPECT_GT(imported->data.tokens.back().size(), 1000u);
}

TEST(SentencePieceModelTest, RefusesWhatIsNoModel) {
  for (const std::string& text : {BytesField(2, VarintField(3, 2)), std::string("git-lfs pointer"),
                                  std::string("<!DOCTYPE html><html></html>")}) {
    EXPECT_EQ(ImportHuggingFaceTokenizer({.tokenizer_model = text}, "folder").status().code(),
              absl::StatusCode::kDataLoss);
  }
}

TEST(SentencePieceModelTest, SurvivesBeingCutShortAtAnyByte) {
  const std::string model = SentencePieceModel(SmallSentencePiece());
  const size_t trailing = 1 + 1 + 1 + 1 + 8 + 2 + 2;  // the normaliser, which may be absent
  for (size_t n = 1; n + trailing < model.size(); ++n) {
    const auto imported = ImportHuggingFaceTokenizer(
        {.tokenizer_model = std::string_view(model).substr(0, n)}, "folder");
    EXPECT_FALSE(imported.ok()) << n;
  }
}

TEST(SentencePieceModelTest, RefusesMorePiecesThanAVocabularyCanHave) {
  // Two bytes a piece.
  std::string model;
  for (size_t i = 0; i <= kMaxTokens; ++i) model.append("\x0A\x00", 2);
  const CostBound bound;
  const auto imported = ImportHuggingFaceTokenizer({.tokenizer_model = model}, "folder");
  EXPECT_EQ(imported.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(imported.status().message()), HasSubstr("pieces"));
}

}  // namespace
}  // namespace sluice
