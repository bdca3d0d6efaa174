// Samples of a model that runs over text, and training all its predictors with interruptions.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/predictor_samples.h"
#include "runtime/predictor_training.h"
#include "tests/decoder_harness.h"
#include "tests/predicted_model.h"

namespace sluice {
namespace {

using testing::HasSubstr;

constexpr size_t kSequences = 40, kLength = 24;

class TrainingTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = new PackedModel(ToyModel(), WeightType::kF32); }
  static void TearDownTestSuite() { delete std::exchange(model_, nullptr); }

  std::vector<SampleText> Text() const {
    std::vector<SampleText> text;
    for (size_t s = 0; s < kSequences; ++s) {
      text.push_back({std::span(tokens_).subspan(s * kLength, kLength), s % 8 == 7});
    }
    return text;
  }

  std::vector<LayerSamples> Collect(const SluiceFile& file, PredictorInput input, uint32_t first,
                                    uint32_t n) const {
    PredictorSampler::Options options;
    options.input = input;
    return Must(Must(PredictorSampler::Create(file, Text(), options))->Collect(first, n));
  }

  PredictorTraining Training() const {
    PredictorTraining t;
    t.sampler.input = PredictorInput::kResidual;
    t.trainer.epochs = 2;
    t.share = 0.2;
    t.checkpoints = dir_.File("work");
    return t;
  }
  std::vector<std::vector<std::byte>> Train(const PredictorTraining& training) const {
    std::vector<std::vector<std::byte>> layers;
    for (const auto& l : Must(TrainPredictors(model_->file(), Text(), training))) {
      layers.push_back(l.Serialize());
    }
    return layers;
  }

  static inline PackedModel* model_ = nullptr;
  const std::vector<int32_t> tokens_ = RandomTokens(kSequences * kLength, ToyModel().vocab_size);
  TempDir dir_;
};

void ExpectSame(const TrainingSamples& a, const TrainingSamples& b, bool labels) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_GT(a.size(), 0u);
  std::vector<float> x(a.d_model()), y(a.d_model());
  for (size_t s = 0; s < a.size(); ++s) {
    a.GetInput(s, x);
    b.GetInput(s, y);
    ASSERT_EQ(x, y) << s;
    for (uint32_t w = 0; labels && w < (a.d_ff() + 63) / 64; ++w) {
      ASSERT_EQ(a.labels(s)[w], b.labels(s)[w]) << s;
    }
  }
}

TEST_F(TrainingTest, EverySequenceGivesItsTokensToOnePart) {
  const auto samples = Collect(model_->file(), PredictorInput::kNormed, 0, 3);
  ASSERT_EQ(samples.size(), 3u);
  for (const LayerSamples& s : samples) {
    EXPECT_EQ(s.held_out.size(), kSequences / 8 * kLength);
    EXPECT_EQ(s.validation.size(), 3 * kLength);  // one in ten of the other 35
    EXPECT_EQ(s.train.size(), 32 * kLength);
    EXPECT_GT(s.train.density(), 0.0);
    EXPECT_LT(s.train.density(), 0.5);
  }
}

TEST_F(TrainingTest, NeuronsGoByTheirIdWhateverTheirOrder) {
  const PredictedModel shuffled(model_->file(), PredictorInput::kNormed, 0.0f, /*shuffled=*/true);
  // The first layer, before the order of a sum can make a difference.
  const auto plain = Collect(model_->file(), PredictorInput::kNormed, 0, 1);
  const auto other = Collect(shuffled.file(), PredictorInput::kNormed, 0, 1);
  ExpectSame(plain[0].train, other[0].train, /*labels=*/true);
}

TEST_F(TrainingTest, ThePreviousInputIsTheResidualOfTheLayerBefore) {
  const auto residual = Collect(model_->file(), PredictorInput::kResidual, 0, 3);
  const auto previous = Collect(model_->file(), PredictorInput::kPrevious, 0, 3);
  ExpectSame(previous[0].train, residual[0].train, /*labels=*/true);
  ExpectSame(previous[1].train, residual[0].train, /*labels=*/false);
  ExpectSame(previous[2].held_out, residual[1].held_out, /*labels=*/false);
  // A group that does not begin with the first layer is no other.
  ExpectSame(Collect(model_->file(), PredictorInput::kPrevious, 2, 1)[0].train, previous[2].train,
             /*labels=*/true);
}

