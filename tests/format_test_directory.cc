// Where a directory places things: the arithmetic of tiles, bundles and blobs for many shapes.
#include <algorithm>
#include <array>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/sluice_format.h"

namespace sluice {
namespace {

using testing::HasSubstr;

struct Shape {
  const char* name;
  uint32_t n_layers, d_model, d_ff, n_heads, n_kv_heads, head_dim, vocab_size;
  bool tied_head;
  WeightType resident, ffn;
  uint32_t block;
};
void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

ModelConfig ConfigOf(const Shape& s) {
  ModelConfig c;
  c.architecture = "llama";
  c.n_layers = s.n_layers;
  c.d_model = s.d_model;
  c.d_ff = s.d_ff;
  c.n_heads = s.n_heads;
  c.n_kv_heads = s.n_kv_heads;
  c.head_dim = s.head_dim;
  c.vocab_size = s.vocab_size;
  c.context_length = 2048;
  c.tied_head = s.tied_head;
  return c;
}

Directory DirectoryOf(const Shape& s) {
  DirectoryShape shape;
  shape.matrix_types.fill(s.resident);
  shape.matrix_types[static_cast<size_t>(MatrixRole::kGate)] = s.ffn;
  shape.bundle_type = s.ffn;
  shape.block = s.block;
  return MakeDirectory(ConfigOf(s), shape);
}

class DirectoryTest : public testing::TestWithParam<Shape> {
 protected:
  const ModelConfig config_ = ConfigOf(GetParam());
  const Directory directory_ = DirectoryOf(GetParam());
  const BundleLayout& bundles_ = directory_.bundles;
};

TEST_P(DirectoryTest, EveryBundleLiesInsideOneBlob) {
  for (uint32_t l = 0; l < config_.n_layers; ++l) {
    const uint64_t layer = bundles_.layer_offsets[l];
    uint64_t end_before = layer;
    for (uint32_t p = 0; p < config_.d_ff; ++p) {
      const uint64_t begin = bundles_.BundleOffset(l, p);
      const uint64_t last = begin + bundles_.payload_bytes() - 1;
      ASSERT_EQ(begin % bundles_.block, 0u);
      ASSERT_GE(begin, end_before) << "bundle " << p << " overlaps the one before";
      ASSERT_EQ((begin - layer) / bundles_.blob_bytes, (last - layer) / bundles_.blob_bytes)
          << "bundle " << p << " of layer " << l << " crosses the end of a blob";
      end_before = begin + bundles_.stride;
    }
    EXPECT_LE(end_before, layer + bundles_.layer_bytes());
  }
}

TEST_P(DirectoryTest, BlobsAreAlignedAndContiguousWithinALayer) {
  EXPECT_EQ(bundles_.blob_bytes % kBlobAlignment, 0u);
  EXPECT_EQ(bundles_.layer_offsets.size(), config_.n_layers);
  for (const uint64_t offset : bundles_.layer_offsets) EXPECT_EQ(offset % kBlobAlignment, 0u);
  EXPECT_EQ(bundles_.layer_bytes(), bundles_.blobs_per_layer() * bundles_.blob_bytes);
  EXPECT_GE(uint64_t{bundles_.blobs_per_layer()} * bundles_.bundles_per_blob, config_.d_ff);
}

TEST_P(DirectoryTest, PaddingIsLessThanOneBlockABundleAndATile) {
  EXPECT_LT(bundles_.stride - bundles_.payload_bytes(), bundles_.block);
  for (const MatrixEntry& m : directory_.matrices) {
    EXPECT_LT(m.tile_stride - m.rows_per_tile * m.row_bytes(), bundles_.block);
  }
}

TEST_P(DirectoryTest, TheBlockThatItChoosesAddsAtMostAQuarterOrIsTheSmallest) {
  if (GetParam().block != 0) {
    EXPECT_EQ(bundles_.block, GetParam().block);
    return;
  }
  EXPECT_TRUE(bundles_.block == 512 || 4 * bundles_.stride <= 5 * bundles_.payload_bytes())
      << "stride " << bundles_.stride << " for " << bundles_.payload_bytes();
}

TEST_P(DirectoryTest, TilesAreAlignedAndHoldEveryRowOnce) {
  for (const MatrixEntry& m : directory_.matrices) {
    EXPECT_EQ(m.offset % bundles_.block, 0u);
    EXPECT_EQ(m.tile_stride % bundles_.block, 0u);
    EXPECT_TRUE(m.rows_per_tile == 1 || m.rows_per_tile * m.row_bytes() <= kTileTarget);
    uint64_t rows = 0;
    for (uint32_t t = 0; t < m.n_tiles(); ++t) rows += m.rows_in_tile(t);
    EXPECT_EQ(rows, m.rows);
  }
}

TEST_P(DirectoryTest, RegionsDoNotOverlapAndEndWhereTheDirectorySays) {
  std::vector<std::pair<uint64_t, uint64_t>> regions = {{0, kHeaderBytes}};
  for (const MatrixEntry& m : directory_.matrices) {
    regions.emplace_back(m.offset, m.offset + m.n_bytes());
  }
  for (const uint64_t offset : bundles_.layer_offsets) {
    regions.emplace_back(offset, offset + bundles_.layer_bytes());
  }
  std::sort(regions.begin(), regions.end());
  for (size_t i = 1; i < regions.size(); ++i) {
    EXPECT_GE(regions[i].first, regions[i - 1].second);
  }
  EXPECT_EQ(regions.back().second, DirectoryEnd(directory_));
}

TEST_P(DirectoryTest, AFileThatEndsOneByteEarlierIsRefused) {
  const uint64_t end = DirectoryEnd(directory_);
  EXPECT_TRUE(ValidateDirectory(directory_, config_, end).ok());
  const absl::Status status = ValidateDirectory(directory_, config_, end - 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("beyond the file's"));
}

TEST_P(DirectoryTest, TheRecordReadsBackAsItWasWritten) {
  ByteWriter first;
  WriteDirectory(directory_, first);
  ByteReader reader(first.bytes());
  const auto read = ReadDirectory(reader);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(reader.remaining(), 0u);
  ByteWriter second;
  WriteDirectory(*read, second);
  EXPECT_EQ(first.bytes(), second.bytes());
  EXPECT_TRUE(ValidateDirectory(*read, config_, DirectoryEnd(directory_)).ok());
}

constexpr auto kF32 = WeightType::kF32;
constexpr auto kF16 = WeightType::kF16;
constexpr auto kQ8 = WeightType::kQ8;
constexpr auto kQ4 = WeightType::kQ4;

// Layers, width, FFN, heads, KV heads, head dimension, vocabulary, tied, types, block.
INSTANTIATE_TEST_SUITE_P(
    Shapes, DirectoryTest,
    testing::Values(
        Shape{"Smallest", 1, 32, 32, 1, 1, 32, 1, true, kF32, kQ4, 0},
        Shape{"Stories260K", 5, 64, 172, 8, 4, 8, 512, true, kF32, kF32, 0},
        Shape{"Stories260KInSmallBlocks", 5, 64, 172, 8, 4, 8, 512, true, kF16, kF16, 512},
        Shape{"OddFfn", 3, 96, 33, 3, 1, 32, 101, false, kQ8, kQ4, 0},
        Shape{"OneNeuronInTheLastBlob", 2, 256, 1025, 4, 4, 64, 300, false, kF16, kQ8, 512},
        Shape{"LargestBlock", 2, 256, 704, 8, 2, 32, 4096, false, kQ8, kQ4, 65536},
        Shape{"Of1b", 16, 2048, 8192, 32, 8, 64, 128256, true, kQ8, kQ4, 0},
        Shape{"Of3b", 28, 3072, 8192, 24, 8, 128, 128256, true, kQ8, kQ8, 0},
        Shape{"Of7bQ4", 32, 4096, 11008, 32, 32, 128, 32000, false, kQ4, kQ4, 0},
        Shape{"Of7bF16", 32, 4096, 11008, 32, 32, 128, 32000, false, kF16, kF16, 4096},
        Shape{"WidestRows", 1, 65536, 48, 2, 1, 64, 40, false, kF32, kF32, 0}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace sluice
