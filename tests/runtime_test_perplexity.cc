// What a text costs in nats, and what is made of that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/perplexity.h"
#include "runtime/predictor_meter.h"
#include "tests/decoder_harness.h"
#include "tests/predicted_model.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint32_t kWindow = 20;
constexpr uint32_t kScored = 9;  // of a window
constexpr int32_t kBos = 1;

class PerplexityTest : public testing::Test {
 protected:
  PerplexityTest()
      : model_(ToyModel(), WeightType::kQ8), tokens_(RandomTokens(3 * kWindow + 7, 300)) {
    way_.context = kWindow;
    request_.tokens = tokens_;
    request_.window = kWindow;
    request_.bos = kBos;
  }

  TextScores Scores(const Way& way) {
    const auto decoder = Must(OpenDecoder(model_.file(), way));
    return Must(ScoreText(*decoder, request_, [](const TextScores&, uint32_t) {}));
  }
  TextScores Scores() { return Scores(way_); }

  PackedModel model_;
  std::vector<int32_t> tokens_;
  Way way_;
  ScoreRequest request_;
};

TEST_F(PerplexityTest, EqualsTheNllOfLogitsComputedTokenByToken) {
  const TextScores scores = Scores();
  ASSERT_EQ(scores.nll.size(), 3 * kScored);
  size_t at = 0;
  for (size_t w = 0; w < 3; ++w) {
    std::vector<int32_t> window(tokens_.begin() + w * kWindow, tokens_.begin() + (w + 1) * kWindow);
    window[0] = kBos;
    const Logits logits = Must(RunTokens(model_.file(), way_, window, 1));
    for (size_t t = kWindow / 2 + 1; t < kWindow; ++t, ++at) {
      const std::vector<float>& before = logits[t - 1];
      long double sum = 0;
      for (const float l : before) sum += std::exp(static_cast<long double>(l));
      const long double nll = std::log(sum) - before[static_cast<size_t>(window[t])];
      // Each exp is a float, off by a few units of 2^-24 at most.
      EXPECT_NEAR(scores.nll[at], static_cast<double>(nll), 1e-6) << w << ", " << t;
      EXPECT_EQ(scores.best[at], Best(before)) << w << ", " << t;
    }
  }
  EXPECT_EQ(at, scores.nll.size());
  EXPECT_EQ(scores.n_windows, 3u);
  EXPECT_EQ(scores.n_tokens, 3 * (kWindow - 1));
  EXPECT_FALSE(scores.stopped);
}

TEST_F(PerplexityTest, ModesBudgetsChunksAndThreadsGiveTheSameBits) {
  constexpr struct {
    uint32_t chunk, logit_rows;
    int threads;
  } kWays[] = {{1, 1, 1}, {3, 2, 2}, {64, 4, 1}, {64, 32, 2}};
  const TextScores plain = Scores();
  for (const DecodeMode mode : {DecodeMode::kDense, DecodeMode::kExact}) {
    for (const auto& w : kWays) {
      Way way = way_;
      way.mode = mode;
      way.chunk = w.chunk;
      way.logit_rows = w.logit_rows;
      way.threads = w.threads;
      const auto budgets = Budgets(model_.file(), way);
      for (const uint64_t budget : {budgets.front(), budgets[3], budgets.back()}) {
        way.budget = budget;
        const TextScores scores = Scores(way);
        EXPECT_EQ(scores.nll, plain.nll) << Describe(way) << ", rows " << w.logit_rows;
        EXPECT_EQ(scores.best, plain.best) << Describe(way) << ", rows " << w.logit_rows;
      }
    }
  }
}

TEST_F(PerplexityTest, AStreamedHeadServesGroupsOfTokens) {
  ToyModel toy = WideToy();
  toy.vocab_size = 16000;  // so that the head does not fit where chunks of several tokens do
  const PackedModel model(toy, WeightType::kF32);
  const auto nll = [&] {
    const auto decoder = Must(OpenDecoder(model.file(), way_));
    return Must(ScoreText(*decoder, request_, [](const TextScores&, uint32_t) {})).nll;
  };
  way_.logit_rows = 4;
  const std::vector<double> plain = nll();
  way_.budget = LeastBudgetFor(model.file(), way_, 16);
  const MemoryPlan plan = Must(PlanMemory(model.file(), way_.request()));
  ASSERT_FALSE(plan.resident[model.file().MatrixIndex(MatrixRole::kHead, 0)]);
  ASSERT_GT(plan.logit_rows, 1u);
  ASSERT_LT(plan.logit_rows, kScored) << "one group would do";
  EXPECT_EQ(nll(), plain);
}

