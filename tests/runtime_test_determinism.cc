// The logits of a ReLU model have the same bits whatever way its weights take: budget, mode,
// engine, threads, chunks, kernels, order of completions.
#include <gtest/gtest.h>

#include <atomic>

#include "tests/decoder_harness.h"

namespace sluice {
namespace {

constexpr size_t kPrompt = 21;
constexpr size_t kDecoded = 12;

// Wide enough that products are split over threads.
ToyModel WideToy() {
  ToyModel toy;
  toy.d_model = 128;
  toy.d_ff = 256;
  toy.n_heads = 8;
  return toy;
}

class DeterminismTest : public testing::TestWithParam<WeightType> {
 protected:
  DeterminismTest()
      : model_(WideToy(), GetParam()), tokens_(RandomTokens(kPrompt + kDecoded, 300)) {
    plain_ = Must(RunTokens(model_.file(), Way(), tokens_, kPrompt));
  }

  void ExpectSame(const Way& way) {
    const auto logits = RunTokens(model_.file(), way, tokens_, kPrompt);
    ASSERT_TRUE(logits.ok()) << Describe(way) << ": " << logits.status();
    EXPECT_TRUE(SameBits(*logits, plain_)) << Describe(way);
  }

  PackedModel model_;
  std::vector<int32_t> tokens_;
  Logits plain_;
};

TEST_P(DeterminismTest, BudgetsModesAndEnginesGiveTheSameBits) {
  for (const DecodeMode mode : {DecodeMode::kDense, DecodeMode::kExact}) {
    for (const EngineKind engine : Engines()) {
      Way way;
      way.mode = mode;
      way.engine = engine;
      for (const uint64_t budget : Budgets(model_.file(), way)) {
        way.budget = budget;
        ExpectSame(way);
      }
    }
  }
}

TEST_P(DeterminismTest, ThreadsChunksAndKernelsGiveTheSameBits) {
  constexpr uint32_t kChunks[] = {1, 3, 64};
  size_t i = 0;
  for (const KernelTable* kernels : AvailableKernels()) {
    for (const int threads : {1, 2, 4}) {
      Way way;
      way.kernels = kernels;
      way.threads = threads;
      way.chunk = kChunks[(i / 3 + i) % 3];  // each count of threads with each size
      way.budget = Budgets(model_.file(), way)[i % 2 == 0 ? 2 : 3];
      ++i;
      ExpectSame(way);
    }
  }
}

TEST_P(DeterminismTest, BufferedReadsAndMappedWeightsGiveTheSameBits) {
  Way way;
  way.direct = DirectMode::kOff;
  way.budget = Budgets(model_.file(), way)[1];
  ExpectSame(way);
  for (const DecodeMode mode : {DecodeMode::kDense, DecodeMode::kExact}) {
    for (const uint32_t chunk : {1u, 64u}) {
      Way mapped;
      mapped.mapped = true;
      mapped.mode = mode;
      mapped.chunk = chunk;
      mapped.threads = 2;
      ExpectSame(mapped);
    }
  }
}

TEST_P(DeterminismTest, CompletionsInAnyOrderAndLateGiveTheSameBits) {
  for (const EngineKind engine : Engines()) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      FaultConfig faults;
      faults.seed = seed;
      faults.reorder = true;
      faults.delay = 0.3;
      faults.few = seed == 2;
      Way way;
      way.engine = engine;
      way.chunk = 3;
      way.threads = 2;
      way.faults = &faults;
      way.budget = Budgets(model_.file(), way)[seed - 1];
      ExpectSame(way);
    }
  }
}

TEST_P(DeterminismTest, ACacheOfFewSlotsWorksInWaves) {
  Way way;
  way.chunk = 1;
  way.budget = Budgets(model_.file(), way)[0];
  const auto decoder = Must(OpenDecoder(model_.file(), way));
  EXPECT_TRUE(SameBits(Must(RunTokens(*decoder, tokens_, kPrompt)), plain_));
  const DecoderStats stats = decoder->stats();
  const uint64_t passes = uint64_t{kPrompt + kDecoded} * model_.file().config().n_layers;
  EXPECT_GT(stats.active_neurons, 20 * passes) << "a wave of 16 holds what a token needs";
  EXPECT_LT(stats.active_neurons, stats.gated_neurons / 2) << "the toy is not sparse";
  EXPECT_GT(stats.evictions, 0u);
}

