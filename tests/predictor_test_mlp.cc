// The parts of the trainer: products, gradients, loss, optimiser.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/counter_rng.h"
#include "predictor/adamw.h"
#include "predictor/dense_products.h"
#include "predictor/low_rank_mlp.h"
#include "predictor/weighted_bce.h"

namespace sluice {
namespace {

std::vector<float> RandomFloats(size_t n, uint64_t stream) {
  CounterRng rng(11, stream, 0);
  std::vector<float> values(n);
  for (float& v : values) v = rng.Normal();
  return values;
}

TEST(DenseProductsTest, AProductIsThatOfTheDefinition) {
  const size_t m = 37, n = 21, k = 50;
  const std::vector<float> a = RandomFloats(m * k, 1), b = RandomFloats(n * k, 2);
  DenseProducts products(BestKernels(), RunOnCaller);
  std::vector<float> out(m * n), transposed(m * k);
  products.MultiplyTransposed(a.data(), m, b.data(), n, k, out.data());
  products.Transpose(a.data(), m, k, transposed.data());
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (size_t l = 0; l < k; ++l) sum += double{a[i * k + l]} * b[j * k + l];
      EXPECT_NEAR(out[i * n + j], sum, 1e-4) << i << ", " << j;
    }
    for (size_t l = 0; l < k; ++l) EXPECT_EQ(transposed[l * m + i], a[i * k + l]);
  }
}

class MlpTest : public testing::Test {
 protected:
  static constexpr size_t kTokens = 6;
  static constexpr uint32_t kIn = 12, kRank = 8, kOut = 70;  // more than a word of labels

  double Loss(const LowRankMlp& mlp) {
    const std::span<const float> logits = pass_.Forward(mlp, inputs_, kTokens);
    double sum = 0;
    for (size_t t = 0; t < kTokens; ++t) {
      sum += WeightedBce(logits.subspan(t * kOut, kOut), &labels_[2 * t], kInactiveWeight);
    }
    return sum;
  }

  // Compares gradients with what the loss does when each weight is moved a little.
  void ExpectGradient(LowRankMlp& mlp, std::vector<float>& weights, std::vector<float> gradient) {
    constexpr float kStep = 1e-3f;
    ASSERT_EQ(weights.size(), gradient.size());
    double largest = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const float weight = weights[i];
      weights[i] = weight + kStep;
      const double above = Loss(mlp);
      weights[i] = weight - kStep;
      const double below = Loss(mlp);
      weights[i] = weight;
      const double bound = 0.02 + 0.01 * std::abs(double{gradient[i]});
      EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), bound) << "weight " << i;
      largest = std::max(largest, std::abs(double{gradient[i]}));
    }
    EXPECT_GT(largest, 1.0);  // else the bound above would let anything pass
  }

  static constexpr float kInactiveWeight = 0.3f;
  DenseProducts products_{BestKernels(), RunOnCaller};
  MlpPass pass_{products_};
  const std::vector<float> inputs_ = RandomFloats(kTokens * kIn, 3);
  const std::vector<uint64_t> labels_ = {1, 32, ~uint64_t{0}, 63, 0, 0, 0x0f0f, 1, 8, 2, 5, 7};
};

TEST_F(MlpTest, GradientsAreThoseOfFiniteDifferences) {
  LowRankMlp mlp = LowRankMlp::Random(kIn, kRank, kOut, 5, 1);
  const std::span<float> logits = pass_.Forward(mlp, inputs_, kTokens);
  for (size_t t = 0; t < kTokens; ++t) {
    WeightedBceGradient(logits.subspan(t * kOut, kOut), &labels_[2 * t], kInactiveWeight, 1.0f);
  }
  pass_.Backward(mlp, inputs_, kTokens, logits);
  const std::vector<float> d_fc1(pass_.d_fc1().begin(), pass_.d_fc1().end());
  const std::vector<float> d_fc2(pass_.d_fc2().begin(), pass_.d_fc2().end());
  ExpectGradient(mlp, mlp.fc1, d_fc1);
  ExpectGradient(mlp, mlp.fc2, d_fc2);
}

