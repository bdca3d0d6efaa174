#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "runtime/sampler.h"
#include "tests/decoder_harness.h"

namespace sluice {
namespace {

// Every step of the chain off, temperature 1.
SamplerOptions Plain() {
  SamplerOptions o;
  o.temperature = 1.0f;
  o.top_k = 0;
  o.top_p = 1.0f;
  o.min_p = 0.0f;
  return o;
}

int32_t SampleOnce(Sampler& sampler, std::span<const float> logits) {
  int32_t token = -1;
  MustBeOk(sampler.Sample(logits, &token));
  return token;
}

std::map<int32_t, int> Draw(const SamplerOptions& options, std::span<const float> logits, int n) {
  Sampler sampler(options, static_cast<uint32_t>(logits.size()), 64);
  std::map<int32_t, int> counts;
  for (int i = 0; i < n; ++i) ++counts[SampleOnce(sampler, logits)];
  return counts;
}

std::set<int32_t> Drawn(const SamplerOptions& options, std::span<const float> logits) {
  std::set<int32_t> tokens;
  for (const auto& [token, count] : Draw(options, logits, 3000)) tokens.insert(token);
  return tokens;
}

// Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625, in another order.
std::vector<float> HalvingLogits() {
  const float ln2 = std::log(2.0f);
  return {-3 * ln2, -1 * ln2, -4 * ln2, -2 * ln2, -4 * ln2};
}

TEST(SamplerTest, GreedyTakesTheBestAndOfEqualsTheLowestId) {
  SamplerOptions o = Plain();
  o.temperature = 0;
  Sampler sampler(o, 5, 64);
  EXPECT_EQ(SampleOnce(sampler, std::vector<float>{1, 3, 2, 3, 3}), 1);
  EXPECT_EQ(SampleOnce(sampler, std::vector<float>{0, 0, 0, 0, 0}), 0);
  EXPECT_EQ(SampleOnce(sampler, std::vector<float>{-5, -4, -3, -2, -1}), 4);
}

TEST(SamplerTest, TopKKeepsTheBestKWithTiesToTheLowestId) {
  SamplerOptions o = Plain();
  o.top_k = 2;
  EXPECT_EQ(Drawn(o, HalvingLogits()), (std::set<int32_t>{1, 3}));
  o.top_k = 4;
  EXPECT_EQ(Drawn(o, HalvingLogits()), (std::set<int32_t>{0, 1, 2, 3}));
  o.top_k = 100;
  EXPECT_EQ(Drawn(o, HalvingLogits()), (std::set<int32_t>{0, 1, 2, 3, 4}));
}

TEST(SamplerTest, TopPKeepsTheFewestThatCoverTheShare) {
  SamplerOptions o = Plain();
  o.top_p = 0.45f;
  EXPECT_EQ(Drawn(o, HalvingLogits()), (std::set<int32_t>{1}));
  o.top_p = 0.6f;
  EXPECT_EQ(Drawn(o, HalvingLogits()), (std::set<int32_t>{1, 3}));
  o.top_p = 0.8f;
  EXPECT_EQ(Drawn(o, HalvingLogits()), (std::set<int32_t>{0, 1, 3}));
  o.top_p = 0.0f;
  EXPECT_EQ(Drawn(o, HalvingLogits()), (std::set<int32_t>{1}));
}

TEST(SamplerTest, MinPCutsWhatIsLessThanAShareOfTheBest) {
  SamplerOptions o = Plain();
  o.min_p = 0.4f;
  EXPECT_EQ(Drawn(o, HalvingLogits()), (std::set<int32_t>{1, 3}));
  o.min_p = 0.2f;
  EXPECT_EQ(Drawn(o, HalvingLogits()), (std::set<int32_t>{0, 1, 3}));
  o.min_p = 1.0f;
  EXPECT_EQ(Drawn(o, HalvingLogits()), (std::set<int32_t>{1}));
}

TEST(SamplerTest, TheCutsLookAtProbabilitiesBeforeTemperature) {
  SamplerOptions o = Plain();
  o.top_p = 0.6f;
  o.temperature = 50.0f;
  EXPECT_EQ(Drawn(o, HalvingLogits()), (std::set<int32_t>{1, 3}));
}

TEST(SamplerTest, DrawsFollowTheProbabilities) {
  constexpr int kDraws = 20000;
  const std::vector<float> logits = {std::log(0.7f), std::log(0.3f)};
  // Five standard deviations of a binomial.
  const double bound = 5 * std::sqrt(kDraws * 0.7 * 0.3);
  EXPECT_NEAR(Draw(Plain(), logits, kDraws)[0], kDraws * 0.7, bound);
  // Temperature 2 takes the square root of the odds.
  SamplerOptions o = Plain();
  o.temperature = 2.0f;
  const double odds = std::sqrt(0.7 / 0.3);
  EXPECT_NEAR(Draw(o, logits, kDraws)[0], kDraws * odds / (1 + odds), bound);
}

TEST(SamplerTest, TheSeedDecidesTheSequence) {
  const std::vector<float> logits(50, 0.0f);
  const auto sequence = [&](uint64_t seed) {
    SamplerOptions o = Plain();
    o.seed = seed;
    Sampler sampler(o, 50, 64);
    std::vector<int32_t> tokens;
    for (int i = 0; i < 40; ++i) tokens.push_back(SampleOnce(sampler, logits));
    return tokens;
  };
  EXPECT_EQ(sequence(5), sequence(5));
  EXPECT_NE(sequence(5), sequence(6));
}

TEST(SamplerTest, RepeatPenaltyMakesSeenTokensLessLikelyWhateverTheirSign) {
  SamplerOptions o = Plain();
  o.temperature = 0;
  o.repeat_penalty = 2.0f;
  Sampler positive(o, 3, 64);
  positive.Accept(0);
  EXPECT_EQ(SampleOnce(positive, std::vector<float>{3.0f, 2.0f, 1.0f}), 1);  // 1.5, 2, 1
  Sampler negative(o, 3, 64);
  negative.Accept(0);
  EXPECT_EQ(SampleOnce(negative, std::vector<float>{-1.0f, -1.5f, -4.0f}), 1);  // -2, -1.5, -4
}

TEST(SamplerTest, RepeatPenaltyCountsATokenOnceAndForgetsOldOnes) {
  SamplerOptions o = Plain();
  o.temperature = 0;
  o.repeat_penalty = 2.0f;
  o.repeat_last_n = 2;
  const std::vector<float> logits = {3.0f, 1.0f, 0.5f};
  Sampler sampler(o, 3, 64);
  sampler.Accept(0);
  sampler.Accept(0);
  EXPECT_EQ(SampleOnce(sampler, logits), 0);  // 1.5 once; twice would be 0.75
  const std::vector<float> close = {3.0f, 2.0f, 0.5f};
  EXPECT_EQ(SampleOnce(sampler, close), 1);
  sampler.Accept(2);
  sampler.Accept(2);
  EXPECT_EQ(SampleOnce(sampler, close), 0);
}

TEST(SamplerTest, LogitsThatAreNotNumbersAreAnError) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const float temperature : {0.0f, 1.0f}) {
      SamplerOptions o = Plain();
      o.temperature = temperature;
      Sampler sampler(o, 3, 64);
      int32_t token = -1;
      EXPECT_EQ(sampler.Sample(std::vector<float>{0.0f, bad, 1.0f}, &token).code(),
                absl::StatusCode::kInternal);
      EXPECT_EQ(token, -1);
    }
  }
}

TEST(SamplerTest, OptionsOutOfRangeAreNamed) {
  const auto refused = [](auto set) {
    SamplerOptions o;
    set(o);
    return std::string(ValidateSampler(o).message());
  };
  EXPECT_EQ(refused([](SamplerOptions&) {}), "");
  EXPECT_NE(refused([](SamplerOptions& o) { o.temperature = -1; }).find("--temp"),
            std::string::npos);
  EXPECT_NE(refused([](SamplerOptions& o) { o.temperature = NAN; }).find("--temp"),
            std::string::npos);
  EXPECT_NE(refused([](SamplerOptions& o) { o.top_k = -1; }).find("--top-k"), std::string::npos);
  EXPECT_NE(refused([](SamplerOptions& o) { o.top_p = 1.5f; }).find("--top-p"), std::string::npos);
  EXPECT_NE(refused([](SamplerOptions& o) { o.min_p = -0.1f; }).find("--min-p"), std::string::npos);
  EXPECT_NE(refused([](SamplerOptions& o) { o.repeat_penalty = 0; }).find("--repeat-penalty"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice
