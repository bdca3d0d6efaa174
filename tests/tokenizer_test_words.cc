// The splitters, against what the regular expressions of each family give.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/tokenizer/pre_tokenizer.h"

namespace sluice {
namespace {

using Words = std::vector<std::string>;

Words Split(PreTokenizer pre, std::string_view text) {
  Words words;
  SplitWords(pre, text, [&words](std::string_view word) { words.emplace_back(word); });
  return words;
}

TEST(PreTokenizerTest, Gpt2KeepsASpaceWithItsWordAndSplitsTheRest) {
  const auto pre = PreTokenizer::kGpt2;
  EXPECT_EQ(Split(pre, "Hello  world!! 123abc"),
            (Words{"Hello", " ", " world", "!!", " 123", "abc"}));
  EXPECT_EQ(Split(pre, "we've I'LL x's"), (Words{"we", "'ve", " I", "'", "LL", " x", "'s"}));
  EXPECT_EQ(Split(pre, "a\n\n b  "), (Words{"a", "\n\n", " b", "  "}));
  EXPECT_EQ(Split(pre, "a\n\nb"), (Words{"a", "\n", "\n", "b"}));
}

TEST(PreTokenizerTest, MarksAreNoLetters) {
  // Composed, and then e with U+0301.
  EXPECT_EQ(Split(PreTokenizer::kGpt2, "é!"), (Words{"é", "!"}));
  EXPECT_EQ(Split(PreTokenizer::kGpt2, "e\xCC\x81!"), (Words{"e", "\xCC\x81!"}));
}

TEST(PreTokenizerTest, LlamaBpeTakesDigitsByThreesAndContractionsInAnyCase) {
  const auto pre = PreTokenizer::kLlamaBpe;
  EXPECT_EQ(Split(pre, "12345 6"), (Words{"123", "45", " ", "6"}));
  EXPECT_EQ(Split(pre, "I'LL you'Ve"), (Words{"I", "'LL", " you", "'Ve"}));
  EXPECT_EQ(Split(pre, "(word) ..\n\nx"), (Words{"(word", ")", " ..\n\n", "x"}));
  EXPECT_EQ(Split(pre, "a \n \n  b"), (Words{"a", " \n \n", " ", " b"}));
}

TEST(PreTokenizerTest, Qwen2TakesDigitsOneByOne) {
  EXPECT_EQ(Split(PreTokenizer::kQwen2, "in 2024"), (Words{"in", " ", "2", "0", "2", "4"}));
}

TEST(PreTokenizerTest, FalconSplitsPunctuationFirstAndDigitsByThrees) {
  const auto pre = PreTokenizer::kFalcon;
  EXPECT_EQ(Split(pre, "it's `x` 1234"),
            (Words{"it", "'", "s", " ", "`", "x", "`", " ", "123", "4"}));
  EXPECT_EQ(Split(pre, "12 3456"), (Words{"12", " ", "345", "6"}));
}

TEST(PreTokenizerTest, TheDefaultLeavesTheBackquoteAndSplitsNumbersOff) {
  EXPECT_EQ(Split(PreTokenizer::kDefault, "a `$ 1234"), (Words{"a", " `", "$", " ", "123", "4"}));
}

TEST(PreTokenizerTest, DeepSeekCoderIsolatesNewlinesDigitsAndCjk) {
  const auto pre = PreTokenizer::kDeepSeekCoder;
  EXPECT_EQ(Split(pre, "x\n\ny"), (Words{"x", "\n", "\n", "y"}));
  EXPECT_EQ(Split(pre, "a 12"), (Words{"a", " ", "1", "2"}));
  EXPECT_EQ(Split(pre, " 여기"), (Words{" ", "여기"}));
  EXPECT_EQ(Split(pre, "a ++ b"), (Words{"a", " ++", " b"}));
}

TEST(PreTokenizerTest, DeepSeekLlmTakesOnlyLettersWithCase) {
  const auto pre = PreTokenizer::kDeepSeekLlm;
  EXPECT_EQ(Split(pre, "Ёлка! 12  "), (Words{"Ёлка", "!", " ", "12", "  "}));
  EXPECT_EQ(Split(pre, " 여기 x"), (Words{" ", "여기", " x"}));
  EXPECT_EQ(Split(pre, "1  \n  1"), (Words{"1", "  ", "\n", "  ", "1"}));
}

TEST(PreTokenizerTest, WordsAreTheWholeTextWhateverTheBytes) {
  std::string text;
  for (int i = 0; i < 4096; ++i) text.push_back(static_cast<char>(i * 2654435761u >> 13));
  for (uint8_t pre = 0; pre <= static_cast<uint8_t>(PreTokenizer::kQwen2); ++pre) {
    std::string joined;
    for (const std::string& word : Split(static_cast<PreTokenizer>(pre), text)) {
      EXPECT_FALSE(word.empty());
      joined += word;
    }
    EXPECT_EQ(joined, text);
  }
}

TEST(PreTokenizerTest, SplitsNothingIntoNothing) {
  EXPECT_EQ(Split(PreTokenizer::kLlamaBpe, ""), Words{});
  EXPECT_EQ(Split(PreTokenizer::kDeepSeekLlm, ""), Words{});
}

}  // namespace
}  // namespace sluice
