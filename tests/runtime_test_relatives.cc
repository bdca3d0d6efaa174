// Relatives of the Llama family (OPT, Nemotron, Arcee), which have no gate: every way of running
// them gives the same logits. That these are right is in runtime_test_logits.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layout/verify.h"
#include "predictor/profile_figures.h"
#include "runtime/profile_run.h"
#include "tests/decoder_harness.h"
#include "tests/predicted_model.h"

namespace sluice {
namespace {

constexpr size_t kPrompt = 11, kDecoded = 6;

class RelativesTest : public testing::TestWithParam<const char*> {
 protected:
  RelativesTest()
      : plain_(Toy(), WeightType::kQ4), tokens_(RandomTokens(kPrompt + kDecoded, 300)) {}

  static ToyModel Toy() {
    ToyModel toy = ToyRelative(GetParam());
    toy.d_ff = 640;
    return toy;
  }
  Logits Run(const SluiceFile& file, const Way& way) {
    return Must(RunTokens(file, way, tokens_, kPrompt));
  }
  // The ways in which weights may come, in a mode.
  void ExpectSameBits(const SluiceFile& file, DecodeMode mode, const Logits& expected) {
    ExpectSameBitsEveryWay(file, {.mode = mode}, tokens_, kPrompt, expected);
  }

  PackedModel plain_;
  std::vector<int32_t> tokens_;
};

TEST_P(RelativesTest, BundlesHaveNoUpRowSinceTheUpMatrixDecides) {
  const BundleLayout& b = plain_.file().bundles();
  EXPECT_EQ(b.payload_bytes(), b.row_bytes());
  const PredictedModel predicted(plain_.file(), PredictorInput::kResidual, 0.0f, /*shuffled=*/true);
  EXPECT_EQ(predicted.file().bundles().payload_bytes(), 2 * b.row_bytes());
  for (const std::string& path : {plain_.path(), predicted.path()}) {
    EXPECT_EQ(Must(Verify(path, {})).damaged, 0u);
  }
}

TEST_P(RelativesTest, DenseAndExactModeGiveTheSameBitsUnderEveryBudget) {
  const Logits expected = Run(plain_.file(), Way());
  ExpectSameBits(plain_.file(), DecodeMode::kDense, expected);
  ExpectSameBits(plain_.file(), DecodeMode::kExact, expected);
}

TEST_P(RelativesTest, ExactModeLeavesNeuronsOut) {
  Way way;
  way.budget = Budgets(plain_.file(), way)[1];
  const auto decoder = Must(OpenDecoder(plain_.file(), way));
  Must(RunTokens(*decoder, tokens_, kPrompt));
  const DecoderStats stats = decoder->stats();
  EXPECT_GT(stats.active_neurons, 0u);
  EXPECT_LT(stats.active_neurons, stats.gated_neurons / 2);
}

TEST_P(RelativesTest, PredictingEveryNeuronGivesTheLogitsOfExactMode) {
  const Logits exact = Run(plain_.file(), Way());
  for (const PredictorInput input :
       {PredictorInput::kNormed, PredictorInput::kResidual, PredictorInput::kPrevious}) {
    const PredictedModel model(plain_.file(), input, -1e30f);
    Way way;
    way.mode = DecodeMode::kPredicted;
    EXPECT_TRUE(SameBits(Run(model.file(), way), exact));
    EXPECT_TRUE(SameBits(Run(model.file(), Way()), exact)) << "exact mode of the relaid file";
  }
}

TEST_P(RelativesTest, AnotherOrderChangesNothingButTheOrderOfSums) {
  const Logits expected = Run(plain_.file(), Way());
  const PredictedModel model(plain_.file(), PredictorInput::kPrevious, 0.0f, /*shuffled=*/true);
  EXPECT_EQ(model.file().weights_id(), plain_.file().weights_id());
  const Logits exact = Run(model.file(), Way());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LT(MaxError(exact[i], expected[i]), 0.05f) << i;
  }
  ExpectSameBits(model.file(), DecodeMode::kExact, exact);

  Way predicted;
  predicted.mode = DecodeMode::kPredicted;
  const Logits some = Run(model.file(), predicted);
  EXPECT_GT(MaxError(some.back(), exact.back()), 0.0f) << "the predictor leaves nothing out";
  ExpectSameBits(model.file(), DecodeMode::kPredicted, some);
}

TEST_P(RelativesTest, AProfileIsByNeuronWhateverTheOrder) {
  // In floats, where no neuron is near enough to zero for the order of sums to switch it.
  const PackedModel plain(Toy(), WeightType::kF32);
  const PredictedModel model(plain.file(), PredictorInput::kResidual, 0.0f, /*shuffled=*/true);
  const std::vector<std::vector<int32_t>> texts = {RandomTokens(40, 300)};
  std::vector<std::vector<uint32_t>> counts;
  for (const SluiceFile* file : {&plain.file(), &model.file()}) {
    ProfileRun run(*file, {.texts = texts, .sequence_tokens = 8});
    Way way;
    way.mode = DecodeMode::kDense;
    way.context = 8;
    way.observer = &run;
    const auto decoder = Must(OpenDecoder(*file, way));
    const ActivationProfile profile = Must(run.Run(*decoder));
    counts.emplace_back(profile.counts(0).begin(), profile.counts(0).end());
  }
  EXPECT_EQ(counts[0], counts[1]);
  EXPECT_THAT(counts[0], testing::Contains(testing::Gt(0u)));
}

TEST_P(RelativesTest, FaultsOfTheDeviceChangeNothing) {
  const Logits expected = Run(plain_.file(), Way());
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const FaultConfig faults = AllFaults(seed);
    Way way;
    way.budget = Budgets(plain_.file(), way)[seed];
    way.faults = &faults;
    EXPECT_TRUE(SameBits(Run(plain_.file(), way), expected)) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, RelativesTest, testing::Values("opt", "nemotron", "arcee"),
                         [](const auto& param) { return std::string(param.param); });

TEST(LearnedPositionsTest, AContextBeyondThemIsRefused) {
  ToyModel toy = ToyRelative("opt");
  toy.context_length = 20;
  const PackedModel model(toy, WeightType::kQ8);
  Way way;
  way.context = 21;
  const auto refused = PlanMemory(model.file(), way.request());
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
  EXPECT_THAT(refused.status().message(), testing::HasSubstr("has learned 20 positions"));
  way.context = 20;
  EXPECT_TRUE(RunTokens(model.file(), way, RandomTokens(20, 300), 13).ok());
}

}  // namespace
}  // namespace sluice