TEST_F(TrainingTest, MemoryBoundsSamplesAndLayersAtATime) {
  const ModelConfig& config = model_->file().config();
  const size_t one = TrainingSamples::BytesOfOne(config.d_model, config.d_ff);
  const auto sampler = [&](uint64_t max_bytes, size_t max_samples) {
    PredictorSampler::Options options;
    options.max_bytes = max_bytes;
    options.max_samples = max_samples;
    return Must(PredictorSampler::Create(model_->file(), Text(), options));
  };
  constexpr size_t kAll = kSequences * kLength;
  EXPECT_EQ(sampler(UINT64_MAX, SIZE_MAX)->layers_at_once(), 3u);
  EXPECT_EQ(sampler(UINT64_MAX, SIZE_MAX)->n_samples(), kAll);
  EXPECT_EQ(sampler(2 * kAll * one, SIZE_MAX)->layers_at_once(), 2u);
  EXPECT_EQ(sampler(kAll * one, SIZE_MAX)->layers_at_once(), 1u);
  const auto half = sampler(kAll / 2 * one, SIZE_MAX);
  EXPECT_NEAR(static_cast<double>(half->n_samples()), kAll / 2, 3 * kLength);
  const auto samples = Must(half->Collect(0, 1));
  EXPECT_EQ(samples[0].train.size() + samples[0].validation.size() + samples[0].held_out.size(),
            half->n_samples());
  EXPECT_GT(samples[0].validation.size(), 0u);
  EXPECT_GT(samples[0].held_out.size(), 0u);
}

TEST_F(TrainingTest, TooLittleTextIsRefused) {
  for (const auto& kept : {std::vector<size_t>{0, 7}, {7, 15}, {0, 1, 2}, {}}) {
    std::vector<SampleText> text;
    for (const size_t s : kept) text.push_back(Text()[s]);
    const auto status = PredictorSampler::Create(model_->file(), text, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << kept.size();
    EXPECT_THAT(std::string(status.message()), HasSubstr("profile more text"));
  }
}

TEST_F(TrainingTest, ARunThatWasStoppedGoesOnToTheSameBytes) {
  PredictorTraining training = Training();
  const auto whole = Train(training);
  ASSERT_EQ(whole.size(), 3u);

  std::atomic<int> stop = 0;
  training.sampler.stop = &stop;
  training.finished = [&](const PredictorCheckpoint&, bool) { stop = 1; };
  EXPECT_EQ(TrainPredictors(model_->file(), Text(), training).status().code(),
            absl::StatusCode::kCancelled);
  training.sampler.stop = nullptr;
  training.resume = true;
  training.sampler.n_threads = 2;
  std::vector<bool> from_before;
  training.finished = [&](const PredictorCheckpoint&, bool before) {
    from_before.push_back(before);
  };
  EXPECT_EQ(Train(training), whole);
  EXPECT_THAT(from_before, testing::ElementsAre(true, false, false));
}

TEST_F(TrainingTest, FinishedLayersOfAnotherRunAreRefusedOrReplaced) {
  PredictorTraining training = Training();
  const auto first = Train(training);
  training.resume = true;
  training.trainer.seed = 1;
  const auto status = TrainPredictors(model_->file(), Text(), training).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("layer-0000.predictor"), HasSubstr("--resume")));
  training.resume = false;
  EXPECT_NE(Train(training), first);
}

TEST_F(TrainingTest, ADamagedCheckpointIsNamed) {
  PredictorTraining training = Training();
  Train(training);
  const std::string path = training.checkpoints + "/layer-0001.predictor";
  std::filesystem::resize_file(path, 100);
  training.resume = true;
  const auto status = TrainPredictors(model_->file(), Text(), training).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
}

TEST_F(TrainingTest, CheckpointsAreRemovedWithoutTouchingOtherFiles) {
  const PredictorTraining training = Training();
  Train(training);
  const std::string mine = training.checkpoints + "/mine";
  std::ofstream(mine) << "x";
  RemoveCheckpoints(training.checkpoints, 3);
  EXPECT_FALSE(std::filesystem::exists(training.checkpoints + "/layer-0002.predictor"));
  EXPECT_TRUE(std::filesystem::exists(mine));
  std::filesystem::remove(mine);
  RemoveCheckpoints(training.checkpoints, 3);
  EXPECT_FALSE(std::filesystem::exists(training.checkpoints));
}

TEST_F(TrainingTest, AFolderThatCannotBeMadeIsNamed) {
  PredictorTraining training = Training();
  training.checkpoints = dir_.File("file") + "/work";
  std::ofstream(dir_.File("file")) << "x";
  const auto status = TrainPredictors(model_->file(), Text(), training).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(training.checkpoints));
}

}  // namespace
}  // namespace sluice