TEST_F(PerplexityTest, PredictedModeScoresTokensThatAreDecodedOneByOne) {
  const TextScores exact = Scores();
  const PredictedModel model(model_.file(), PredictorInput::kResidual, 0.0f);
  way_.mode = DecodeMode::kPredicted;
  const auto decoder = Must(OpenDecoder(model.file(), way_));
  const TextScores scores = Must(ScoreText(*decoder, request_, [](const TextScores&, uint32_t) {}));
  EXPECT_NE(scores.nll, exact.nll) << "the predictor leaves nothing out";
  std::vector<int32_t> window(tokens_.begin(), tokens_.begin() + kWindow);
  window[0] = kBos;
  const auto other = Must(OpenDecoder(model.file(), way_));
  const Logits logits = Must(RunTokens(*other, window, kWindow / 2));
  for (size_t i = 0; i < kScored; ++i) {
    const TokenScore score = Must(ScoreToken(logits[1 + i], window[kWindow / 2 + 1 + i]));
    EXPECT_EQ(scores.nll[i], score.nll) << i;
  }
}

TEST_F(PerplexityTest, EqualLogitsGiveTheSizeOfTheVocabulary) {
  ToyModel toy;
  toy.equal_rows = true;
  const PackedModel model(toy, WeightType::kF32);
  const auto decoder = Must(OpenDecoder(model.file(), way_));
  const auto scores = Must(ScoreText(*decoder, request_, [](const TextScores&, uint32_t) {}));
  EXPECT_NEAR(std::exp(EstimateMean(scores.nll).mean), toy.vocab_size, 1e-9 * toy.vocab_size);
  EXPECT_NEAR(EstimateMean(scores.nll).standard_error, 0, 1e-12);
}

TEST_F(PerplexityTest, BosTakesThePlaceOfTheFirstTokenOfEachWindow) {
  const TextScores with = Scores();
  for (const size_t w : {0, 1, 2}) tokens_[w * kWindow] ^= 1;
  EXPECT_EQ(Scores().nll, with.nll);
  request_.bos = -1;
  EXPECT_NE(Scores().nll, with.nll);
}

TEST_F(PerplexityTest, WindowsDoNotSeeEachOther) {
  const TextScores all = Scores();
  request_.tokens = request_.tokens.subspan(kWindow);
  const TextScores rest = Scores();
  EXPECT_EQ(rest.nll, std::vector<double>(all.nll.begin() + kScored, all.nll.end()));
}

TEST_F(PerplexityTest, OnlySoManyWindowsAreScored) {
  const TextScores all = Scores();
  request_.max_windows = 2;
  const TextScores two = Scores();
  EXPECT_EQ(two.n_windows, 2u);
  EXPECT_EQ(two.nll, std::vector<double>(all.nll.begin(), all.nll.begin() + 2 * kScored));
}

TEST_F(PerplexityTest, AStopKeepsWholeWindows) {
  const TextScores all = Scores();
  std::atomic<int> stop{0};
  request_.stop = &stop;
  const auto decoder = Must(OpenDecoder(model_.file(), way_));
  const TextScores some = Must(ScoreText(*decoder, request_, [&](const TextScores& so_far, auto) {
    if (so_far.n_windows == 2) stop = 2;
  }));
  EXPECT_TRUE(some.stopped);
  EXPECT_EQ(some.n_windows, 2u);
  EXPECT_EQ(some.nll, std::vector<double>(all.nll.begin(), all.nll.begin() + 2 * kScored));
}

TEST_F(PerplexityTest, ProgressTellsHowFarItIs) {
  std::vector<uint32_t> done;
  const auto decoder = Must(OpenDecoder(model_.file(), way_));
  Must(ScoreText(*decoder, request_, [&](const TextScores& so_far, uint32_t n_windows) {
    EXPECT_EQ(n_windows, 3u);
    EXPECT_EQ(so_far.nll.size(), so_far.n_windows * kScored);
    done.push_back(so_far.n_windows);
  }));
  EXPECT_THAT(done, ElementsAre(1, 2, 3));
}

