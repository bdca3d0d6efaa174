// Models that bring their predictors, repacked and run: every weight arrives, and predicted mode
// does what the predictors say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "layout/repack.h"
#include "layout/verify.h"
#include "tests/decoder_harness.h"
#include "tests/powerinfer_model.h"
#include "tests/repack_test_source.h"

namespace sluice {
namespace {

constexpr size_t kPrompt = 3, kDecoded = 40;
// Of logits: below what int8 arithmetic makes of one that is 0, so that no neuron is missed.
constexpr float kMargin = -40.0f;

class PowerInferTest : public testing::TestWithParam<const char*> {
 protected:
  // Repacked in floats, so that all modes compute with the same weights.
  std::unique_ptr<SluiceFile> Pack(const TinyGguf& model) {
    WritePowerInfer(model, dir_.File("model.gguf"));
    source_ = Must(OpenModelSource(dir_.File("model.gguf"), {}));
    RepackOptions options;
    options.overwrite = true;
    Must(Repack(*source_, out_, options));
    return Must(SluiceFile::Open(out_));
  }
  Logits Run(const SluiceFile& file, DecodeMode mode, uint64_t budget = UINT64_MAX) {
    Way way;
    way.mode = mode;
    way.budget = budget;
    return Must(RunTokens(file, way, RandomTokens(kPrompt + kDecoded, 8), kPrompt));
  }

  TempDir dir_;
  const std::string out_ = dir_.File("model.sluice");
  std::unique_ptr<ModelSource> source_;
};

TEST_P(PowerInferTest, EveryWeightArrivesAndRanksAreFilledUpWithZeros) {
  const TinyGguf model = PowerInferGguf(GetParam(), Foresight::kGate);
  Pack(model);
  const RepackedFile out(out_);
  ASSERT_NE(out.file, nullptr);
  const BundleLayout& b = out.file->bundles();
  EXPECT_TRUE(b.has_gate);
  for (uint32_t l = 0; l < 2; ++l) {
    const auto tensor = [&](const char* part) -> const TinyTensor& {
      return model.tensors.at(absl::StrCat("blk.", l, ".", part, ".weight"));
    };
    const auto row = [](const TinyTensor& t, size_t r) {
      return std::span(t.values).subspan(r * t.shape[1], t.shape[1]);
    };
    for (uint32_t n = 0; n < b.d_ff; ++n) {
      const auto up = out.UpRow(l, n), down = out.DownColumn(l, n);
      const std::span<const std::byte> in_bundle(up.data() - b.row_bytes(), b.row_bytes());
      const auto gate = out.MatrixRow(MatrixRole::kGate, l, n);
      EXPECT_THAT(gate, testing::ElementsAreArray(Encoded(b.type, row(tensor("ffn_gate"), n))));
      EXPECT_THAT(in_bundle, testing::ElementsAreArray(gate));
      EXPECT_THAT(up, testing::ElementsAreArray(Encoded(b.type, row(tensor("ffn_up"), n))));
      EXPECT_THAT(down, testing::ElementsAreArray(Encoded(b.type, row(tensor("ffn_down_t"), n))));
    }
    const uint32_t rank = l == 0 ? 64 : 96;
    for (const MatrixRole role : {MatrixRole::kPredictor1, MatrixRole::kPredictor2}) {
      const TinyTensor& t = tensor(role == MatrixRole::kPredictor1 ? "fc1" : "fc2");
      const MatrixEntry& m = out.file->matrix(out.file->MatrixIndex(role, l));
      EXPECT_EQ(m.type, WeightType::kQ8);
      EXPECT_EQ(role == MatrixRole::kPredictor1 ? m.rows : m.columns, rank);
      for (uint32_t r = 0; r < m.rows; ++r) {
        std::vector<float> padded(m.columns);
        if (r < t.shape[0]) std::copy_n(row(t, r).begin(), t.shape[1], padded.begin());
        EXPECT_THAT(out.MatrixRow(role, l, r), testing::ElementsAreArray(Encoded(m.type, padded)))
            << MatrixRoleName(role) << " " << r << " of layer " << l;
      }
    }
  }
  EXPECT_EQ(Must(Verify(out_, {})).damaged, 0u);
}

TEST_P(PowerInferTest, APerfectPredictorGivesTheLogitsOfDenseMode) {
  TinyGguf model = PowerInferGguf(GetParam(), Foresight::kGate);
  model.floats["powerinfer.sparse_threshold"] = kMargin;
  const auto file = Pack(model);
  ASSERT_NE(file->predictor(), nullptr);
  EXPECT_EQ(file->predictor()->input, PredictorInput::kResidual);
  EXPECT_THAT(file->predictor()->thresholds, testing::ElementsAre(kMargin, kMargin));
  const Logits dense = Run(*file, DecodeMode::kDense);
  EXPECT_TRUE(SameBits(Run(*file, DecodeMode::kExact), dense));
  Way way;
  way.mode = DecodeMode::kPredicted;
  for (const uint64_t budget : Budgets(*file, way)) {
    EXPECT_TRUE(SameBits(Run(*file, DecodeMode::kPredicted, budget), dense)) << budget;
  }
  const auto decoder = Must(OpenDecoder(*file, way));
  Must(RunTokens(*decoder, RandomTokens(kPrompt + kDecoded, 8), kPrompt));
  const DecoderStats stats = decoder->stats();
  EXPECT_LT(stats.active_neurons, stats.gated_neurons * 7 / 10) << "it leaves nearly nothing out";
  EXPECT_GT(stats.active_neurons, stats.gated_neurons * 3 / 10);
}

TEST_P(PowerInferTest, APredictorThatNeverFiresSilencesTheFfn) {
  TinyGguf model = PowerInferGguf(GetParam(), Foresight::kNone);
  const auto file = Pack(model);
  const Logits none = Run(*file, DecodeMode::kPredicted);
  EXPECT_GT(MaxError(none.back(), Run(*file, DecodeMode::kExact).back()), 0.1f);
  for (const char* name : {"blk.0.ffn_down_t.weight", "blk.1.ffn_down_t.weight"}) {
    std::vector<float>& down = model.tensors.at(name).values;
    down.assign(down.size(), 0.0f);
  }
  const auto silent = Pack(model);
  EXPECT_TRUE(SameBits(none, Run(*silent, DecodeMode::kExact)));
}

TEST_P(PowerInferTest, ATurnedMatrixAndOneThatIsNotGiveTheSameFile) {
  TinyGguf model(GetParam());
  model.strings["sluice.activation"] = "drelu";
  model.tensors.merge(TinyPredictors(model.tensors, Foresight::kGate));
  const uint64_t straight = Pack(model)->model_id();
  TurnDown(model.tensors);
  EXPECT_EQ(Pack(model)->model_id(), straight);
}

TEST_P(PowerInferTest, QuantisedSourcesAreReadToo) {
  TinyGguf model = PowerInferGguf(GetParam(), Foresight::kGate);
  for (auto& [name, tensor] : model.tensors) {
    const bool whole_blocks = tensor.shape.size() == 2 && tensor.shape[1] % 32 == 0;
    if (whole_blocks) tensor.type = SourceType::kQ4_0;
  }
  model.tensors.at("blk.1.fc2.weight").type = SourceType::kF16;
  const auto file = Pack(model);
  EXPECT_EQ(file->bundles().type, WeightType::kQ4);
  EXPECT_EQ(Run(*file, DecodeMode::kPredicted).size(), kDecoded + 1);
}

INSTANTIATE_TEST_SUITE_P(Architectures, PowerInferTest, testing::Values("llama", "bamboo"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace sluice
