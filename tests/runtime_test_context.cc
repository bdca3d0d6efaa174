// What the context holds: limits, rewinding, calls of several tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/decoder_harness.h"

namespace sluice {
namespace {

using testing::HasSubstr;

class ContextTest : public testing::Test {
 protected:
  ContextTest() : model_(ToyModel(), WeightType::kF16), tokens_(RandomTokens(16, 300)) {
    way_.context = 16;
  }

  PackedModel model_;
  std::vector<int32_t> tokens_;
  Way way_;
};

TEST_F(ContextTest, TokensThatDoNotFitAreRefusedAndChangeNothing) {
  const Logits plain = Must(RunTokens(model_.file(), way_, tokens_, 10));
  const auto decoder = Must(OpenDecoder(model_.file(), way_));
  MustBeOk(decoder->Forward(std::span(tokens_).first(10)));
  EXPECT_EQ(decoder->Forward(std::span(tokens_).first(7)).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(decoder->position(), 10u);
  Logits logits = {{decoder->logits().begin(), decoder->logits().end()}};
  for (size_t t = 10; t < tokens_.size(); ++t) {
    MustBeOk(decoder->Forward(std::span(tokens_).subspan(t, 1)));
    logits.emplace_back(decoder->logits().begin(), decoder->logits().end());
  }
  EXPECT_TRUE(SameBits(logits, plain));
  const absl::Status status = decoder->Forward(std::span(tokens_).first(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()), HasSubstr("context of 16"));
}

TEST_F(ContextTest, IdsOutsideTheVocabularyAreRefusedAndChangeNothing) {
  const auto decoder = Must(OpenDecoder(model_.file(), way_));
  for (const int32_t bad : {-1, 300, INT32_MAX}) {
    const std::vector<int32_t> tokens = {5, bad};
    EXPECT_EQ(decoder->Forward(tokens).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(decoder->position(), 0u);
  }
  EXPECT_TRUE(SameBits(Must(RunTokens(*decoder, tokens_, 4)),
                       Must(RunTokens(model_.file(), way_, tokens_, 4))));
}

TEST_F(ContextTest, RewindForgetsAllTokens) {
  const auto decoder = Must(OpenDecoder(model_.file(), way_));
  const Logits first = Must(RunTokens(*decoder, tokens_, 9));
  decoder->Rewind();
  EXPECT_EQ(decoder->position(), 0u);
  MustBeOk(decoder->Forward(RandomTokens(16, 300, 99)));  // other keys and values everywhere
  decoder->Rewind();
  EXPECT_TRUE(SameBits(Must(RunTokens(*decoder, tokens_, 9)), first));
}

TEST_F(ContextTest, AnEmptyCallDoesNothing) {
  const auto decoder = Must(OpenDecoder(model_.file(), way_));
  MustBeOk(decoder->Forward({}));
  EXPECT_EQ(decoder->position(), 0u);
}

TEST_F(ContextTest, CallsOfAnySizeInAnyOrderGiveTheSameBits) {
  const Logits plain = Must(RunTokens(model_.file(), way_, tokens_, 16));
  for (const uint64_t budget : Budgets(model_.file(), way_)) {
    Way way = way_;
    way.budget = budget;
    const auto decoder = Must(OpenDecoder(model_.file(), way));
    // Streams and single neurons in turn, each where the other was expected next.
    for (const std::vector<size_t>& sizes :
         {std::vector<size_t>{1, 9, 2, 4}, std::vector<size_t>{10, 6}, std::vector<size_t>{3, 13},
          std::vector<size_t>{8, 8}}) {
      decoder->Rewind();
      size_t at = 0;
      for (const size_t n : sizes) {
        MustBeOk(decoder->Forward(std::span(tokens_).subspan(at, n)));
        at += n;
      }
      ASSERT_EQ(at, tokens_.size());
      const Logits last = {{decoder->logits().begin(), decoder->logits().end()}};
      EXPECT_TRUE(SameBits(last, plain)) << Describe(way) << ", first call " << sizes[0];
    }
  }
}

}  // namespace
}  // namespace sluice
