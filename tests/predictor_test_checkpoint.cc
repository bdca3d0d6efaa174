// Checkpoints of predictors: what is saved comes back; what is damaged is refused by name.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/byte_io.h"
#include "layout/sluice_format.h"
#include "predictor/low_rank_mlp.h"
#include "predictor/packed_predictor.h"
#include "predictor/predictor_checkpoint.h"
#include "tests/cost_bound.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using testing::HasSubstr;

constexpr uint32_t kModel = 64, kFf = 40, kRank = 32;
// Of the fields of the header.
constexpr size_t kVersionAt = 8, kLayerAt = 20, kModelAt = 24, kFfAt = 28, kRankAt = 32,
                 kThresholdAt = 36, kRowsAt = 80;

PredictorCheckpoint Good() {
  PredictorCheckpoint c;
  c.run = 0x1122334455667788;
  c.layer = 3;
  c.predictor = PackedPredictor(LowRankMlp::Random(kModel, kRank, kFf, 1, 1)).Unpack(-0.25f);
  c.quality.n_neurons = 1000;
  c.quality.n_active = 100;
  c.quality.n_predicted = 150;
  c.quality.n_hits = 95;
  c.top_k = 17;
  c.meets_targets = true;
  return c;
}

template <typename T>
std::vector<std::byte> With(size_t at, T value) {
  std::vector<std::byte> bytes = Good().Serialize();
  StoreLe(&bytes[at], value);
  const size_t end = bytes.size() - 8;
  StoreLe(&bytes[end], Checksum64(std::span(bytes).first(end)));
  return bytes;
}

void ExpectRefused(std::span<const std::byte> bytes, const std::string& what) {
  const CostBound bound;
  const auto status = PredictorCheckpoint::Parse(bytes, "some.predictor", kModel, kFf).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << what;
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("some.predictor: "), HasSubstr(what)));
}

TEST(PredictorCheckpointTest, WhatIsSavedComesBack) {
  const TempDir dir;
  const std::string path = dir.File("layer.predictor");
  std::ofstream(path) << "something else";
  const PredictorCheckpoint good = Good();
  ASSERT_TRUE(good.Save(path).ok());
  const auto loaded = PredictorCheckpoint::Load(path, kModel, kFf);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->run, good.run);
  EXPECT_EQ(loaded->layer, good.layer);
  EXPECT_EQ(loaded->predictor.rank, kRank);
  EXPECT_EQ(loaded->predictor.fc1, good.predictor.fc1);
  EXPECT_EQ(loaded->predictor.fc2, good.predictor.fc2);
  EXPECT_EQ(loaded->predictor.threshold, good.predictor.threshold);
  EXPECT_EQ(loaded->quality.n_hits, good.quality.n_hits);
  EXPECT_EQ(loaded->top_k, good.top_k);
  EXPECT_TRUE(loaded->meets_targets);
  EXPECT_EQ(loaded->Serialize(), good.Serialize());
}

TEST(PredictorCheckpointTest, WhatIsNoFileIsRefusedByName) {
  const TempDir dir;
  const auto code = [](const std::string& path) {
    const auto status = PredictorCheckpoint::Load(path, kModel, kFf).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
    return status.code();
  };
  EXPECT_EQ(code(dir.File("missing")), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(dir.path()), absl::StatusCode::kPermissionDenied);
  const std::string large = dir.File("large");
  ASSERT_TRUE(Good().Save(large).ok());
  std::filesystem::resize_file(large, uint64_t{1} << 40);
  const CostBound bound;
  EXPECT_EQ(code(large), absl::StatusCode::kDataLoss);
}

TEST(PredictorCheckpointTest, AFileCutAnywhereIsRefused) {
  const std::vector<std::byte> whole = Good().Serialize();
  for (size_t n = 0; n < whole.size(); n += n < 100 ? 1 : 37) {
    ExpectRefused(std::span(whole).first(n), "predictor checkpoint");
  }
  std::vector<std::byte> longer = whole;
  longer.push_back(std::byte{0});
  ExpectRefused(longer, "size does not fit");
}

TEST(PredictorCheckpointTest, ATurnedBitIsRefused) {
  const std::vector<std::byte> whole = Good().Serialize();
  for (size_t bit = 0; bit < whole.size() * 8; bit += bit < 800 ? 1 : 101) {
    std::vector<std::byte> bytes = whole;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    ExpectRefused(bytes, "predictor checkpoint");
  }
}

TEST(PredictorCheckpointTest, FieldsThatDoNotFitAreNamedThoughTheChecksumIsRight) {
  EXPECT_TRUE(PredictorCheckpoint::Parse(With<uint32_t>(kLayerAt, 4), "x", kModel, kFf).ok());
  ExpectRefused(With<uint32_t>(kVersionAt, 2), "version is 2");
  ExpectRefused(With<uint32_t>(kModelAt, 96), "for 96 inputs");
  ExpectRefused(With<uint32_t>(kFfAt, UINT32_MAX), "4294967295 neurons");
  for (const uint32_t rank : {0u, 31u, 1u << 31, UINT32_MAX - 31}) {
    ExpectRefused(With(kRankAt, rank), "a rank of " + std::to_string(rank));
  }
  for (const uint32_t rank : {64u, 8192u}) ExpectRefused(With(kRankAt, rank), "size does not fit");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ExpectRefused(With(kThresholdAt, nan), "not a finite number");
  // The first scale of the first row, after its quants.
  ExpectRefused(With<uint16_t>(kRowsAt + kModel, 0x7c00), "not a finite number");
}

}  // namespace
}  // namespace sluice
