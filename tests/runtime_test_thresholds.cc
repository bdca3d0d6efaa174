// A model without exact zeros whose file has activation thresholds: in exact mode the neurons below
// them are left out, in prompts and in decoding, the same ones whatever way the weights take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/profile_run.h"
#include "tests/predicted_model.h"
#include "tests/reference_decoder.h"

namespace sluice {
namespace {

constexpr size_t kPrompt = 21;
constexpr size_t kDecoded = 12;

ToyModel SiluToy() {
  ToyModel toy = WideToy();
  toy.activation = Activation::kSilu;
  return toy;
}

class ThresholdsTest : public testing::Test {
 protected:
  ThresholdsTest() : tokens_(RandomTokens(kPrompt + kDecoded, 300)) {}

  // `plain` with these thresholds, its neurons shuffled.
  std::unique_ptr<SluiceFile> WithThresholds(const SluiceFile& plain,
                                             const std::vector<float>& thresholds) {
    const std::string path = dir_.File(std::to_string(n_files_++) + ".sluice");
    const auto order = ShuffledOrder(plain.config());
    RelayoutOptions options;
    options.order = order;
    options.thresholds = thresholds;
    Must(Relayout(plain, path, options));
    return Must(SluiceFile::Open(path));
  }
  std::unique_ptr<SluiceFile> WithThreshold(const SluiceFile& plain, float threshold) {
    return WithThresholds(plain, std::vector<float>(plain.config().n_layers, threshold));
  }
  Logits Run(const SluiceFile& file, DecodeMode mode) {
    Way way;
    way.mode = mode;
    return Must(RunTokens(file, way, tokens_, kPrompt));
  }

  TempDir dir_;
  int n_files_ = 0;
  std::vector<int32_t> tokens_;
};

TEST_F(ThresholdsTest, TheWayOfTheWeightsDoesNotChangeABit) {
  for (const WeightType type : {WeightType::kF32, WeightType::kQ4}) {
    const PackedModel plain(SiluToy(), type);
    const auto file = WithThresholds(plain.file(), {0.1f, 0.2f, 0.0f, 0.25f});
    Way one;  // token by token from a small cache, the way that cannot go wrong in chunks
    one.chunk = 1;
    one.budget = Budgets(*file, one)[1];
    const Logits expected = Must(RunTokens(*file, one, tokens_, kPrompt));
    ExpectSameBitsEveryWay(*file, Way(), tokens_, kPrompt, expected);
    EXPECT_GT(MaxError(expected.front(), Run(*file, DecodeMode::kDense).front()), 1e-3f)
        << "nothing was left out of the prompt: the test is void";
  }
}

TEST_F(ThresholdsTest, TheLogitsAreThoseOfAPlainPassThatLeavesOutTheSame) {
  const PackedModel plain(SiluToy(), WeightType::kF32);
  const std::vector<float> thresholds = {0.1f, 0.2f, 0.15f, 0.25f};
  const auto file = WithThresholds(plain.file(), thresholds);
  auto reference = Must(ReferenceDecoder::Load(plain.source()));
  reference.RoundLikeDecoder(WeightType::kF32);
  const auto dense = reference.Logits(tokens_);
  reference.SetThresholds(thresholds);
  const auto expected = reference.Logits(tokens_);
  const Logits logits = Run(*file, DecodeMode::kExact);
  for (size_t i = 0; i < logits.size(); ++i) {
    const size_t t = kPrompt - 1 + i;
    const float error = MaxError(logits[i], expected[t]);
    EXPECT_LT(error * 20, MaxError(dense[t], expected[t])) << "token " << t;
  }
}

TEST_F(ThresholdsTest, OneTokenReadsOnlyTheShareThatIsActive) {
  const PackedModel plain(SiluToy(), WeightType::kF32);
  const auto file = WithThreshold(plain.file(), 0.2f);
  Way way;
  way.chunk = 1;
  way.budget = Budgets(*file, way)[1];
  const auto decoder = Must(OpenDecoder(*file, way));
  Must(RunTokens(*decoder, tokens_, kPrompt));
  const DecoderStats stats = decoder->stats();
  EXPECT_GT(stats.gated_neurons, 0u);
  EXPECT_LT(stats.active_neurons, stats.gated_neurons * 3 / 4);
  EXPECT_GT(stats.active_neurons, stats.gated_neurons / 10);
  EXPECT_EQ(stats.hits + stats.misses, stats.active_neurons);
}

TEST_F(ThresholdsTest, ThresholdsOfZeroGiveTheBitsOfDenseMode) {
  const PackedModel plain(SiluToy(), WeightType::kQ8);
  const auto file = WithThreshold(plain.file(), 0.0f);
  EXPECT_TRUE(SameBits(Run(*file, DecodeMode::kExact), Run(*file, DecodeMode::kDense)));
}

TEST_F(ThresholdsTest, DenseModeKnowsNothingOfThem) {
  const PackedModel plain(SiluToy(), WeightType::kQ8);
  const auto with = WithThreshold(plain.file(), 0.2f), without = WithThreshold(plain.file(), 0.0f);
  EXPECT_TRUE(SameBits(Run(*with, DecodeMode::kDense), Run(*without, DecodeMode::kDense)));
}

TEST_F(ThresholdsTest, InPredictedModeThePredictorAloneDecides) {
  const PackedModel plain(SiluToy(), WeightType::kQ8);
  const PredictedModel all(plain.file(), PredictorInput::kResidual, -1e30f, /*shuffled=*/true);
  const auto file = WithThreshold(all.file(), 0.2f);
  EXPECT_TRUE(SameBits(Run(*file, DecodeMode::kPredicted), Run(*file, DecodeMode::kDense)));
}

TEST_F(ThresholdsTest, AProfileWithoutAShareGoesByTheThresholdsOfTheFile) {
  constexpr uint32_t kLength = 8;
  const PackedModel plain(SiluToy(), WeightType::kF32);
  const std::vector<std::vector<int32_t>> texts = {RandomTokens(100, 300, 1)};
  const auto profile = [&](const SluiceFile& file, std::optional<double> share) {
    ProfileRun run(file, {.texts = texts, .sequence_tokens = kLength, .sparsify = share});
    Way way;
    way.mode = DecodeMode::kDense;
    way.context = kLength;
    way.observer = &run;
    return Must(run.Run(*Must(OpenDecoder(file, way))));
  };
  const ActivationProfile found = profile(plain.file(), 0.4);
  const std::vector<float> thresholds(found.thresholds().begin(), found.thresholds().end());
  const auto file = WithThresholds(plain.file(), thresholds);
  const ActivationProfile again = profile(*file, std::nullopt);
  EXPECT_THAT(again.thresholds(), testing::ElementsAreArray(thresholds));
  // Layer 0 has the same input; sums of later ones have another order.
  EXPECT_THAT(again.counts(0), testing::ElementsAreArray(found.counts(0)));
  EXPECT_LT(profile(*file, 0.2).thresholds()[0], thresholds[0]) << "a share finds new ones";
}

}  // namespace
}  // namespace sluice