TEST_F(PerplexityTest, WhatCannotBeScoredIsRefused) {
  const auto decoder = Must(OpenDecoder(model_.file(), way_));
  const auto status = [&] {
    return ScoreText(*decoder, request_, [](const TextScores&, uint32_t) {}).status();
  };
  request_.tokens = std::span(tokens_).first(kWindow - 1);
  EXPECT_THAT(std::string(status().message()), HasSubstr("19 tokens, fewer than one window of 20"));
  request_.tokens = tokens_;
  for (const uint32_t window : {0u, 3u, kWindow + 1}) {
    request_.window = window;
    EXPECT_EQ(status().code(), absl::StatusCode::kInvalidArgument) << window;
  }
  request_.window = kLeastWindow;
  EXPECT_TRUE(status().ok());
  tokens_[2] = 300;
  EXPECT_EQ(status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(PerplexityTest, TheMeterSeesWhatTheDecoderCounts) {
  const PredictedModel model(model_.file(), PredictorInput::kResidual, 0.0f, /*shuffled=*/true);
  way_.mode = DecodeMode::kPredicted;
  PredictorMeter meter(model.file().config());
  const auto plain = Must(OpenDecoder(model.file(), way_));
  way_.observer = &meter;
  const auto decoder = Must(OpenDecoder(model.file(), way_));
  const auto score = [&](Decoder& d) {
    return Must(ScoreText(d, request_, [](const TextScores&, uint32_t) {}));
  };
  const TextScores scores = score(*decoder);
  EXPECT_EQ(scores.nll, score(*plain).nll) << "to be watched changes nothing";
  ASSERT_EQ(meter.layers().size(), 3u);
  const PredictorQuality all = SumOf(meter.layers());
  EXPECT_EQ(all.n_neurons, scores.decoder.gated_neurons);
  EXPECT_EQ(all.n_predicted, scores.decoder.active_neurons);
  EXPECT_EQ(all.n_hits, scores.decoder.firing_neurons);
  EXPECT_GT(all.n_active, all.n_hits) << "half of what fires is not predicted";
}

TEST(PredictorMeterTest, CountsHitsByLayerAndLeavesPromptsOut) {
  ModelConfig config;
  config.n_layers = 2;
  config.d_ff = 6;
  config.activation = Activation::kRelu;
  PredictorMeter meter(config);
  const float gate[] = {1, -1, 2, 0, 3, -2};
  const uint32_t predicted[] = {1, 2, 4, 5};
  FfnObservation o;
  o.layer = 1;
  o.n_tokens = 1;
  o.gate = gate;
  meter.Observe(o);  // no predictor was asked
  o.predicted = predicted;
  meter.Observe(o);
  o.layer = 0;
  o.predicted = std::span(predicted).first(0);  // it chose none
  meter.Observe(o);
  EXPECT_EQ(meter.layers()[1].n_neurons, 6u);
  EXPECT_DOUBLE_EQ(meter.layers()[1].recall(), 2.0 / 3);
  EXPECT_DOUBLE_EQ(meter.layers()[1].precision(), 0.5);
  EXPECT_DOUBLE_EQ(meter.layers()[1].true_density(), 0.5);
  EXPECT_DOUBLE_EQ(meter.layers()[0].recall(), 0.0);
  EXPECT_EQ(SumOf(meter.layers()).n_hits, 2u);
}

TEST(ScoreTokenTest, IsTheNllOfTheSoftmax) {
  const float logits[] = {0.0f, std::log(2.0f), 0.0f, std::log(2.0f)};
  const TokenScore score = Must(ScoreToken(logits, 0));
  EXPECT_NEAR(score.nll, std::log(6.0), 1e-6);
  EXPECT_EQ(score.best, 1) << "ties go to the lowest id";
  const float large[] = {1000.0f, 0.0f};
  EXPECT_EQ(Must(ScoreToken(large, 1)).nll, 1000.0);
}

TEST(ScoreTokenTest, LogitsThatAreNotFiniteAreAnError) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float bad : {NAN, kInf, -kInf}) {
    for (const size_t at : {0, 1, 2}) {
      std::vector<float> logits = {1, 2, 3};
      logits[at] = bad;
      const auto token = static_cast<int32_t>(at);
      EXPECT_EQ(ScoreToken(logits, token).status().code(), absl::StatusCode::kInternal);
    }
  }
}

TEST(EstimateTest, MeanStandardErrorAndIntervalAreThoseOfTheTextbook) {
  const double values[] = {1, 2, 3, 4, 10};
  const MeanEstimate e = EstimateMean(values);
  EXPECT_DOUBLE_EQ(e.mean, 4);
  EXPECT_DOUBLE_EQ(e.standard_error, std::sqrt(12.5 / 5));
  EXPECT_DOUBLE_EQ(e.high() - e.mean, 1.96 * e.standard_error);
  EXPECT_DOUBLE_EQ(e.mean - e.low(), 1.96 * e.standard_error);
  EXPECT_TRUE(std::isnan(EstimateMean(std::span(values).first(1)).standard_error));
}

TEST(CompareTest, DifferencesArePairedByToken) {
  TextScores a, b;
  a.nll = {1, 5, 9, 13};
  b.nll = {1.5, 5.5, 9.5, 13.5};
  a.best = {1, 2, 3, 4};
  b.best = {1, 2, 0, 4};
  const Comparison c = Compare(a, b);
  EXPECT_DOUBLE_EQ(c.nll_difference.mean, -0.5);
  EXPECT_DOUBLE_EQ(c.nll_difference.standard_error, 0) << "though both vary widely";
  EXPECT_DOUBLE_EQ(c.same_greedy, 0.75);
}

}  // namespace
}  // namespace sluice
