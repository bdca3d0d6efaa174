// The parts of the format that only a file has of which it is known which neurons fire.
#include <functional>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/sluice_file.h"
#include "layout/verify.h"
#include "tests/format_test_files.h"

namespace sluice {
namespace {

class PredictedFileTest : public EditedFileTest {
 protected:
  PredictedFileTest() : EditedFileTest(MakeTinyPredicted(WeightType::kQ4)) {}
};

TEST_F(PredictedFileTest, RecordsAndMatricesComeBack) {
  const auto file = SluiceFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  const SluiceFile& f = **file;
  EXPECT_TRUE(f.bundles().has_gate);
  ASSERT_NE(f.predictor(), nullptr);
  EXPECT_EQ(f.predictor()->input, PredictorInput::kPrevious);
  EXPECT_EQ(f.predictor()->thresholds, model_.predictor->thresholds);
  ASSERT_NE(f.activity(), nullptr);
  EXPECT_EQ(f.activity()->n_tokens, 1234u);
  EXPECT_EQ(f.activity()->n_hot, model_.activity->n_hot);
  EXPECT_EQ(f.activity()->frequency, model_.activity->frequency);
  EXPECT_EQ(f.activity()->placements, model_.activity->placements);
  for (uint32_t l = 0; l < 2; ++l) {
    const MatrixEntry& fc1 = f.matrix(f.MatrixIndex(MatrixRole::kPredictor1, l));
    const MatrixEntry& fc2 = f.matrix(f.MatrixIndex(MatrixRole::kPredictor2, l));
    EXPECT_EQ(fc1.rows, l == 0 ? 32u : 64u);
    EXPECT_EQ(fc1.columns, 64u);
    EXPECT_EQ(fc2.rows, 96u);
    EXPECT_EQ(fc2.columns, fc1.rows);
    EXPECT_EQ(fc1.layer, l);
  }
  const auto report = Verify(path_, {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->damaged, 0u);
}

TEST_F(PredictedFileTest, AProgramThatKnowsNoPredictorsIsTold) {
  EXPECT_EQ(LoadLe<uint64_t>(&image_.bytes[16]), kFeaturePredictors);
  TempDir other;
  ASSERT_TRUE(WriteTinySluice(MakeTinySluice(WeightType::kQ4), other.File("plain.sluice")).ok());
  EXPECT_EQ(LoadLe<uint64_t>(&SluiceImage::Load(other.File("plain.sluice")).bytes[16]), 0u);
}

TEST_F(PredictedFileTest, WildDirectoriesAreRefused) {
  const size_t first = model_.directory.matrices.size() - 4;  // fc1 of layer 0
  const auto edit_rank = [&](uint32_t rank) {
    EditDirectory([&](Directory& d) { d.matrices[first].rows = rank; });
  };
  edit_rank(0);
  ExpectRefused("rank 0 is not");
  edit_rank(33);
  ExpectRefused("rank 33 is not");
  edit_rank(UINT32_MAX & ~31u);
  ExpectRefused("rank 4294967264 is not");
  edit_rank(64);
  ExpectRefused("predictor");
  EditDirectory([&](Directory& d) { std::swap(d.matrices[first], d.matrices[first + 1]); });
  ExpectRefused("predictor fc1 of layer 0");
  EditDirectory([&](Directory& d) { d.matrices.erase(d.matrices.end() - 2, d.matrices.end()); });
  ExpectRefused("matrices; the config asks for");
  EditDirectory([&](Directory& d) { d.matrices[first].offset = d.bundles.layer_offsets[0]; });
  ExpectRefused("inside");
  Store<uint8_t>(SectionKind::kDirectory, 5, 2);
  ExpectRefused("unknown flags 0x2");
  Store<uint8_t>(SectionKind::kDirectory, 5, 0);
  ExpectRefused("no gate rows in its bundles");
}

TEST_F(PredictedFileTest, WildRecordsAreRefused) {
  Store<uint32_t>(SectionKind::kPredictor, 0, 9);
  ExpectRefused("predictor record has version 9");
  Store<uint8_t>(SectionKind::kPredictor, 4, 3);
  ExpectRefused("unknown input 3");
  Store<uint32_t>(SectionKind::kPredictor, 5, UINT32_MAX);
  ExpectRefused("predictor record is of 4294967295 layers");
  Store<float>(SectionKind::kPredictor, 13, std::numeric_limits<float>::quiet_NaN());
  ExpectRefused("threshold of layer 1 is no number");
  Store<uint32_t>(SectionKind::kActivity, 0, 2);
  ExpectRefused("activity record has version 2");
  Store<uint32_t>(SectionKind::kActivity, 16, 97);
  ExpectRefused("layer 1 has 97 hot neurons of 96");
  const size_t placements = 20 + 2 * 2 * 96;  // behind versions, counts and frequencies
  Store<uint32_t>(SectionKind::kActivity, placements, 65);
  ExpectRefused("activity record has 65 placements");
  Store<uint32_t>(SectionKind::kActivity, placements + 12, 97);
  ExpectRefused("placement 1 keeps 97 neurons of 96 of layer 0");
  for (const SectionKind kind : {SectionKind::kPredictor, SectionKind::kActivity}) {
    const auto raw = image_.ReadSection(kind);
    for (size_t n = 1; n < raw.size(); n += n < 32 ? 1 : 61) {
      image_.ReplaceSection(kind, std::span(raw).first(n));
      ExpectRefused("record");
    }
  }
}

TEST_F(PredictedFileTest, PredictorsAndTheirRecordComeTogether) {
  Drop(SectionKind::kPredictor);
  ExpectRefused("there is no record of how they are used");
  EditDirectory([](Directory& d) { d.matrices.erase(d.matrices.end() - 4, d.matrices.end()); });
  ExpectRefused("there is a record of how they are used");
}

TEST_F(PredictedFileTest, ActivityMayBeAbsent) {
  const auto file = OpenWithout(SectionKind::kActivity);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->activity(), nullptr);
}

class ThresholdFileTest : public EditedFileTest {
 protected:
  ThresholdFileTest() : EditedFileTest(MakeTinyThresholded(WeightType::kQ4)) {}
};

TEST_F(ThresholdFileTest, ThresholdsComeBack) {
  const auto file = SluiceFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->thresholds(), testing::ElementsAre(0.25f, 0.0f));
  EXPECT_TRUE((*file)->sparse());
}

TEST_F(ThresholdFileTest, ThresholdsMayBeAbsent) {
  const auto file = OpenWithout(SectionKind::kThresholds);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->thresholds().empty());
  EXPECT_FALSE((*file)->sparse());
}

