// A file of format 1.0 that every later version must read. It was written by WriteTinySluice of
// MakeTinySluice(kQ4) with Sluice 0.1.0 and is never written again: where this test fails, the
// reader has broken with the files that users have.
#include <zstd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "layout/sluice_file.h"
#include "layout/verify.h"
#include "tests/sluice_image.h"
#include "tests/test_paths.h"
#include "tests/tiny_sluice.h"

namespace sluice {
namespace {

constexpr size_t kGoldenBytes = 2100300;

class GoldenTest : public testing::Test {
 protected:
  void SetUp() override {
    std::ifstream in(SLUICE_SOURCE_DIR "/tests/data/golden_v1.sluice.zst", std::ios::binary);
    const std::string packed(std::istreambuf_iterator<char>(in), {});
    image_.bytes.resize(kGoldenBytes);
    ASSERT_EQ(ZSTD_decompress(image_.bytes.data(), kGoldenBytes, packed.data(), packed.size()),
              kGoldenBytes);
    image_.Write(path_);
    auto file = SluiceFile::Open(path_);
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
  }

  TempDir dir_;
  const std::string path_ = dir_.File("golden_v1.sluice");
  SluiceImage image_;
  std::unique_ptr<SluiceFile> file_;
};

TEST_F(GoldenTest, EveryChecksumHolds) {
  const auto report = Verify(path_, nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->tiles, 12u);
  EXPECT_EQ(report->bundles, 192u);
  EXPECT_EQ(report->damaged, 0u);
}

TEST_F(GoldenTest, TheRecordsHoldWhatWasWritten) {
  EXPECT_EQ(file_->model_id(), 0xc110dd7d3ccbfa11u);
  const ModelConfig& c = file_->config();
  EXPECT_EQ(c.architecture, "llama");
  EXPECT_EQ(c.name, "tiny");
  EXPECT_EQ(c.n_layers, 2u);
  EXPECT_EQ(c.d_model, 64u);
  EXPECT_EQ(c.d_ff, 96u);
  EXPECT_EQ(c.n_heads, 4u);
  EXPECT_EQ(c.n_kv_heads, 2u);
  EXPECT_EQ(c.head_dim, 16u);
  EXPECT_EQ(c.vocab_size, 40u);
  EXPECT_EQ(c.context_length, 128u);
  EXPECT_EQ(c.norm_epsilon, 1e-6f);
  EXPECT_EQ(c.rope_base, 50000.0f);
  EXPECT_EQ(c.rope_style, RopeStyle::kHalf);
  EXPECT_EQ(c.activation, Activation::kFatRelu);
  EXPECT_EQ(c.activation_origin, ActivationOrigin::kFlag);
  EXPECT_EQ(c.activation_threshold, 0.125f);
  EXPECT_FALSE(c.tied_head);
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_EQ(c.attention_window, 0u);  // came with format 1.1
  EXPECT_EQ(file_->provenance().source_types, "F32");
  EXPECT_EQ(file_->attention_norm(0)[0], 1.0f);
  EXPECT_EQ(file_->attention_norm(0)[1], 1.0f + 0x1p-10f);
  const auto tokenizer = file_->LoadTokenizer();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->tokens[3], "A");
  EXPECT_EQ(tokenizer->bos, 1);
}

TEST_F(GoldenTest, ABundleLiesWhereItLayAndDecodesAsItDid) {
  const BundleLayout& b = file_->bundles();
  EXPECT_EQ(b.BundleOffset(1, 3), 1572864u + 3 * 512);
  EXPECT_EQ(file_->NeuronAt(1, 3), 17u);
  const auto payload = std::span(image_.bytes).subspan(b.BundleOffset(1, 3), b.payload_bytes());
  EXPECT_EQ(Checksum64(payload), 0x8df8b984b1067b91u);
  const unsigned char kFirst[] = {0xf6, 0xc3, 0x6b, 0x39};
  EXPECT_EQ(std::memcmp(payload.data(), kFirst, sizeof(kFirst)), 0);
  std::vector<float> up(b.d_model);
  DecodeRow(b.type, payload.first(b.row_bytes()), up);
  // Low nibbles 6, 3, b, 9 are the first elements, high nibbles f, c, 6, 3 those from 32 on.
  EXPECT_EQ(std::vector<float>(up.begin(), up.begin() + 4),
            (std::vector<float>{-0.5f, -1.25f, 0.75f, 0.25f}));
  EXPECT_EQ(std::vector<float>(up.begin() + 32, up.begin() + 36),
            (std::vector<float>{1.75f, 1.0f, -0.5f, -1.25f}));
}

TEST_F(GoldenTest, EveryWeightDecodesToTheFormulaItCameFrom) {
  TinySluice model = MakeTinySluice(WeightType::kQ4);
  model.directory = file_->directory();
  for (uint32_t i = 0; i < model.directory.matrices.size(); ++i) {
    const MatrixEntry& m = file_->matrix(i);
    std::vector<float> row(m.columns);
    for (uint32_t r = 0; r < m.rows; ++r) {
      const uint64_t at = m.offset + r / m.rows_per_tile * uint64_t{m.tile_stride} +
                          r % m.rows_per_tile * m.row_bytes();
      DecodeRow(m.type, std::span(image_.bytes).subspan(at, m.row_bytes()), row);
      ASSERT_EQ(row, TinyMatrixRow(model, i, r)) << MatrixRoleName(m.role) << " row " << r;
    }
  }
  const BundleLayout& b = file_->bundles();
  std::vector<float> row(b.d_model);
  for (uint32_t l = 0; l < 2; ++l) {
    for (uint32_t p = 0; p < b.d_ff; ++p) {
      const auto payload = std::span(image_.bytes).subspan(b.BundleOffset(l, p), b.payload_bytes());
      DecodeRow(b.type, payload.first(b.row_bytes()), row);
      ASSERT_EQ(row, TinyUpRow(model, l, TinyNeuron(l, p)));
      DecodeRow(b.type, payload.subspan(b.down_offset()), row);
      ASSERT_EQ(row, TinyDownColumn(model, l, TinyNeuron(l, p)));
    }
  }
}

}  // namespace
}  // namespace sluice
