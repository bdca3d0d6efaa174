// Training predictors of layers whose gates are known.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/sluice_format.h"
#include "predictor/dense_products.h"
#include "predictor/packed_predictor.h"
#include "predictor/trainer.h"
#include "runtime/parallel_on_pool.h"
#include "runtime/thread_pool.h"
#include "tests/teacher_samples.h"

namespace sluice {
namespace {

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class TrainerTest : public testing::Test {
 protected:
  TrainerOptions Options(uint32_t max_rank) const {
    TrainerOptions options;
    options.max_bytes = PackedPredictor::BytesFor(teacher_.d_model, max_rank, teacher_.d_ff);
    options.seed = 9;
    options.epochs = 30;
    options.rate = 5e-3f;
    return options;
  }
  TrainedPredictor Train(const TrainerOptions& options, int n_threads = 1,
                         const KernelTable& kernels = BestKernels()) {
    const auto pool = ThreadPool::Create(n_threads, 0);
    EXPECT_TRUE(pool.ok());
    DenseProducts products(kernels, ParallelOn(**pool));
    auto trained = TrainPredictor(train_, validation_, options, products);
    EXPECT_TRUE(trained.ok()) << trained.status();
    return *std::move(trained);
  }

  const Teacher teacher_ = {};
  const TrainingSamples train_ = teacher_.Make(8000, 1), validation_ = teacher_.Make(1500, 2);
};

TEST_F(TrainerTest, FindsTheNeuronsOfAKnownGateInTextThatItHasNotSeen) {
  const TrainedPredictor trained = Train(Options(64));
  EXPECT_TRUE(trained.meets_targets);
  DenseProducts products(BestKernels(), RunOnCaller);
  const PredictorQuality q =
      PackedPredictor(trained.predictor)
          .Judge(trained.predictor.threshold, teacher_.Make(3000, 3), products);
  EXPECT_GT(q.true_density(), 0.03);
  EXPECT_LT(q.true_density(), 0.15);
  EXPECT_GE(q.recall(), 0.95);
  EXPECT_LT(q.density(), 2.1 * q.true_density());
}

TEST_F(TrainerTest, TheThresholdIsTheHighestThatMeetsTheRecall) {
  TrainerOptions options = Options(32);
  options.epochs = 1;
  const PackedPredictor packed(Train(options).predictor);
  DenseProducts products(BestKernels(), RunOnCaller);
  for (const double recall : {0.5, 0.8, 0.95, 1.0}) {
    const float threshold = packed.ThresholdFor(recall, validation_, products);
    EXPECT_GE(packed.Judge(threshold, validation_, products).recall(), recall);
    const float higher = std::nextafter(threshold, std::numeric_limits<float>::max());
    EXPECT_LT(packed.Judge(higher, validation_, products).recall(), recall);
  }
}

TEST_F(TrainerTest, TheMarginOfTheRecallIsTwiceItsErrorAndAtMostHalfOfWhatIsLeft) {
  TrainerOptions options = Options(32);
  options.epochs = 1;
  for (const double recall : {0.8, 0.95, 1.0}) {
    options.recall = recall;
    const TrainedPredictor trained = Train(options);
    const PackedPredictor packed(trained.predictor);
    DenseProducts products(BestKernels(), RunOnCaller);
    const float threshold = packed.ThresholdFor(recall, validation_, products);
    const double error = packed.RecallError(threshold, validation_, products);
    EXPECT_NEAR(trained.quality.recall(), std::min(recall + 2 * error, (1 + recall) / 2), 1e-3);
    EXPECT_EQ(packed.Judge(trained.predictor.threshold, validation_, products).n_predicted,
              trained.quality.n_predicted);
  }
}

TEST_F(TrainerTest, TheErrorOfTheRecallIsHowMuchOtherSamplesDiffer) {
  TrainerOptions options = Options(32);
  options.epochs = 1;
  const LayerPredictor predictor = Train(options).predictor;
  const PackedPredictor packed(predictor);
  DenseProducts products(BestKernels(), RunOnCaller);
  constexpr int kSets = 30;
  double sum = 0, squares = 0, errors = 0;
  for (int set = 0; set < kSets; ++set) {
    const TrainingSamples samples = teacher_.Make(700, 100 + static_cast<uint64_t>(set));
    const double recall = packed.Judge(predictor.threshold, samples, products).recall();
    sum += recall;
    squares += recall * recall;
    errors += packed.RecallError(predictor.threshold, samples, products);
  }
  const double deviation = std::sqrt(squares / kSets - sum * sum / kSets / kSets);
  EXPECT_GT(deviation, 0.0);
  EXPECT_GT(errors / kSets, 0.6 * deviation);
  EXPECT_LT(errors / kSets, 1.7 * deviation);
  EXPECT_EQ(packed.RecallError(predictor.threshold, teacher_.Make(100, 1), products), 0.0);
}

TEST_F(TrainerTest, WeightsSurviveBeingPacked) {
  TrainerOptions options = Options(32);
  options.epochs = 1;
  const LayerPredictor predictor = Train(options).predictor;
  const LayerPredictor again = PackedPredictor(predictor).Unpack(predictor.threshold);
  EXPECT_TRUE(SameBits(predictor.fc1, again.fc1));
  EXPECT_TRUE(SameBits(predictor.fc2, again.fc2));
}

TEST_F(TrainerTest, TheSameBitsComeFromAnyNumberOfThreadsAndAnyKernels) {
  TrainerOptions options = Options(48);
  options.epochs = 2;
  const LayerPredictor one = Train(options, 1, ScalarKernels()).predictor;
  for (const int threads : {1, 2, 3}) {
    const LayerPredictor other = Train(options, threads).predictor;
    EXPECT_TRUE(SameBits(one.fc1, other.fc1)) << threads;
    EXPECT_TRUE(SameBits(one.fc2, other.fc2)) << threads;
    EXPECT_EQ(one.threshold, other.threshold) << threads;
  }
  options.seed = 10;
  EXPECT_FALSE(SameBits(one.fc1, Train(options).predictor.fc1));
}

TEST_F(TrainerTest, TheRankGrowsWhereTheTaskNeedsIt) {
  // 96 directions do not go through 32 units.
  const Teacher wide = {.d_model = 128, .d_ff = 256, .rank = 96, .lean = 1.3f};
  const TrainingSamples train = wide.Make(12'000, 1), validation = wide.Make(1000, 2);
  TrainerOptions options;
  options.epochs = 5;
  options.density_ratio = 2.6;
  options.max_bytes = PackedPredictor::BytesFor(wide.d_model, 128, wide.d_ff);
  DenseProducts products(BestKernels(), RunOnCaller);
  std::vector<uint32_t> ranks;
  std::vector<double> densities;
  options.progress = [&](const TrainProgress& p) {
    if (ranks.empty() || ranks.back() != p.rank) {
      ranks.push_back(p.rank);
      densities.push_back(0);
    }
    densities.back() = p.density;
    return true;
  };
  const auto trained = TrainPredictor(train, validation, options, products);
  ASSERT_TRUE(trained.ok()) << trained.status();
  EXPECT_GT(trained->predictor.rank, 32u);
  EXPECT_EQ(ranks.front(), 32u);
  EXPECT_TRUE(std::is_sorted(ranks.begin(), ranks.end()));
  EXPECT_LT(densities.back(), densities.front());
  EXPECT_GT(densities.front(), 2.6 * trained->quality.true_density());
}

TEST_F(TrainerTest, TheRankShrinksWhereLessIsEnough) {
  const TrainedPredictor trained = Train(Options(256));
  EXPECT_TRUE(trained.meets_targets);
  EXPECT_LT(trained.predictor.rank, 64u);  // it starts with 64
}

TEST_F(TrainerTest, SizeGoesBeforeDensityAndItIsSaid) {
  TrainerOptions options = Options(32);
  options.density_ratio = 1.0;
  options.epochs = 1;
  const TrainedPredictor trained = Train(options);
  EXPECT_EQ(trained.predictor.rank, 32u);
  EXPECT_FALSE(trained.meets_targets);
  EXPECT_GE(trained.quality.recall(), 0.95);
  EXPECT_GT(trained.quality.density(), trained.quality.true_density());
}

TEST_F(TrainerTest, TheLargestRankIsTheLastThatFits) {
  for (const uint32_t rank : {32u, 64u, 480u}) {
    const uint64_t bytes = PackedPredictor::BytesFor(256, rank, 768);
    EXPECT_EQ(LargestRank(256, 768, bytes), rank);
    EXPECT_EQ(LargestRank(256, 768, bytes + 1), rank);
    EXPECT_EQ(LargestRank(256, 768, bytes - 1), std::max(rank - 32, 32u));
  }
  EXPECT_EQ(LargestRank(256, 768, 0), 32u);
  EXPECT_EQ(LargestRank(256, 768, UINT64_MAX), kMaxRank);
}

TEST_F(TrainerTest, TopKIsTheLeastThatMeetsTheRecall) {
  TrainerOptions options = Options(32);
  const PackedPredictor packed(Train(options).predictor);
  DenseProducts products(BestKernels(), RunOnCaller);
  const uint32_t k = packed.TopKFor(0.95, validation_, products);
  EXPECT_GT(k, validation_.density() * teacher_.d_ff * 0.95);
  EXPECT_LT(k, teacher_.d_ff / 2);
  EXPECT_EQ(packed.TopKFor(0.0, validation_, products), 0u);
  EXPECT_LE(packed.TopKFor(1.0, validation_, products), teacher_.d_ff);
  EXPECT_GE(packed.TopKFor(1.0, validation_, products), k);
}

TEST_F(TrainerTest, StopsWhenAsked) {
  TrainerOptions options = Options(32);
  int calls = 0;
  options.progress = [&](const TrainProgress& p) {
    EXPECT_EQ(p.epoch, static_cast<uint32_t>(++calls));
    EXPECT_EQ(p.epochs, options.epochs);
    return calls < 2;
  };
  DenseProducts products(BestKernels(), RunOnCaller);
  EXPECT_EQ(TrainPredictor(train_, validation_, options, products).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(calls, 2);
}

TEST_F(TrainerTest, NothingToLearnFromIsRefused) {
  DenseProducts products(BestKernels(), RunOnCaller);
  const TrainingSamples none(teacher_.d_model, teacher_.d_ff);
  TrainingSamples silent(teacher_.d_model, teacher_.d_ff);
  silent.Add(std::vector<float>(teacher_.d_model, 1.0f), {});
  for (const TrainingSamples* bad : {&none, &std::as_const(silent)}) {
    EXPECT_EQ(TrainPredictor(*bad, validation_, Options(32), products).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(TrainPredictor(train_, *bad, Options(32), products).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace sluice
