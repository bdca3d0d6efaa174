// Which heads a token needs, and the samples that come of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "io/storage_file.h"
#include "layout/matrix_rows.h"
#include "runtime/head_needs.h"
#include "runtime/predictor_samples.h"
#include "runtime/predictor_training.h"
#include "tests/decoder_harness.h"

namespace sluice {
namespace {

using testing::ElementsAre;

std::vector<uint32_t> Fewest(std::vector<float> squares, double share) {
  std::vector<uint32_t> places(squares.size());
  places.resize(FewestForShare(squares, share, places));
  return places;
}

TEST(FewestForShareTest, TakesTheLargestUntilTheShareIsThere) {
  EXPECT_THAT(Fewest({1, 5, 2, 2}, 0.5), ElementsAre(1));
  EXPECT_THAT(Fewest({1, 5, 2, 2}, 0.51), ElementsAre(1, 2)) << "of equal ones the first";
  EXPECT_THAT(Fewest({1, 5, 2, 2}, 0.9), ElementsAre(1, 2, 3));
  EXPECT_THAT(Fewest({1, 5, 2, 2}, 1.0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Fewest({0, 3, 0}, 1.0), ElementsAre(1)) << "what adds nothing is not needed";
  EXPECT_THAT(Fewest({0, 0}, 0.9), ElementsAre());
  EXPECT_THAT(Fewest({1, NAN}, 0.9), ElementsAre(0, 1)) << "nothing is known";
}

class HeadNeedsTest : public testing::Test {
 protected:
  HeadNeedsTest() : model_(ToyModel(), WeightType::kF32), tokens_(RandomTokens(40 * 24, 300)) {}

  std::vector<SampleText> Text() const {
    std::vector<SampleText> text;
    for (size_t s = 0; s < 40; ++s) {
      text.push_back({std::span(tokens_).subspan(s * 24, 24), s % 8 == 7});
    }
    return text;
  }
  std::vector<LayerSamples> Collect(double share, PredictorInput input, uint32_t first,
                                    uint32_t n) const {
    PredictorSampler::Options options;
    options.input = input;
    options.head_share = share;
    return Must(Must(PredictorSampler::Create(model_.file(), Text(), options))->Collect(first, n));
  }

  const PackedModel model_;
  const std::vector<int32_t> tokens_;
};

TEST_F(HeadNeedsTest, AHeadsWeightIsTheNormOfItsPartOfTheProductWithO) {
  const ModelConfig& c = model_.file().config();
  auto needs = Must(HeadNeeds::Create(model_.file(), 1, 2, 0.9));
  const auto storage = Must(StorageFile::Open(model_.path(), DirectMode::kOff, 512));
  std::vector<float> attended(c.q_dim());
  for (size_t i = 0; i < attended.size(); ++i) attended[i] = std::sin(static_cast<float>(i));
  for (const uint32_t layer : {1u, 2u}) {
    std::vector<std::byte> rows;
    MustBeOk(ReadMatrixRows(model_.file(), *storage,
                            model_.file().MatrixIndex(MatrixRole::kO, layer), rows));
    const auto* o = reinterpret_cast<const float*>(rows.data());
    const auto squares = needs.SquaredNorms(layer, attended);
    ASSERT_EQ(squares.size(), c.n_heads);
    for (uint32_t h = 0; h < c.n_heads; ++h) {
      double expected = 0;
      for (uint32_t r = 0; r < c.d_model; ++r) {
        double added = 0;
        for (uint32_t i = h * c.head_dim; i < (h + 1) * c.head_dim; ++i) {
          added += static_cast<double>(o[r * c.q_dim() + i]) * static_cast<double>(attended[i]);
        }
        expected += added * added;
      }
      EXPECT_NEAR(squares[h], expected, 1e-4 * expected);
    }
  }
}

TEST_F(HeadNeedsTest, SamplesAreOfHeadsAndALargerShareNeedsMore) {
  const auto most = Collect(0.95, PredictorInput::kResidual, 0, 3);
  const auto some = Collect(0.5, PredictorInput::kResidual, 0, 3);
  for (uint32_t l = 0; l < 3; ++l) {
    EXPECT_EQ(most[l].train.d_ff(), 6u);
    EXPECT_EQ(most[l].train.size(), 32u * 24);
    EXPECT_GT(some[l].train.density(), 0.1);
    EXPECT_LT(some[l].train.density(), most[l].train.density());
    EXPECT_LT(most[l].train.density(), 1.0);
    for (size_t s = 0; s < most[l].train.size(); ++s) {
      const uint64_t few = *some[l].train.labels(s), many = *most[l].train.labels(s);
      ASSERT_EQ(few & ~many, 0u) << "the largest come first";
      ASSERT_NE(few, 0u);
    }
  }
}

TEST_F(HeadNeedsTest, InputsAreThoseOfTheAttention) {
  const auto residual = Collect(0.9, PredictorInput::kResidual, 0, 3);
  const auto previous = Collect(0.9, PredictorInput::kPrevious, 0, 3);
  const uint32_t d = model_.file().config().d_model;
  std::vector<float> x(d), y(d);
  for (size_t s = 0; s < residual[0].train.size(); ++s) {
    for (uint32_t l = 0; l < 3; ++l) {
      previous[l].train.GetInput(s, x);
      residual[l == 0 ? 0 : l - 1].train.GetInput(s, y);
      ASSERT_EQ(x, y);
    }
  }
  // That of the first layer is the embedding: the same wherever the token stands.
  const auto& first = residual[0].train;
  std::vector<int32_t> order;  // the tokens of `train`: every tenth training sequence is kept apart
  size_t training = 0;
  for (const SampleText& t : Text()) {
    if (t.held_out) continue;
    const size_t before = training * 3 / 35;
    if (++training * 3 / 35 == before) order.insert(order.end(), t.tokens.begin(), t.tokens.end());
  }
  ASSERT_EQ(order.size(), first.size());
  size_t n_same = 0;
  for (size_t s = 1; s < order.size(); ++s) {
    if (order[s] != order[0]) continue;
    first.GetInput(0, x);
    first.GetInput(s, y);
    ASSERT_EQ(x, y);
    ++n_same;
  }
  EXPECT_GT(n_same, 0u);
}

TEST_F(HeadNeedsTest, PredictorsLearnWhichHeadsATokenNeeds) {
  const TempDir dir;
  PredictorTraining training;
  training.sampler.head_share = 0.7;
  training.trainer.recall = 0.9;
  training.trainer.epochs = 8;
  training.share = 0.1;
  training.checkpoints = dir.File("work");
  const auto layers = Must(TrainPredictors(model_.file(), Text(), training));
  ASSERT_EQ(layers.size(), 3u);
  for (const PredictorCheckpoint& l : layers) {
    EXPECT_EQ(l.predictor.fc2.size(), size_t{l.predictor.rank} * 6);
    EXPECT_EQ(l.quality.n_neurons, 5u * 24 * 6) << "heads of the held-out tokens";
    EXPECT_GT(l.quality.recall(), 0.75);
    // One that knows nothing finds that share by predicting as large a share of all heads.
    EXPECT_LT(l.quality.density(), l.quality.recall());
  }
  // Finished layers of another share are of another training.
  training.resume = true;
  training.sampler.head_share = 0.8;
  EXPECT_EQ(TrainPredictors(model_.file(), Text(), training).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace sluice