TEST_F(ThresholdFileTest, DamagedThresholdsAreRefused) {
  constexpr SectionKind kKind = SectionKind::kThresholds;
  Store<uint32_t>(kKind, 0, 9);
  ExpectRefused("thresholds record has version 9");
  Store<uint32_t>(kKind, 4, 1);
  ExpectRefused("activation thresholds of 1 layers; the config has 2");
  for (const uint32_t n : {3u, UINT32_MAX}) {
    Store<uint32_t>(kKind, 4, n);
    ExpectRefused("thresholds record is cut short");
  }
  for (const float t :
       {-0.5f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Store<float>(kKind, 12, t);
    ExpectRefused("the activation threshold of layer 1 is ");
  }
  const auto raw = image_.ReadSection(kKind);
  for (size_t n = 1; n < raw.size(); ++n) {
    image_.ReplaceSection(kKind, std::span(raw).first(n));
    ExpectRefused("thresholds record is cut short");
  }
  image_.entries.push_back(image_.entries.back());
  ExpectRefused("two thresholds sections");
}

TEST_F(ThresholdFileTest, AnActivationWithExactZerosHasNone) {
  auto config = image_.ReadSection(SectionKind::kConfig);
  ByteReader in(config);
  auto model = ReadConfig(in);
  ASSERT_TRUE(model.ok());
  model->activation = Activation::kRelu;
  ByteWriter out;
  WriteConfig(*model, out);
  image_.ReplaceSection(SectionKind::kConfig, out.bytes());
  ExpectRefused("the activation, relu, gives exact zeros");
}

}  // namespace
}  // namespace sluice
