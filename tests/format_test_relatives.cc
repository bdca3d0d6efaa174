// The parts of the format that only relatives of the Llama family have.
#include <array>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/sluice_file.h"
#include "layout/verify.h"
#include "tests/cost_bound.h"
#include "tests/format_test_files.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class RelativeFileTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto size = WriteTinySluice(model_, path_);
    ASSERT_TRUE(size.ok()) << size.status();
    auto file = SluiceFile::Open(path_);
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
  }

  const TinySluice model_ = MakeTinyRelative(WeightType::kQ4);
  TempDir dir_;
  const std::string path_ = dir_.File("relative.sluice");
  std::unique_ptr<SluiceFile> file_;
};

TEST_F(RelativeFileTest, ConfigComesBack) {
  ByteWriter before, after;
  WriteConfig(model_.config, before);
  WriteConfig(file_->config(), after);
  EXPECT_EQ(before.bytes(), after.bytes());
  const ModelConfig& c = file_->config();
  EXPECT_EQ(c.norm, NormKind::kLayer);
  EXPECT_FALSE(c.gated);
  EXPECT_TRUE(c.o_bias && c.ffn_bias && c.learned_positions);
  EXPECT_EQ(c.rope_dim(), 8u);
}

TEST_F(RelativeFileTest, VectorsComeBackInTheOrderOfTheFormat) {
  std::vector<float> joined;
  const auto append = [&joined](std::span<const float> part, size_t size) {
    EXPECT_EQ(part.size(), size);
    joined.insert(joined.end(), part.begin(), part.end());
  };
  for (uint32_t l = 0; l < 2; ++l) {
    append(file_->attention_norm(l), 64);
    append(file_->ffn_norm(l), 64);
    append(file_->q_bias(l), 64);
    append(file_->k_bias(l), 32);
    append(file_->v_bias(l), 32);
    append(file_->attention_norm_bias(l), 64);
    append(file_->ffn_norm_bias(l), 64);
    append(file_->o_bias(l), 64);
    append(file_->up_bias(l), 96);
    append(file_->down_bias(l), 64);
  }
  append(file_->output_norm(), 64);
  append(file_->output_norm_bias(), 64);
  append(file_->rope_divisors(), 4);
  for (uint32_t p = 0; p < 128; ++p) append(file_->learned_position(p), 64);
  EXPECT_EQ(joined, model_.vectors);
}

TEST_F(RelativeFileTest, ABundleIsADownColumn) {
  const SluiceImage image = SluiceImage::Load(path_);
  const BundleLayout& b = file_->bundles();
  for (uint32_t l = 0; l < 2; ++l) {
    for (uint32_t p = 0; p < b.d_ff; ++p) {
      const auto payload = std::span(image.bytes).subspan(b.BundleOffset(l, p), b.row_bytes());
      std::vector<float> column(b.d_model);
      DecodeRow(b.type, payload, column);
      ASSERT_EQ(column, TinyDownColumn(model_, l, TinyNeuron(l, p)));
      EXPECT_TRUE(file_->BundleIsIntact(l, p, payload));
    }
  }
  const auto report = Verify(path_, {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->damaged, 0u);
}

TEST_F(RelativeFileTest, AProgramThatKnowsNoRelativesIsTold) {
  EXPECT_EQ(LoadLe<uint64_t>(&SluiceImage::Load(path_).bytes[16]), kFeatureRelatives);
}

TEST_F(RelativeFileTest, AConfigThatIsCutShortIsRefused) {
  ModelConfig llama = model_.config;
  llama.norm = NormKind::kRms;
  llama.gated = true;
  llama.o_bias = llama.ffn_bias = llama.learned_positions = false;
  llama.unrotated = 0;
  ByteWriter without;
  WriteConfig(llama, without);
  SluiceImage image = SluiceImage::Load(path_);
  const auto raw = image.ReadSection(SectionKind::kConfig);
  EXPECT_EQ(raw.size(), without.bytes().size() + 9);
  for (size_t n = without.bytes().size() + 1; n < raw.size(); ++n) {
    image.ReplaceSection(SectionKind::kConfig, std::span(raw).first(n));
    image.Seal();
    image.Write(path_);
    const CostBound bound;
    const absl::Status status = SluiceFile::Open(path_).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(path_));
    EXPECT_THAT(std::string(status.message()), HasSubstr("config record is cut short"));
  }
}

}  // namespace
}  // namespace sluice