TEST_F(MlpTest, GrowingChangesNoLogitAndShrinkingKeepsTheUnitsThatWeighMost) {
  LowRankMlp mlp = LowRankMlp::Random(kIn, kRank, kOut, 5, 1);
  for (uint32_t i = 0; i < kOut; ++i) mlp.fc2[i * kRank] = mlp.fc2[i * kRank + 3] = 1e-6f;
  const auto forward = [&](const LowRankMlp& m) {
    const auto logits = pass_.Forward(m, inputs_, kTokens);
    return std::vector<float>(logits.begin(), logits.end());
  };
  const std::vector<float> before = forward(mlp);
  const LowRankMlp larger = mlp.Resized(13, 5, 2), smaller = mlp.Resized(6, 5, 2);
  EXPECT_EQ(larger.rank, 13u);
  EXPECT_EQ(smaller.rank, 6u);
  EXPECT_THAT(forward(larger), testing::Pointwise(testing::FloatNear(1e-4f), before));
  EXPECT_THAT(forward(smaller), testing::Pointwise(testing::FloatNear(1e-4f), before));
}

TEST(WeightedBceTest, AnActiveNeuronCountsOneAndAnInactiveOneItsWeight) {
  const std::vector<float> zero = {0.0f, 0.0f};
  for (const float weight : {0.005f, 0.1f, 1.0f}) {
    const uint64_t first = 1, both = 3, none = 0;
    EXPECT_NEAR(WeightedBce(zero, &both, weight), 2 * std::log(2.0), 1e-6);
    EXPECT_NEAR(WeightedBce(zero, &first, weight), (1 + weight) * std::log(2.0), 1e-6);
    EXPECT_NEAR(WeightedBce(zero, &none, weight), 2 * weight * std::log(2.0), 1e-6);
    std::vector<float> gradient = zero;
    WeightedBceGradient(gradient, &first, weight, 4.0f);
    EXPECT_NEAR(gradient[0], -2.0f, 1e-6);
    EXPECT_NEAR(gradient[1], 2.0f * weight, 1e-6);
  }
}

TEST(WeightedBceTest, BothClassesHaveNearlyTheSameWeightInAll) {
  const double density = 0.1;
  EXPECT_NEAR((1 - density) * InactiveWeight(density) / density, 0.945, 1e-3);
}

TEST(WeightedBceTest, TheGradientHoldsForLogitsOfAnySize) {
  for (float z = -120.0f; z <= 120.0f; z += 0.37f) {
    std::vector<float> gradient = {z, z};
    const uint64_t first = 1;
    WeightedBceGradient(gradient, &first, 1.0f, 1.0f);
    const double p = 1 / (1 + std::exp(-double{z}));
    EXPECT_NEAR(gradient[0], p - 1, 1e-6) << z;
    EXPECT_NEAR(gradient[1], p, 1e-6) << z;
  }
}

TEST(AdamWTest, TheFirstStepIsOfTheRateWhateverTheGradient) {
  std::vector<float> weights = {1.0f, 1.0f, 1.0f};
  AdamW adam(3, /*weight_decay=*/0.0f);
  adam.Step(weights, std::vector<float>{1e-3f, -50.0f, 0.0f}, 0.01f, RunOnCaller);
  EXPECT_NEAR(weights[0], 0.99f, 1e-5);
  EXPECT_NEAR(weights[1], 1.01f, 1e-5);
  EXPECT_EQ(weights[2], 1.0f);
}

TEST(AdamWTest, DecayIsApartFromTheGradient) {
  std::vector<float> weights = {2.0f};
  AdamW adam(1, /*weight_decay=*/0.5f);
  adam.Step(weights, std::vector<float>{0.0f}, 0.1f, RunOnCaller);
  EXPECT_NEAR(weights[0], 2.0f * 0.95f, 1e-6);
}

TEST(AdamWTest, FindsTheMinimumOfAParabola) {
  std::vector<float> weights = {5.0f, -3.0f};
  AdamW adam(2, 0.0f);
  for (int i = 0; i < 2000; ++i) {
    const std::vector<float> gradient = {weights[0] - 1.0f, 100.0f * (weights[1] - 2.0f)};
    adam.Step(weights, gradient, 0.02f, RunOnCaller);
  }
  EXPECT_NEAR(weights[0], 1.0f, 0.02f);
  EXPECT_NEAR(weights[1], 2.0f, 0.02f);
}

}  // namespace
}  // namespace sluice
