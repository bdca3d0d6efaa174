// Predicted mode: the predictor alone decides what is read and computed; everything else is as in
// the other modes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "runtime/hot_plan.h"
#include "tests/predicted_model.h"

namespace sluice {
namespace {

constexpr size_t kPrompt = 21;
constexpr size_t kDecoded = 12;
constexpr PredictorInput kInputs[] = {PredictorInput::kNormed, PredictorInput::kResidual,
                                      PredictorInput::kPrevious};

class PredictedTest : public testing::Test {
 protected:
  PredictedTest()
      : plain_(WideToy(), WeightType::kQ8), tokens_(RandomTokens(kPrompt + kDecoded, 300)) {}

  static Way Predicted() {
    Way way;
    way.mode = DecodeMode::kPredicted;
    return way;
  }
  Logits Run(const SluiceFile& file, const Way& way) {
    return Must(RunTokens(file, way, tokens_, kPrompt));
  }

  PackedModel plain_;
  std::vector<int32_t> tokens_;
};

TEST_F(PredictedTest, PredictingEveryNeuronGivesTheLogitsOfExactMode) {
  const Logits exact = Run(plain_.file(), Way());
  for (const PredictorInput input : kInputs) {
    const PredictedModel model(plain_.file(), input, -1e30f);
    EXPECT_TRUE(SameBits(Run(model.file(), Predicted()), exact));
    EXPECT_TRUE(SameBits(Run(model.file(), Way()), exact)) << "exact mode of the relaid file";
  }
}

TEST_F(PredictedTest, PredictingNoneLeavesTheFfnOut) {
  const Logits exact = Run(plain_.file(), Way());
  const PredictedModel model(plain_.file(), PredictorInput::kResidual, 1e30f);
  const Logits none = Run(model.file(), Predicted());
  EXPECT_TRUE(SameBits({none[0]}, {exact[0]})) << "the prompt is dense";
  EXPECT_GT(MaxError(none.back(), exact.back()), 1e-3f);
  auto decoder = Must(OpenDecoder(model.file(), Predicted()));
  Must(RunTokens(*decoder, tokens_, kPrompt));
  EXPECT_EQ(decoder->stats().active_neurons, 0u);
}

TEST_F(PredictedTest, BudgetsEnginesThreadsAndChunksGiveTheSameBits) {
  for (const PredictorInput input : kInputs) {
    const PredictedModel model(plain_.file(), input, 0.0f, /*shuffled=*/true);
    const Logits expected = Run(model.file(), Predicted());
    EXPECT_GT(MaxError(expected.back(), Run(model.file(), Way()).back()), 0.0f)
        << "the made-up predictor leaves nothing out: the test is void";
    ExpectSameBitsEveryWay(model.file(), Predicted(), tokens_, kPrompt, expected);
  }
}

TEST_F(PredictedTest, AShortPromptGoesTokenByToken) {
  const PredictedModel model(plain_.file(), PredictorInput::kPrevious, 0.0f);
  const Logits together =
      Must(RunTokens(model.file(), Predicted(), std::span(tokens_).first(5), 5));
  const Logits single = Must(RunTokens(model.file(), Predicted(), std::span(tokens_).first(5), 1));
  EXPECT_TRUE(SameBits({together.back()}, {single.back()}));
}

TEST_F(PredictedTest, ReadsALayerAheadAndCountsWhatCameInTime) {
  for (const PredictorInput input : kInputs) {
    const PredictedModel model(plain_.file(), input, 0.0f);
    Way way = Predicted();
    way.budget = Budgets(model.file(), way)[4];
    auto decoder = Must(OpenDecoder(model.file(), way));
    const Logits logits = Must(RunTokens(*decoder, tokens_, kPrompt));
    const LookAheadStats ahead = decoder->stats().look_ahead;
    EXPECT_GT(ahead.needed, 0u);
    EXPECT_LE(ahead.needed, ahead.reads);
    EXPECT_LE(ahead.in_time, ahead.needed);
    if (input == PredictorInput::kPrevious) {
      EXPECT_EQ(ahead.needed, ahead.reads);
    }
    way.look_ahead = false;
    decoder = Must(OpenDecoder(model.file(), way));
    EXPECT_TRUE(SameBits(Must(RunTokens(*decoder, tokens_, kPrompt)), logits));
    EXPECT_EQ(decoder->stats().look_ahead.reads, 0u);
    EXPECT_GT(decoder->stats().misses, 0u);
  }
}

TEST_F(PredictedTest, WhatIsReadAheadIsCountedOnceAmongHitsAndMisses) {
  const PredictedModel model(plain_.file(), PredictorInput::kResidual, 0.0f);
  for (const bool look_ahead : {true, false}) {
    Way way = Predicted();
    way.budget = Budgets(model.file(), way)[4];
    way.look_ahead = look_ahead;
    auto decoder = Must(OpenDecoder(model.file(), way));
    Must(RunTokens(*decoder, std::span(tokens_).first(kPrompt), kPrompt));
    const DecoderStats before = decoder->stats();
    for (size_t i = kPrompt; i < tokens_.size(); ++i) MustBeOk(decoder->Forward({&tokens_[i], 1}));
    const DecoderStats stats = decoder->stats() - before;
    EXPECT_EQ(stats.hits + stats.misses, stats.active_neurons);
  }
}

// A prompt after decoding streams all bundles: what is on its way to the cache is not there yet.
TEST_F(PredictedTest, APromptMayFollowWhatWasReadAhead) {
  const PredictedModel model(plain_.file(), PredictorInput::kResidual, 0.0f);
  const auto run = [&](const Way& way) {
    auto decoder = Must(OpenDecoder(model.file(), way));
    Logits logits;
    for (size_t at = 0; at < tokens_.size();) {
      const size_t n = std::min(at % 5 == 0 ? size_t{1} : size_t{9}, tokens_.size() - at);
      MustBeOk(decoder->Forward(std::span(tokens_).subspan(at, n)));
      logits.emplace_back(decoder->logits().begin(), decoder->logits().end());
      at += n;
    }
    return logits;
  };
  const Logits expected = run(Predicted());
  for (const EngineKind engine : Engines()) {
    for (const uint64_t budget : Budgets(model.file(), Predicted())) {
      Way way = Predicted();
      way.budget = budget;
      way.engine = engine;
      EXPECT_TRUE(SameBits(run(way), expected)) << Describe(way);
    }
  }
}

TEST_F(PredictedTest, SkipsMissesOfLowScoreAndNothingThatIsCached) {
  for (const PredictorInput input : {PredictorInput::kResidual, PredictorInput::kPrevious}) {
    const PredictedModel model(plain_.file(), input, 0.0f);
    const auto run = [&](uint64_t budget, double miss_skip) {
      Way way = Predicted();
      way.budget = budget;
      way.miss_skip = miss_skip;
      auto decoder = Must(OpenDecoder(model.file(), way));
      const Logits logits = Must(RunTokens(*decoder, tokens_, kPrompt));
      return std::pair(logits, decoder->stats());
    };
    const uint64_t small = Budgets(model.file(), Predicted())[4];
    const auto all = run(small, 0);
    EXPECT_EQ(all.second.skipped, 0u);
    EXPECT_TRUE(SameBits(run(UINT64_MAX, 0.5).first, all.first)) << "all is cached";
    const auto half = run(small, 0.5);
    EXPECT_FALSE(SameBits(half.first, all.first));
    EXPECT_GT(half.second.skipped, 0u);
    EXPECT_LT(half.second.misses, all.second.misses * 3 / 4);
    const auto most = run(small, 0.9);
    EXPECT_LT(most.second.misses, half.second.misses);
  }
}

TEST_F(PredictedTest, NeuronsThatDoNotFireCostTheirReadAndNothingElse) {
  // Half of all neurons are predicted, few of them fire.
  const PredictedModel model(plain_.file(), PredictorInput::kResidual, 0.0f);
  auto decoder = Must(OpenDecoder(model.file(), Predicted()));
  Must(RunTokens(*decoder, tokens_, kPrompt));
  const DecoderStats stats = decoder->stats();
  EXPECT_GT(stats.active_neurons, stats.gated_neurons / 4);
  EXPECT_LT(stats.firing_neurons, stats.active_neurons / 2);
  EXPECT_GT(stats.firing_neurons, 0u);
}

// With the residual some of what is read ahead is still on its way when the next token comes, and
// at the smallest budgets its embedding is read.
TEST_F(PredictedTest, FaultsOfTheDeviceChangeNothing) {
  for (const PredictorInput input : {PredictorInput::kResidual, PredictorInput::kPrevious}) {
    const PredictedModel model(plain_.file(), input, 0.0f);
    const Logits expected = Run(model.file(), Predicted());
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      FaultConfig faults = AllFaults(seed);
      if (seed > 3) {
        faults = {};
        faults.seed = seed;
        faults.delay = 0.5;
        faults.delay_reaps = 2000;
        faults.reorder = true;
      }
      Way way = Predicted();
      way.budget = Budgets(model.file(), way)[seed % 5];
      way.faults = &faults;
      EXPECT_TRUE(SameBits(Run(model.file(), way), expected)) << "seed " << seed;
    }
  }
}

TEST_F(PredictedTest, AFailedPassMayBeRepeated) {
  const PredictedModel model(plain_.file(), PredictorInput::kPrevious, 0.0f);
  const Logits expected = Run(model.file(), Predicted());
  Way way = Predicted();
  way.budget = Budgets(model.file(), way)[1];
  auto decoder = Must(OpenDecoder(model.file(), way));
  const std::atomic<int> stop = 1;
  Logits logits = Must(RunTokens(*decoder, std::span(tokens_).first(kPrompt), kPrompt));
  for (size_t i = kPrompt; i < tokens_.size(); ++i) {
    ASSERT_TRUE(absl::IsCancelled(decoder->Forward({&tokens_[i], 1}, &stop)));
    MustBeOk(decoder->Forward({&tokens_[i], 1}));
    logits.emplace_back(decoder->logits().begin(), decoder->logits().end());
  }
  EXPECT_TRUE(SameBits(logits, expected));
}

TEST_F(PredictedTest, ADamagedBundleThatWasReadAheadIsNamed) {
  const PredictedModel model(plain_.file(), PredictorInput::kPrevious, -1e30f);
  const BundleLayout& b = model.file().bundles();
  {
    std::fstream file(model.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(b.BundleOffset(2, 17) + 5));
    file.put('\x5a');
    file.put('\x5a');
  }
  Way way = Predicted();
  way.budget = Budgets(model.file(), way)[4];
  auto decoder = Must(OpenDecoder(model.file(), way));
  const absl::Status status = decoder->Forward(std::span(tokens_).first(1));
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), testing::HasSubstr("bundle of layer 2, neuron 17,"));
}

