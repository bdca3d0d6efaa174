// The modelled time of a token: reading hides behind computing as far as the ring goes, and what
// runs took is explained by the costs that they are given.
#include <vector>

#include "gtest/gtest.h"
#include "runtime/forecast.h"
#include "runtime/token_timeline.h"

namespace sluice {
namespace {

constexpr double kPiece = 100;

// The device takes a nanosecond a byte.
TokenWork Work(std::vector<TokenStage> stages, uint32_t n_buffers) {
  return {std::move(stages), static_cast<uint32_t>(kPiece), n_buffers, kPiece};
}

TEST(TokenTimelineTest, WhatIsKeptTakesItsComputeTime) {
  const TokenWork work = Work({{.kept_bytes = 1}, {.kept_bytes = 3}}, 2);
  EXPECT_DOUBLE_EQ(TokenNs(work, {.compute_ns = 40, .io_factor = 5}), 40);
  EXPECT_DOUBLE_EQ(TokenNs(Work({}, 2), {.compute_ns = 40}), 40);
}

TEST(TokenTimelineTest, AStreamGoesAtTheSpeedOfTheSlowerOne) {
  const TokenWork work = Work({{.stream_bytes = 10 * kPiece}}, 4);
  // Nothing is computed before the first piece is there, nothing read after the last one.
  EXPECT_DOUBLE_EQ(TokenNs(work, {.compute_ns = 3000}), 100 + 3000);
  EXPECT_DOUBLE_EQ(TokenNs(work, {.compute_ns = 500}), 1000 + 50);
  EXPECT_DOUBLE_EQ(TokenNs(work, {.compute_ns = 500, .io_factor = 2}), 2000 + 50);
}

TEST(TokenTimelineTest, AStreamHidesBehindOtherStagesOnlyAsFarAsTheRingGoes) {
  const std::vector<TokenStage> stages = {{.kept_bytes = 10 * kPiece},
                                          {.stream_bytes = 10 * kPiece}};
  const TokenCost cost = {.compute_ns = 2000};
  EXPECT_DOUBLE_EQ(TokenNs(Work(stages, 10), cost), 2000) << "all of it was read ahead";
  // While a piece is computed another one is read, as fast.
  EXPECT_DOUBLE_EQ(TokenNs(Work(stages, 2), cost), 2000);
  EXPECT_DOUBLE_EQ(TokenNs(Work(stages, 10), {.compute_ns = 2000, .io_factor = 2}), 1000 + 1100);
  // With one buffer nothing is read while something is computed.
  EXPECT_DOUBLE_EQ(TokenNs(Work(stages, 1), {.compute_ns = 2000, .io_factor = 2}),
                   1000 + 100 + 9 * (200 + 100));
}

TEST(TokenTimelineTest, WhatIsCachedIsComputedWhileMissesAreRead) {
  const TokenStage stage = {.kept_bytes = 300, .miss_bytes = 100, .miss_ns = 200};
  EXPECT_DOUBLE_EQ(TokenNs(Work({stage}, 2), {.compute_ns = 40}), 200 + 10);
  EXPECT_DOUBLE_EQ(TokenNs(Work({stage}, 2), {.compute_ns = 400}), 300 + 100);
  EXPECT_DOUBLE_EQ(TokenNs(Work({stage}, 2), {.compute_ns = 60, .flash_weight = 3}), 200 + 30);
}

TEST(TokenTimelineTest, MissesWaitForWhatTheRingHasAskedFor) {
  const TokenWork work = Work({{.miss_bytes = 100, .miss_ns = 50}, {.stream_bytes = 300}}, 2);
  // Two pieces are on their way when the misses are asked for, the third waits for a buffer.
  EXPECT_DOUBLE_EQ(TokenNs(work, {.compute_ns = 40}), 250 + 10 + 10 + 100 + 10);
}

// Of a model with ten layers, some of which are streamed.
MeasuredRun RunWith(int n_streamed, const TokenCost& cost) {
  MeasuredRun run;
  std::vector<TokenStage> stages;
  for (int i = 0; i < 10; ++i) {
    stages.push_back(i < n_streamed ? TokenStage{.stream_bytes = 50 * kPiece}
                                    : TokenStage{.kept_bytes = 50 * kPiece});
  }
  run.demand.work = Work(stages, 4);
  run.demand.stream_bytes = run.demand.stream_ns = n_streamed * 50 * kPiece;
  run.compute_ns = cost.compute_ns;
  run.token_ns = TokenNs(run.demand.work, cost);
  return run;
}

TEST(MeasuredCostTest, FindsTheCostsThatExplainItsRuns) {
  // A byte takes 1 ns to compute with, and 3 ns if it was just read.
  const TokenCost most{50'000 * 3, 3, 4.5}, least{50'000 + 5'000 * 2, 3, 20};
  const MeasuredCost cost({RunWith(10, most), RunWith(1, least)}, true);
  const TokenCost at_most = cost.At(50'000).token, at_least = cost.At(5'000).token;
  EXPECT_NEAR(at_most.flash_weight, 3, 1e-6);
  EXPECT_NEAR(at_most.io_factor, 4.5, 1e-3);
  EXPECT_NEAR(at_least.io_factor, 8, 1e-3) << "bounded";
  const TokenCost between = cost.At(27'500).token;
  EXPECT_NEAR(between.compute_ns, 105'000, 1e-6);
  // Ten times as much was read in one of them as in the other.
  EXPECT_NEAR(between.io_factor, (4.5 * 10 + 8) / 11, 1e-3);
  EXPECT_EQ(cost.At(1).token.compute_ns, at_least.compute_ns);
  EXPECT_EQ(cost.At(1e9).token.compute_ns, at_most.compute_ns);
}

TEST(MeasuredCostTest, WhatComesBeforeTheFirstTokenIsInterpolatedToo) {
  MeasuredRun small = RunWith(10, {100'000, 1, 1}), large = RunWith(0, {50'000, 1, 1});
  small.planned_bytes = 100, small.load_ns = 30, small.prefill_compute_ns = 7;
  large.planned_bytes = 300, large.load_ns = 50, large.prefill_compute_ns = 5;
  const MeasuredCost cost({large, small}, true);
  EXPECT_DOUBLE_EQ(cost.LoadNs(100), 30);
  EXPECT_DOUBLE_EQ(cost.LoadNs(500), 70);
  EXPECT_DOUBLE_EQ(cost.At(25'000).prefill_compute_ns, 6);
  EXPECT_DOUBLE_EQ(MeasuredCost({large}, true).LoadNs(600), 100) << "in proportion";
}

TEST(MeasuredCostTest, SaysNothingOfADeviceThatWasNotRead) {
  MeasuredRun run = RunWith(10, {100'000, 1, 4});
  run.planned_bytes = run.load_ns = 100;
  const MeasuredCost cost({run}, false);
  EXPECT_EQ(cost.At(50'000).token.io_factor, 1);
  EXPECT_EQ(cost.At(50'000).token.compute_ns, 100'000);
  EXPECT_EQ(cost.LoadNs(100), 0);
}

TEST(MeasuredCostTest, WhatReadsNextToNothingSaysNothingOfReading) {
  const MeasuredCost cost({RunWith(0, {100'000, 1, 4})}, true);
  EXPECT_EQ(cost.At(0).token.io_factor, 1);
}

}  // namespace
}  // namespace sluice
