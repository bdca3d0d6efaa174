// The figures of an activation profile against profiles of which they are known.
#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "predictor/profile_figures.h"

namespace sluice {
namespace {

using Set = std::vector<uint32_t>;
using Sets = std::vector<Set>;

TEST(FrequencyCurveTest, TheMostActiveNeuronsComeFirst) {
  const std::vector<uint32_t> counts = {5, 0, 70, 10, 15};
  const FrequencyCurve curve(counts);
  EXPECT_DOUBLE_EQ(curve.Covered(0), 0);
  EXPECT_DOUBLE_EQ(curve.Covered(0.2), 0.7);
  EXPECT_DOUBLE_EQ(curve.Covered(0.4), 0.85);
  EXPECT_DOUBLE_EQ(curve.Covered(1), 1);
  EXPECT_DOUBLE_EQ(curve.NeuronsFor(0.7), 0.2);
  EXPECT_DOUBLE_EQ(curve.NeuronsFor(0.8), 0.4);
  EXPECT_DOUBLE_EQ(curve.NeuronsFor(0.86), 0.6);
  EXPECT_DOUBLE_EQ(curve.NeuronsFor(1), 0.8) << "one gives none";
}

TEST(FrequencyCurveTest, WithoutActivationsEverythingIsZero) {
  for (const FrequencyCurve& curve : {FrequencyCurve(), FrequencyCurve(Set{0, 0})}) {
    EXPECT_EQ(curve.Covered(0.5), 0);
    EXPECT_EQ(curve.NeuronsFor(0.8), 0);
  }
}

TEST(ProfileFiguresTest, SparsityIsTheShareThatIsNotActive) {
  ActivationProfile profile({.weights_id = 1, .n_layers = 2, .n_neurons = 4, .d_model = 32});
  EXPECT_EQ(Sparsity(profile, 0), 0) << "of nothing";
  profile.BeginSequence(false);
  profile.Append(1, Sets{{0}, {}});
  profile.Append(2, Sets{{0, 1, 3}, {}});
  EXPECT_DOUBLE_EQ(Sparsity(profile, 0), 0.5);
  EXPECT_DOUBLE_EQ(Sparsity(profile, 1), 1.0);
}

TEST(ProfileFiguresTest, RunsAreOfPositionsAndNotOfNeurons) {
  ActivationTrace sets(1, 1, 6);
  sets.Append(Set{0, 2, 4});
  sets.Append(Set{});
  sets.Append(Set{1, 2});
  const Set in_order = {0, 1, 2, 3, 4, 5};
  EXPECT_DOUBLE_EQ(MeanRun(sets, 0, in_order), 5.0 / 4);
  const Set even_first = {0, 3, 1, 4, 2, 5};
  EXPECT_DOUBLE_EQ(MeanRun(sets, 0, even_first), 5.0 / 3);
  EXPECT_EQ(MeanRun(ActivationTrace(1, 1, 6), 0, in_order), 0);
}

// Neurons 0 .. 9 fire together for a tenth of the tokens, 10 .. 19 each by itself for a fifth, 20
// always.
TEST(ProfileFiguresTest, CoactivationIsThatOfPairsOfColdNeurons) {
  ActivationProfile profile({.weights_id = 1, .n_layers = 1, .n_neurons = 21, .d_model = 32});
  profile.BeginSequence(false);
  std::mt19937 random(1);
  constexpr int kTokens = 10'000;
  for (int t = 0; t < kTokens; ++t) {
    Set set;
    if (t % 10 == 0) set = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    for (uint32_t i = 10; i < 20; ++i) {
      if (random() % 5 == 0) set.push_back(i);
    }
    set.push_back(20);
    profile.Append(0, Sets{set});
  }
  const Coactivation c = MeasureCoactivation(profile, 0);
  EXPECT_EQ(c.n_pairs, 20u * 19);
  EXPECT_EQ(c.pairs.back(), 10u * 9) << "those that always fire together";
  EXPECT_EQ(std::accumulate(c.pairs.begin(), c.pairs.end(), uint64_t{0}), c.n_pairs);
  // One of ten: 9 x 1, 10 x 0.2; one of the others: 10 x 0.1, 9 x 0.2.
  EXPECT_NEAR(c.mean, (9 + 2 + 1 + 1.8) / 38, 0.01);
}

TEST(ProfileFiguresTest, NeuronsThatHardlyFireTellNothingOfCoactivation) {
  ActivationProfile profile({.weights_id = 1, .n_layers = 1, .n_neurons = 3, .d_model = 32});
  profile.BeginSequence(false);
  for (int t = 0; t < 100; ++t) profile.Append(0, Sets{t < 5 ? Set{0, 1} : Set{}});
  EXPECT_EQ(MeasureCoactivation(profile, 0).n_pairs, 0u);
  EXPECT_EQ(MeasureCoactivation(profile, 0).mean, 0);
}

}  // namespace
}  // namespace sluice
