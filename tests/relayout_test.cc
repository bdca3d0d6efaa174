// Relayout: another order or predictors, and not a weight changed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "layout/verify.h"
#include "tests/predicted_model.h"
#include "tests/sluice_image.h"

namespace sluice {
namespace {

using testing::HasSubstr;

// The bytes of a file, read once.
class FileBytes {
 public:
  explicit FileBytes(const SluiceFile& file) : bytes_(SluiceImage::Load(file.path()).bytes) {}
  std::vector<std::byte> At(uint64_t offset, size_t n) const {
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(offset);
    return {begin, begin + static_cast<std::ptrdiff_t>(n)};
  }

 private:
  std::vector<std::byte> bytes_;
};

class RelayoutTest : public testing::Test {
 protected:
  RelayoutTest() : plain_(ToyModel(), WeightType::kQ4) {}

  absl::Status Try(const RelayoutOptions& options) {
    return Relayout(plain_.file(), dir_.File("out.sluice"), options).status();
  }
  std::unique_ptr<SluiceFile> Relaid(const RelayoutOptions& options) {
    MustBeOk(Try(options));
    return Must(SluiceFile::Open(dir_.File("out.sluice")));
  }

  TempDir dir_;
  PackedModel plain_;
};

TEST_F(RelayoutTest, WithNothingToDoTheSameBytesComeOut) {
  const auto copy = Relaid({});
  EXPECT_TRUE(SluiceImage::Load(copy->path()).bytes == SluiceImage::Load(plain_.path()).bytes);
}

TEST_F(RelayoutTest, AnOrderMovesWholeNeurons) {
  const auto order = ShuffledOrder(plain_.file().config());
  RelayoutOptions options;
  options.order = order;
  const auto file = Relaid(options);
  const BundleLayout &from = plain_.file().bundles(), &to = file->bundles();
  const FileBytes before(plain_.file()), after(*file);
  for (uint32_t l = 0; l < file->config().n_layers; ++l) {
    for (uint32_t p = 0; p < to.d_ff; ++p) {
      ASSERT_EQ(file->NeuronAt(l, p), order[l][p]);
      ASSERT_EQ(after.At(to.BundleOffset(l, p), to.payload_bytes()),
                before.At(from.BundleOffset(l, order[l][p]), from.payload_bytes()));
    }
  }
  EXPECT_EQ(Must(Verify(file->path(), {})).damaged, 0u);
  EXPECT_EQ(file->weights_id(), plain_.file().weights_id());
  EXPECT_NE(file->model_id(), plain_.file().model_id());
}

TEST_F(RelayoutTest, TheOrderBackGivesTheSameBytes) {
  const auto order = ShuffledOrder(plain_.file().config());
  RelayoutOptions options;
  options.order = order;
  const auto file = Relaid(options);
  std::vector<std::vector<uint32_t>> identity(order.size());
  for (auto& layer : identity) {
    for (uint32_t n = 0; n < file->config().d_ff; ++n) layer.push_back(n);
  }
  options.order = identity;
  Must(Relayout(*file, dir_.File("back.sluice"), options));
  EXPECT_TRUE(SluiceImage::Load(dir_.File("back.sluice")).bytes ==
              SluiceImage::Load(plain_.path()).bytes);
}

TEST_F(RelayoutTest, PredictorsBringGateRowsIntoTheBundles) {
  const PredictedModel model(plain_.file(), PredictorInput::kPrevious, 0.25f, /*shuffled=*/true);
  const SluiceFile& file = model.file();
  EXPECT_TRUE(file.bundles().has_gate);
  ASSERT_NE(file.predictor(), nullptr);
  EXPECT_EQ(file.predictor()->input, PredictorInput::kPrevious);
  EXPECT_THAT(file.predictor()->thresholds, testing::Each(0.25f));
  const auto order = ShuffledOrder(file.config());
  const MadeUpPredictors predictors(file.config());
  const size_t row = file.bundles().row_bytes();
  const FileBytes bytes(file);
  for (uint32_t l = 0; l < file.config().n_layers; ++l) {
    const MatrixEntry& gate = file.matrix(file.MatrixIndex(MatrixRole::kGate, l));
    const MatrixEntry& fc2 = file.matrix(file.MatrixIndex(MatrixRole::kPredictor2, l));
    for (uint32_t p = 0; p < file.config().d_ff; ++p) {
      const uint64_t in_gate =
          gate.offset + p / gate.rows_per_tile * gate.tile_stride + p % gate.rows_per_tile * row;
      ASSERT_EQ(bytes.At(file.bundles().BundleOffset(l, p), row), bytes.At(in_gate, row));
      std::vector<std::byte> packed(fc2.row_bytes());
      EncodeRow(WeightType::kQ8,
                predictors.weights[l].fc2.subspan(order[l][p] * fc2.columns, fc2.columns), packed);
      const uint64_t in_fc2 = fc2.offset + p / fc2.rows_per_tile * fc2.tile_stride +
                              p % fc2.rows_per_tile * fc2.row_bytes();
      ASSERT_EQ(bytes.At(in_fc2, packed.size()), packed);
    }
  }
  EXPECT_EQ(Must(Verify(file.path(), {})).damaged, 0u);
  EXPECT_EQ(file.weights_id(), plain_.file().weights_id());
}

TEST_F(RelayoutTest, PredictorsMoveWithTheirNeurons) {
  const PredictedModel shuffled(plain_.file(), PredictorInput::kNormed, 0.0f, /*shuffled=*/true);
  const PredictedModel straight(plain_.file(), PredictorInput::kNormed, 0.0f);
  const auto order = ShuffledOrder(plain_.file().config());
  RelayoutOptions options;
  options.order = order;
  const ActivityRecord activity = MadeUpActivity(plain_.file().config());
  options.activity = &activity;
  Must(Relayout(straight.file(), dir_.File("moved.sluice"), options));
  EXPECT_TRUE(SluiceImage::Load(dir_.File("moved.sluice")).bytes ==
              SluiceImage::Load(shuffled.path()).bytes);
}

TEST_F(RelayoutTest, PredictorsOfHeadsStayAsTheyAreWhateverTheOrder) {
  const MadeUpHeads heads = {PredictorInput::kPrevious, 0.5f};
  const PredictedModel model(plain_.file(), PredictorInput::kNormed, 0.0f, false, heads);
  const auto order = ShuffledOrder(plain_.file().config());
  RelayoutOptions options;
  options.order = order;
  Must(Relayout(model.file(), dir_.File("moved.sluice"), options));
  const auto moved = Must(SluiceFile::Open(dir_.File("moved.sluice")));
  ASSERT_NE(moved->head_predictor(), nullptr);
  EXPECT_EQ(moved->head_predictor()->use.input, PredictorInput::kPrevious);
  EXPECT_THAT(moved->head_predictor()->use.thresholds, testing::Each(0.5f));
  EXPECT_EQ(moved->head_predictor()->label_share, 0.9f);
  const MadeUpPredictors made_up(plain_.file().config(), 11, plain_.file().config().n_heads);
  const FileBytes before(model.file()), after(*moved);
  for (uint32_t l = 0; l < plain_.file().config().n_layers; ++l) {
    for (const MatrixRole role : {MatrixRole::kHeadPredictor1, MatrixRole::kHeadPredictor2}) {
      const MatrixEntry& m = model.file().matrix(model.file().MatrixIndex(role, l));
      const MatrixEntry& to = moved->matrix(moved->MatrixIndex(role, l));
      ASSERT_EQ(after.At(to.offset, m.n_bytes()), before.At(m.offset, m.n_bytes()));
      std::vector<std::byte> packed(m.row_bytes());
      const auto& w = made_up.weights[l];
      EncodeRow(WeightType::kQ8,
                (role == MatrixRole::kHeadPredictor1 ? w.fc1 : w.fc2).first(m.columns), packed);
      ASSERT_EQ(before.At(m.offset, m.row_bytes()), packed);
    }
  }
  EXPECT_EQ(Must(Verify(moved->path(), {})).damaged, 0u);
}

TEST_F(RelayoutTest, PredictorsOfHeadsMustFitTheModelAndNotBeAlone) {
  const ModelConfig& c = plain_.file().config();
  MadeUpPredictors heads(c, 11, c.n_heads);
  RelayoutOptions options;
  options.head_predictors = heads.weights;
  options.head_predictor_record = {{PredictorInput::kResidual, {}}, 0.9f};
  EXPECT_THAT(Try(options).message(), HasSubstr("head predictors of 3 layers, with 0 thresholds"));
  options.head_predictor_record.use.thresholds.assign(c.n_layers, 0.0f);
  EXPECT_THAT(Try(options).message(), HasSubstr("has no predictors of neurons"));
  heads.weights[1].fc2 = heads.weights[1].fc2.first(32);
  EXPECT_THAT(Try(options).message(), HasSubstr("the head predictor of layer 1 has"));
}

TEST_F(RelayoutTest, ActivityIsKeptUnlessTheOrderChanges) {
  const ModelConfig& c = plain_.file().config();
  ActivityRecord activity;
  activity.n_tokens = 1000;
  activity.n_hot.assign(c.n_layers, 7);
  for (uint32_t i = 0; i < c.n_layers * c.d_ff; ++i) {
    activity.frequency.push_back(static_cast<uint16_t>(i * 37));
  }
  RelayoutOptions options;
  options.activity = &activity;
  const auto file = Relaid(options);
  ASSERT_NE(file->activity(), nullptr);
  EXPECT_EQ(file->activity()->n_tokens, 1000u);
  EXPECT_EQ(file->activity()->frequency, activity.frequency);
  Must(Relayout(*file, dir_.File("again.sluice"), {}));
  EXPECT_NE(Must(SluiceFile::Open(dir_.File("again.sluice")))->activity(), nullptr);
  const auto order = ShuffledOrder(c);
  RelayoutOptions reorder;
  reorder.order = order;
  Must(Relayout(*file, dir_.File("other.sluice"), reorder));
  EXPECT_EQ(Must(SluiceFile::Open(dir_.File("other.sluice")))->activity(), nullptr);
}

TEST_F(RelayoutTest, ThresholdsAreStoredKeptAndReplaced) {
  ToyModel toy;
  toy.activation = Activation::kSilu;
  const PackedModel silu(toy, WeightType::kQ4);
  const std::vector<float> some = {0.1f, 0.0f, 0.3f}, others = {1.0f, 2.0f, 3.0f};
  const std::string first = dir_.File("first.sluice"), second = dir_.File("second.sluice");
  RelayoutOptions options;
  options.thresholds = some;
  Must(Relayout(silu.file(), first, options));
  const auto file = Must(SluiceFile::Open(first));
  EXPECT_THAT(file->thresholds(), testing::ElementsAreArray(some));
  EXPECT_EQ(file->weights_id(), silu.file().weights_id());
  EXPECT_NE(file->model_id(), silu.file().model_id());
  const auto order = ShuffledOrder(file->config());
  RelayoutOptions reorder;
  reorder.order = order;
  Must(Relayout(*file, second, reorder));
  EXPECT_THAT(Must(SluiceFile::Open(second))->thresholds(), testing::ElementsAreArray(some));
  options.thresholds = others;
  options.overwrite = true;
  Must(Relayout(*file, second, options));
  EXPECT_THAT(Must(SluiceFile::Open(second))->thresholds(), testing::ElementsAreArray(others));
  options.thresholds = std::span(some).first(2);
  EXPECT_THAT(Relayout(*file, second, options).status().message(),
              HasSubstr("thresholds of 2 layers"));
  options.thresholds = some;
  EXPECT_THAT(Try(options).message(), HasSubstr("relu, gives exact zeros"));
}

TEST_F(RelayoutTest, RefusesWhatDoesNotFitTheModel) {
  const ModelConfig& c = plain_.file().config();
  auto order = ShuffledOrder(c);
  RelayoutOptions options;
  order[1][3] = order[1][4];
  options.order = order;
  EXPECT_THAT(Try(options).message(), HasSubstr("the order of layer 1"));
  order.pop_back();
  options.order = order;
  EXPECT_THAT(Try(options).message(), HasSubstr("an order of 2 layers for 3"));

  MadeUpPredictors predictors(c);
  RelayoutOptions predicted;
  predicted.predictors = predictors.weights;
  EXPECT_THAT(Try(predicted).message(), HasSubstr("with 0 thresholds"));
  predicted.predictor_record.thresholds.assign(c.n_layers, 0.0f);
  predictors.fc2[1][5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(Try(predicted).message(), HasSubstr("layer 1 has a weight that is no number"));
  predictors.fc2[1][5] = 0;
  predictors.weights[2].rank = 31;
  EXPECT_THAT(Try(predicted).message(), HasSubstr("the predictor of layer 2"));
  EXPECT_TRUE(absl::IsInvalidArgument(Relayout(plain_.file(), plain_.path(), {}).status()));
  EXPECT_FALSE(std::filesystem::exists(dir_.File("out.sluice")));
}

TEST_F(RelayoutTest, ADamagedWeightIsFoundAndNothingIsLeft) {
  const BundleLayout& b = plain_.file().bundles();
  std::fstream file(plain_.path(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(b.BundleOffset(1, 9) + 3));
  file.put('\x7e');
  file.put('\x11');
  file.close();
  const absl::Status status = Try({});
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("bundle of layer 1, neuron 9 "));
  EXPECT_FALSE(std::filesystem::exists(dir_.File("out.sluice")));
}

}  // namespace
}  // namespace sluice
