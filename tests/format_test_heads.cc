// The parts of the format that only a file with predictors of heads has.
#include <functional>
#include <limits>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/sluice_file.h"
#include "layout/verify.h"
#include "tests/format_test_files.h"

namespace sluice {
namespace {

class HeadPredictedFileTest : public EditedFileTest {
 protected:
  HeadPredictedFileTest() : EditedFileTest(MakeTinyHeadPredicted(WeightType::kQ4)) {}

  template <typename T>
  void StoreInRecord(size_t at, T value) {
    Store<T>(SectionKind::kHeadPredictor, at, value);
  }
};

TEST_F(HeadPredictedFileTest, RecordAndMatricesComeBack) {
  const auto file = SluiceFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  const SluiceFile& f = **file;
  ASSERT_NE(f.predictor(), nullptr);
  ASSERT_NE(f.head_predictor(), nullptr);
  EXPECT_EQ(f.head_predictor()->use.input, PredictorInput::kResidual);
  EXPECT_EQ(f.head_predictor()->use.thresholds, model_.head_predictor->use.thresholds);
  EXPECT_EQ(f.head_predictor()->label_share, 0.75f);
  for (uint32_t l = 0; l < 2; ++l) {
    const MatrixEntry& fc1 = f.matrix(f.MatrixIndex(MatrixRole::kHeadPredictor1, l));
    const MatrixEntry& fc2 = f.matrix(f.MatrixIndex(MatrixRole::kHeadPredictor2, l));
    EXPECT_EQ(fc1.role, MatrixRole::kHeadPredictor1);
    EXPECT_EQ(fc1.rows, l == 0 ? 64u : 32u);
    EXPECT_EQ(fc1.columns, 64u);
    EXPECT_EQ(fc2.role, MatrixRole::kHeadPredictor2);
    EXPECT_EQ(fc2.rows, 4u);
    EXPECT_EQ(fc2.columns, fc1.rows);
    EXPECT_EQ(fc2.layer, l);
    EXPECT_EQ(f.matrix(f.MatrixIndex(MatrixRole::kPredictor2, l)).rows, 96u);
  }
  const auto report = Verify(path_, {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->damaged, 0u);
}

TEST_F(HeadPredictedFileTest, AProgramThatKnowsNoPredictorsOfHeadsIsTold) {
  EXPECT_EQ(LoadLe<uint64_t>(&image_.bytes[16]), kFeaturePredictors | kFeatureHeadPredictors);
}

TEST_F(HeadPredictedFileTest, WildDirectoriesAreRefused) {
  const size_t first = model_.directory.matrices.size() - 4;  // fc1 of layer 0
  const auto edit = [&](const std::function<void(std::vector<MatrixEntry>&)>& change) {
    EditDirectory([&](Directory& d) { change(d.matrices); });
  };
  for (const uint32_t rank : {0u, 33u, UINT32_MAX & ~31u}) {
    edit([&](auto& m) { m[first].rows = rank; });
    ExpectRefused(absl::StrFormat("head predictor fc1 of layer 0: rank %u is not", rank));
  }
  edit([&](auto& m) { m[first + 1].rows = 96; });
  ExpectRefused("head predictor fc2 of layer 0: entry is");
  edit([&](auto& m) { std::swap(m[first], m[first + 1]); });
  ExpectRefused("head predictor fc1 of layer 0");
  edit([&](auto& m) { m.erase(m.end() - 2, m.end()); });
  ExpectRefused("matrices; the config asks for");
  edit([&](auto& m) { m.erase(m.end() - 8, m.end() - 4); });  // those of neurons
  ExpectRefused("matrices; the config asks for");
  edit([&](auto& m) { m[first].offset = m[first - 1].offset; });
  ExpectRefused("inside");
  edit([&](auto& m) { m[first].role = static_cast<MatrixRole>(11); });
  ExpectRefused("unknown role 11");
}

TEST_F(HeadPredictedFileTest, WildRecordsAreRefused) {
  StoreInRecord<uint32_t>(0, 9);
  ExpectRefused("head predictor record has version 9");
  StoreInRecord<uint8_t>(4, 3);
  ExpectRefused("head predictor record: unknown input 3");
  StoreInRecord<uint32_t>(5, UINT32_MAX);
  ExpectRefused("head predictor record is of 4294967295 layers");
  StoreInRecord<float>(13, std::numeric_limits<float>::infinity());
  ExpectRefused("head predictor record: the threshold of layer 1 is no number");
  for (const float share : {0.0f, -1.0f, 1.5f, std::numeric_limits<float>::quiet_NaN()}) {
    StoreInRecord<float>(17, share);
    ExpectRefused("head predictor record: a label share of");
  }
  const auto raw = image_.ReadSection(SectionKind::kHeadPredictor);
  ASSERT_EQ(raw.size(), 21u);
  for (size_t n = 1; n < raw.size(); ++n) {
    image_.ReplaceSection(SectionKind::kHeadPredictor, std::span(raw).first(n));
    ExpectRefused("record");
  }
}

TEST_F(HeadPredictedFileTest, PredictorsAndTheirRecordComeTogether) {
  Drop(SectionKind::kHeadPredictor);
  ExpectRefused("has predictors of heads, but there is no record of how they are used");
  EditDirectory([](Directory& d) { d.matrices.erase(d.matrices.end() - 4, d.matrices.end()); });
  ExpectRefused("has no predictors of heads, but there is a record of how they are used");
}

}  // namespace
}  // namespace sluice
