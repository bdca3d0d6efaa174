// What SluiceWriter writes is what SluiceFile and plain reads at the directory's offsets give back.
#include <unistd.h>

#include <array>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "layout/sluice_file.h"
#include "layout/sluice_writer.h"
#include "tests/format_test_files.h"

namespace sluice {
namespace {

std::vector<float> Decoded(WeightType type, std::span<const std::byte> row, size_t n) {
  std::vector<float> out(n);
  DecodeRow(type, row, out);
  return out;
}

class RoundTripTest : public testing::TestWithParam<WeightType> {
 protected:
  void SetUp() override {
    const auto size = WriteTinySluice(model_, path_);
    ASSERT_TRUE(size.ok()) << size.status();
    auto file = SluiceFile::Open(path_);
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
    EXPECT_EQ(*size, file_->file_size());
    image_ = SluiceImage::Load(path_);
  }

  const TinySluice model_ = MakeTinySluice(GetParam());
  TempDir dir_;
  const std::string path_ = dir_.File("tiny.sluice");
  std::unique_ptr<SluiceFile> file_;
  SluiceImage image_;
};

TEST_P(RoundTripTest, EveryMatrixRowIsWhereTheDirectorySays) {
  for (uint32_t i = 0; i < model_.directory.matrices.size(); ++i) {
    const MatrixEntry& m = file_->matrix(i);
    for (uint32_t t = 0; t < m.n_tiles(); ++t) {
      const auto rows =
          std::span(image_.bytes)
              .subspan(m.offset + uint64_t{t} * m.tile_stride, m.rows_in_tile(t) * m.row_bytes());
      EXPECT_TRUE(file_->TileIsIntact(i, t, rows));
      for (uint32_t r = 0; r < m.rows_in_tile(t); ++r) {
        ASSERT_EQ(Decoded(m.type, rows.subspan(r * m.row_bytes(), m.row_bytes()), m.columns),
                  TinyMatrixRow(model_, i, t * m.rows_per_tile + r))
            << MatrixRoleName(m.role) << " row " << t * m.rows_per_tile + r;
      }
    }
  }
}

TEST_P(RoundTripTest, EveryBundleHoldsTheUpRowAndTheDownColumnOfItsNeuron) {
  const BundleLayout& b = file_->bundles();
  for (uint32_t l = 0; l < file_->config().n_layers; ++l) {
    for (uint32_t p = 0; p < b.d_ff; ++p) {
      const uint32_t neuron = file_->NeuronAt(l, p);
      ASSERT_EQ(neuron, TinyNeuron(l, p));
      const auto payload = std::span(image_.bytes).subspan(b.BundleOffset(l, p), b.payload_bytes());
      EXPECT_TRUE(file_->BundleIsIntact(l, p, payload));
      ASSERT_EQ(Decoded(b.type, payload.first(b.row_bytes()), b.d_model),
                TinyUpRow(model_, l, neuron));
      ASSERT_EQ(Decoded(b.type, payload.subspan(b.down_offset()), b.d_model),
                TinyDownColumn(model_, l, neuron));
    }
  }
}

TEST_P(RoundTripTest, ABundleIsNotTakenForThatOfAnotherNeuronOrLayer) {
  const BundleLayout& b = file_->bundles();
  const auto payload = std::span(image_.bytes).subspan(b.BundleOffset(0, 7), b.payload_bytes());
  EXPECT_TRUE(file_->BundleIsIntact(0, 7, payload));
  EXPECT_FALSE(file_->BundleIsIntact(0, 8, payload));
  EXPECT_FALSE(file_->BundleIsIntact(1, 7, payload));
}

INSTANTIATE_TEST_SUITE_P(Types, RoundTripTest,
                         testing::Values(WeightType::kF32, WeightType::kF16, WeightType::kQ8,
                                         WeightType::kQ4),
                         [](const auto& param) {
                           return std::string(WeightTypeName(param.param));
                         });

TEST_F(TinyFileTest, VectorsComeBackInTheOrderOfTheFormat) {
  const auto file = SluiceFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<float> joined;
  const auto append = [&joined](std::span<const float> part) {
    joined.insert(joined.end(), part.begin(), part.end());
  };
  for (uint32_t l = 0; l < 2; ++l) {
    append((*file)->attention_norm(l));
    append((*file)->ffn_norm(l));
    append((*file)->q_bias(l));
    append((*file)->k_bias(l));
    append((*file)->v_bias(l));
  }
  append((*file)->output_norm());
  append((*file)->rope_divisors());
  EXPECT_EQ(joined, model_.vectors);
  EXPECT_EQ((*file)->q_bias(1).size(), 64u);
  EXPECT_EQ((*file)->k_bias(1).size(), 32u);
  EXPECT_EQ((*file)->rope_divisors().size(), 8u);
}

TEST_F(TinyFileTest, ConfigTokenizerAndProvenanceComeBack) {
  const auto file = SluiceFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  ByteWriter config_before, config_after;
  WriteConfig(model_.config, config_before);
  WriteConfig((*file)->config(), config_after);
  EXPECT_EQ(config_before.bytes(), config_after.bytes());
  const auto tokenizer = (*file)->LoadTokenizer();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->tokens, model_.tokenizer.tokens);
  EXPECT_EQ(tokenizer->scores, model_.tokenizer.scores);
  EXPECT_EQ(tokenizer->types, model_.tokenizer.types);
  EXPECT_EQ((*file)->provenance().source_name, "tiny.gguf");
  EXPECT_EQ((*file)->provenance().down_error, 0.0625f);
}

TEST_F(TinyFileTest, TheModelIdIsOfTheWeightsAndNotOfWhereTheyCameFrom) {
  const auto id_of = [](const TinySluice& model, const std::string& path) -> uint64_t {
    EXPECT_TRUE(WriteTinySluice(model, path).ok());
    const auto file = SluiceFile::Open(path);
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? (*file)->model_id() : 0;
  };
  const uint64_t id = id_of(model_, path_);
  TinySluice other = model_;
  other.provenance.source_name = "renamed.gguf";
  EXPECT_EQ(id_of(other, dir_.File("renamed.sluice")), id);
  other.vectors[3] += 1.0f;
  EXPECT_NE(id_of(other, dir_.File("changed.sluice")), id);
}

TEST_F(TinyFileTest, MatricesAreFoundByRoleAndLayer) {
  const auto file = SluiceFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  std::set<uint32_t> indices;
  for (const MatrixRole role : {MatrixRole::kQ, MatrixRole::kK, MatrixRole::kV, MatrixRole::kO,
                                MatrixRole::kGate, MatrixRole::kEmbedding, MatrixRole::kHead}) {
    const bool once = role == MatrixRole::kEmbedding || role == MatrixRole::kHead;
    for (uint32_t l = 0; l < (once ? 1 : 2); ++l) {
      const uint32_t index = (*file)->MatrixIndex(role, l);
      EXPECT_EQ((*file)->matrix(index).role, role);
      EXPECT_EQ((*file)->matrix(index).layer, l);
      indices.insert(index);
    }
  }
  EXPECT_EQ(indices.size(), model_.directory.matrices.size());
}

TEST(TiedHeadTest, TheHeadIsTheEmbedding) {
  TempDir dir;
  TinySluice model = MakeTinySluice(WeightType::kQ8);
  model.config.tied_head = true;
  model.config.qkv_bias = false;
  DirectoryShape shape;
  shape.matrix_types.fill(WeightType::kQ8);
  shape.bundle_type = WeightType::kQ8;
  model.directory = MakeDirectory(model.config, shape);
  model.vectors.resize(VectorCount(model.config));
  ASSERT_TRUE(WriteTinySluice(model, dir.File("tied.sluice")).ok());
  const auto file = SluiceFile::Open(dir.File("tied.sluice"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->MatrixIndex(MatrixRole::kHead, 0), 0u);
  EXPECT_EQ((*file)->matrix((*file)->MatrixIndex(MatrixRole::kGate, 1)).role, MatrixRole::kGate);
  EXPECT_TRUE((*file)->q_bias(0).empty());
  EXPECT_TRUE((*file)->k_bias(1).empty());
  EXPECT_TRUE((*file)->v_bias(1).empty());
}

TEST_F(TinyFileTest, WritingTwiceGivesTheSameBytes) {
  const std::string again = dir_.File("again.sluice");
  ASSERT_TRUE(WriteTinySluice(model_, again).ok());
  EXPECT_TRUE(SluiceImage::Load(path_).bytes == SluiceImage::Load(again).bytes);
}

TEST_F(TinyFileTest, NothingAppearsUnderTheNameBeforeFinish) {
  const std::string path = dir_.File("unfinished.sluice");
  {
    const auto writer = SluiceWriter::Create(path, false, model_.config, model_.directory);
    ASSERT_TRUE(writer.ok()) << writer.status();
    EXPECT_NE(access(path.c_str(), F_OK), 0);
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

TEST(ConfigRecordTest, TheAttentionWindowMayBeAbsentButNotCutShort) {
  ModelConfig config = MakeTinySluice(WeightType::kQ4).config;
  config.attention_window = 96;
  ByteWriter out;
  WriteConfig(config, out);
  const std::span<const std::byte> bytes = out.bytes();
  const auto window_of = [&](size_t n_bytes) {
    ByteReader in(bytes.first(n_bytes));
    const auto read = ReadConfig(in);
    return read.ok() ? absl::StatusOr<uint32_t>(read->attention_window) : read.status();
  };
  EXPECT_EQ(window_of(bytes.size()).value_or(0), 96u);
  EXPECT_EQ(window_of(bytes.size() - 4).value_or(1), 0u) << "as format 1.0 wrote it";
  for (size_t cut = 1; cut < 4; ++cut) {
    EXPECT_EQ(window_of(bytes.size() - cut).status().code(), absl::StatusCode::kDataLoss);
  }
}

}  // namespace
}  // namespace sluice