TEST_P(DeterminismTest, ASecondPassOverAWarmCacheGivesTheSameBits) {
  for (const size_t budget : {1, 2, 5}) {
    Way way;
    way.budget = Budgets(model_.file(), way)[budget];
    const auto decoder = Must(OpenDecoder(model_.file(), way));
    for (int pass = 0; pass < 3; ++pass) {
      decoder->Rewind();
      EXPECT_TRUE(SameBits(Must(RunTokens(*decoder, tokens_, kPrompt)), plain_))
          << Describe(way) << ", pass " << pass;
    }
  }
}

TEST_P(DeterminismTest, InDenseModeWhatIsCachedIsNotReadAgain) {
  Way way;
  way.mode = DecodeMode::kDense;
  const uint32_t all = model_.file().config().n_layers * model_.file().bundles().d_ff;
  way.budget = Budgets(model_.file(), way).back();
  MemoryPlan plan = Must(PlanMemory(model_.file(), way.request()));
  while (plan.n_slots > all * 3 / 4) {
    way.budget -= way.budget / 50;
    plan = Must(PlanMemory(model_.file(), way.request()));
  }
  ASSERT_GT(plan.n_slots, all / 4);
  const auto decoder = Must(OpenDecoder(model_.file(), way));
  MustBeOk(decoder->Forward(std::span(tokens_).first(1)));
  const DecoderStats before = decoder->stats();
  MustBeOk(decoder->Forward(std::span(tokens_).subspan(1, 1)));
  const DecoderStats second = decoder->stats() - before;
  EXPECT_EQ(second.hits + second.misses, all);
  EXPECT_GT(second.hits, plan.n_slots * 3 / 4);
}

TEST_P(DeterminismTest, AStoppedPassLeavesNoTrace) {
  for (const size_t budget : {0, 2, 5}) {
    Way way;
    way.budget = Budgets(model_.file(), way)[budget];
    const auto decoder = Must(OpenDecoder(model_.file(), way));
    const std::atomic<int> stop{1};
    EXPECT_TRUE(absl::IsCancelled(decoder->Forward(tokens_, &stop)));
    EXPECT_EQ(decoder->position(), 0u);
    EXPECT_TRUE(SameBits(Must(RunTokens(*decoder, tokens_, kPrompt)), plain_)) << Describe(way);
  }
}

TEST_P(DeterminismTest, WhereEverythingFitsItIsReadOnceWithTheFirstToken) {
  Way way;
  way.budget = Budgets(model_.file(), way).back();
  const auto decoder = Must(OpenDecoder(model_.file(), way));
  EXPECT_TRUE(SameBits(Must(RunTokens(*decoder, std::span(tokens_).first(1), 1)),
                       Must(RunTokens(model_.file(), Way(), std::span(tokens_).first(1), 1))));
  const uint64_t bytes = decoder->stats().flash_bytes;
  const BundleLayout& bundles = model_.file().bundles();
  EXPECT_GE(bytes, uint64_t{model_.file().config().n_layers} * bundles.d_ff * bundles.stride);
  decoder->Rewind();
  EXPECT_TRUE(SameBits(Must(RunTokens(*decoder, tokens_, kPrompt)), plain_));
  EXPECT_EQ(decoder->stats().flash_bytes, bytes);
}

INSTANTIATE_TEST_SUITE_P(Types, DeterminismTest,
                         testing::Values(WeightType::kF32, WeightType::kF16, WeightType::kQ8,
                                         WeightType::kQ4),
                         [](const auto& param) {
                           return std::string(WeightTypeName(param.param));
                         });

}  // namespace
}  // namespace sluice