TEST_F(PredictedTest, WhatFiresMostStaysInTheCache) {
  const PredictedModel model(plain_.file(), PredictorInput::kResidual, 0.0f);
  const SluiceFile& file = model.file();
  const uint32_t d_ff = file.config().d_ff, n_bundles = file.config().n_layers * d_ff;
  EXPECT_THAT(PlanHot(plain_.file(), n_bundles / 2), testing::IsEmpty())
      << "nothing is known of it";
  EXPECT_THAT(PlanHot(file, 16), testing::IsEmpty()) << "no room for a layer's active set";
  // Active are 15 % on average: half of a cache of 50 % is hot, most of one of 20 %.
  for (const auto& [percent, expected] : {std::pair(50u, 20u), {20u, 10u}, {90u, 40u}}) {
    const auto hot = PlanHot(file, n_bundles * percent / 100);
    ASSERT_EQ(hot.size(), n_bundles);
    for (uint32_t l = 0; l < file.config().n_layers; ++l) {
      const auto frequency = file.activity()->of_layer(l, d_ff);
      uint32_t n = 0;
      uint16_t least_hot = UINT16_MAX, most_cold = 0;
      for (uint32_t p = 0; p < d_ff; ++p) {
        n += hot[l * d_ff + p];
        auto& bound = hot[l * d_ff + p] ? least_hot : most_cold;
        bound = hot[l * d_ff + p] ? std::min(bound, frequency[p]) : std::max(bound, frequency[p]);
      }
      EXPECT_EQ(n, d_ff * expected / 100);
      EXPECT_GE(least_hot, most_cold);
    }
  }
}

TEST_F(PredictedTest, AModelWithoutPredictorsIsToldWhatToDo) {
  const auto plan = PlanMemory(plain_.file(), Predicted().request());
  EXPECT_TRUE(absl::IsFailedPrecondition(plan.status()));
  EXPECT_THAT(plan.status().message(), testing::HasSubstr("has no predictors"));
}

}  // namespace
}  // namespace sluice
