// What repack puts into a file: every weight of the source, where it belongs, in the type that was
// asked for.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "layout/repack.h"
#include "layout/verify.h"
#include "tests/import_test_models.h"
#include "tests/repack_test_source.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

std::vector<std::byte> Copy(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

std::string Blk(uint32_t layer, const std::string& tensor) {
  return absl::StrCat("blk.", layer, ".", tensor, ".weight");
}

// Every bundle holds the packed up row and the packed down column of its neuron.
void ExpectBundlesOf(const MemorySource& source, const RepackedFile& out) {
  const BundleLayout& b = out.file->bundles();
  for (uint32_t l = 0; l < source.config().n_layers; ++l) {
    const std::vector<float> up = source.Floats(Blk(l, "ffn_up"));
    const std::vector<float> down = source.Floats(Blk(l, "ffn_down"));
    std::vector<float> column(b.d_model);
    for (uint32_t n = 0; n < b.d_ff; ++n) {
      ASSERT_EQ(out.file->NeuronAt(l, n), n);
      ASSERT_EQ(Copy(out.UpRow(l, n)),
                Encoded(b.type, std::span(up).subspan(size_t{n} * b.d_model, b.d_model)))
          << "up row of neuron " << n << " of layer " << l;
      for (uint32_t i = 0; i < b.d_model; ++i) column[i] = down[size_t{i} * b.d_ff + n];
      ASSERT_EQ(Copy(out.DownColumn(l, n)), Encoded(b.type, column))
          << "down column of neuron " << n << " of layer " << l;
    }
  }
}

void ExpectMatrix(const MemorySource& source, const RepackedFile& out, const std::string& name,
                  MatrixRole role, uint32_t layer) {
  const MatrixEntry& m = out.file->matrix(out.file->MatrixIndex(role, layer));
  const std::vector<float> all = source.Floats(name);
  for (uint32_t r = 0; r < m.rows; ++r) {
    ASSERT_EQ(Copy(out.MatrixRow(role, layer, r)),
              Encoded(m.type, std::span(all).subspan(size_t{r} * m.columns, m.columns)))
        << name << " row " << r;
  }
}

void ExpectMatricesOf(const MemorySource& source, const RepackedFile& out) {
  ExpectMatrix(source, out, "token_embd.weight", MatrixRole::kEmbedding, 0);
  for (uint32_t l = 0; l < source.config().n_layers; ++l) {
    ExpectMatrix(source, out, Blk(l, "attn_q"), MatrixRole::kQ, l);
    ExpectMatrix(source, out, Blk(l, "attn_k"), MatrixRole::kK, l);
    ExpectMatrix(source, out, Blk(l, "attn_v"), MatrixRole::kV, l);
    ExpectMatrix(source, out, Blk(l, "attn_output"), MatrixRole::kO, l);
    ExpectMatrix(source, out, Blk(l, "ffn_gate"), MatrixRole::kGate, l);
  }
  if (!source.config().tied_head) {
    ExpectMatrix(source, out, "output.weight", MatrixRole::kHead, 0);
  }
}

struct TypeCase {
  SourceType source;
  WeightType resident, bundles;  // what repack chooses for it
};
void PrintTo(const TypeCase& c, std::ostream* out) { *out << SourceTypeName(c.source); }

class SourceTypeTest : public testing::TestWithParam<TypeCase> {
 protected:
  TempDir dir_;
  const std::string out_ = dir_.File("out.sluice");
};

TEST_P(SourceTypeTest, EveryWeightArrivesInTheNearestType) {
  const MemorySource source(GetParam().source);
  const auto report = Repack(source, out_, {});
  ASSERT_TRUE(report.ok()) << report.status();
  const RepackedFile out(out_);
  ASSERT_NE(out.file, nullptr);
  EXPECT_EQ(out.file->bundles().type, GetParam().bundles);
  for (const MatrixEntry& m : out.file->directory().matrices) {
    EXPECT_EQ(m.type, m.role == MatrixRole::kGate ? GetParam().bundles : GetParam().resident);
  }
  ExpectMatricesOf(source, out);
  ExpectBundlesOf(source, out);
  const auto verified = Verify(out_, nullptr);
  ASSERT_TRUE(verified.ok()) << verified.status();
  EXPECT_EQ(verified->damaged, 0u);
  EXPECT_EQ(report->file_bytes, std::filesystem::file_size(out_));
}

INSTANTIATE_TEST_SUITE_P(
    Types, SourceTypeTest,
    testing::Values(TypeCase{SourceType::kF32, WeightType::kF32, WeightType::kF32},
                    TypeCase{SourceType::kF16, WeightType::kF16, WeightType::kF16},
                    TypeCase{SourceType::kBF16, WeightType::kF16, WeightType::kF16},
                    TypeCase{SourceType::kQ8_0, WeightType::kQ8, WeightType::kQ8},
                    TypeCase{SourceType::kQ4_0, WeightType::kQ4, WeightType::kQ4},
                    TypeCase{SourceType::kQ4_1, WeightType::kQ8, WeightType::kQ4},
                    TypeCase{SourceType::kQ5_0, WeightType::kQ8, WeightType::kQ8},
                    TypeCase{SourceType::kQ5_1, WeightType::kQ8, WeightType::kQ8},
                    TypeCase{SourceType::kQ4_K, WeightType::kQ8, WeightType::kQ4},
                    TypeCase{SourceType::kQ5_K, WeightType::kQ8, WeightType::kQ8},
                    TypeCase{SourceType::kQ6_K, WeightType::kQ8, WeightType::kQ8}),
    [](const auto& param) { return std::string(SourceTypeName(param.param.source)); });

class RepackTest : public testing::Test {
 protected:
  RepackReport RepackWith(const ModelSource& source, const RepackOptions& options) {
    const auto report = Repack(source, out_, options);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.value_or(RepackReport());
  }

  TempDir dir_;
  const std::string out_ = dir_.File("out.sluice");
};

TEST_F(RepackTest, FloatSourcesLoseNothing) {
  for (const SourceType type : {SourceType::kF32, SourceType::kF16}) {
    const MemorySource source(type);
    RepackOptions options;
    options.overwrite = true;
    const Provenance p = RepackWith(source, options).provenance;
    EXPECT_EQ(p.resident_error, 0.0f);
    EXPECT_EQ(p.gate_error, 0.0f);
    EXPECT_EQ(p.up_error, 0.0f);
    EXPECT_EQ(p.down_error, 0.0f);
    const RepackedFile out(out_);
    const WeightType packed = out.file->bundles().type;
    EXPECT_EQ(Decoded(packed, out.UpRow(1, 511)), source.Row("blk.1.ffn_up.weight", 511));
    EXPECT_EQ(Decoded(packed, out.DownColumn(0, 77)), source.Column("blk.0.ffn_down.weight", 77));
  }
}

// Gate and up rows are quantised along the axis that bundles keep, so only down columns can lose.
TEST_F(RepackTest, QuantisedRowsKeepTheirValuesAndOnlyDownColumnsAreRequantised) {
  for (const auto& [type, most] :
       {std::pair(SourceType::kQ4_0, 0.12f), std::pair(SourceType::kQ8_0, 0.01f)}) {
    const MemorySource source(type);
    RepackOptions options;
    options.overwrite = true;
    const Provenance p = RepackWith(source, options).provenance;
    const RepackedFile out(out_);
    for (const uint32_t neuron : {0u, 1u, 100u, 511u}) {
      EXPECT_EQ(Decoded(out.file->bundles().type, out.UpRow(0, neuron)),
                source.Row("blk.0.ffn_up.weight", neuron));
    }
    EXPECT_EQ(p.resident_error, 0.0f);
    EXPECT_EQ(p.gate_error, 0.0f);
    EXPECT_EQ(p.up_error, 0.0f);
    EXPECT_GT(p.down_error, 0.0f);
    EXPECT_LT(p.down_error, most);
  }
}

TEST_F(RepackTest, EveryTypeCanBeAskedFor) {
  const MemorySource source(SourceType::kF32);
  for (const WeightType type :
       {WeightType::kF32, WeightType::kF16, WeightType::kQ8, WeightType::kQ4}) {
    RepackOptions options;
    options.type = type;
    options.resident_type = type;
    options.overwrite = true;
    RepackWith(source, options);
    const RepackedFile out(out_);
    EXPECT_EQ(out.file->bundles().type, type);
    ExpectBundlesOf(source, out);
    ExpectMatricesOf(source, out);
  }
}

TEST_F(RepackTest, TensorsOfOneModelMayDifferInType) {
  MemorySource source(SourceType::kQ4_K);
  source.SetType("blk.1.ffn_gate.weight", SourceType::kF16);
  source.SetType("blk.0.ffn_up.weight", SourceType::kQ8_0);
  source.SetType("blk.0.ffn_down.weight", SourceType::kQ6_K);
  source.SetType("blk.1.ffn_down.weight", SourceType::kBF16);
  source.SetType("blk.1.attn_v.weight", SourceType::kQ6_K);
  source.SetType("output.weight", SourceType::kF16);
  const RepackReport report = RepackWith(source, {});
  const RepackedFile out(out_);
  ExpectBundlesOf(source, out);
  ExpectMatricesOf(source, out);
  EXPECT_EQ(report.provenance.source_types, "BF16, F16, F32, Q4_K, Q6_K, Q8_0");
}

TEST_F(RepackTest, ALayerOfMoreBitsDecidesForAllLayers) {
  MemorySource source(SourceType::kQ4_0);
  source.SetType("blk.1.attn_v.weight", SourceType::kQ6_K);
  source.SetType("blk.1.attn_q.weight", SourceType::kF16);
  const Directory d = PlanRepack(source, {});
  for (const MatrixEntry& m : d.matrices) {
    EXPECT_EQ(m.type, m.role == MatrixRole::kV   ? WeightType::kQ8
                      : m.role == MatrixRole::kQ ? WeightType::kF16
                                                 : WeightType::kQ4)
        << MatrixRoleName(m.role);
  }
  EXPECT_EQ(d.bundles.type, WeightType::kQ4);
  source.SetType("blk.1.ffn_gate.weight", SourceType::kQ5_0);
  EXPECT_EQ(PlanRepack(source, {}).bundles.type, WeightType::kQ8);
}

TEST_F(RepackTest, TensorsWiderThanTheBundlesAreNamed) {
  MemorySource source(SourceType::kQ4_K);
  EXPECT_TRUE(NarrowedTensors(source, PlanRepack(source, {})).empty());
  source.SetType("blk.1.ffn_down.weight", SourceType::kQ6_K);
  const std::vector<std::string> notes = NarrowedTensors(source, PlanRepack(source, {}));
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0], "ffn_down of 1 of 2 layers is Q6_K, wider than the q4 of the bundles");
  RepackOptions q8;
  q8.type = WeightType::kQ8;
  EXPECT_TRUE(NarrowedTensors(source, PlanRepack(source, q8)).empty());
}

// The root-mean-square of (packed - exact) over that of exact, over all down columns.
double DownError(const MemorySource& source, const RepackedFile& out) {
  double error = 0, norm = 0;
  const BundleLayout& b = out.file->bundles();
  for (uint32_t l = 0; l < 2; ++l) {
    const std::vector<float> down = source.Floats(Blk(l, "ffn_down"));
    for (uint32_t n = 0; n < b.d_ff; ++n) {
      const std::vector<float> packed = Decoded(b.type, out.DownColumn(l, n));
      for (uint32_t i = 0; i < b.d_model; ++i) {
        const double exact = down[size_t{i} * b.d_ff + n];
        error += (packed[i] - exact) * (packed[i] - exact);
        norm += exact * exact;
      }
    }
  }
  return std::sqrt(error / norm);
}

TEST_F(RepackTest, TheReportedErrorIsThatOfTheFile) {
  for (const auto& [type, most] :
       {std::pair(WeightType::kF16, 5e-4), std::pair(WeightType::kQ8, 1e-2),
        std::pair(WeightType::kQ4, 0.12)}) {
    const MemorySource source(SourceType::kF32);
    RepackOptions options;
    options.type = type;
    options.overwrite = true;
    const Provenance p = RepackWith(source, options).provenance;
    const RepackedFile out(out_);
    const double measured = DownError(source, out);
    EXPECT_GT(measured, 0.0);
    EXPECT_LT(measured, most);
    // The report comes from one row in sixteen.
    EXPECT_NEAR(p.down_error, measured, 0.15 * measured);
    EXPECT_NEAR(p.up_error, measured, 0.3 * measured) << "of the same distribution";
    EXPECT_EQ(out.file->provenance().down_error, p.down_error);
  }
}

TEST_F(RepackTest, BlocksOfAllSizesHoldTheSameWeights) {
  const MemorySource source(SourceType::kQ8_0);
  for (const uint32_t block : {512u, 1024u, 4096u, 65536u}) {
    RepackOptions options;
    options.block = block;
    options.overwrite = true;
    RepackWith(source, options);
    const RepackedFile out(out_);
    EXPECT_EQ(out.file->bundles().block, block);
    EXPECT_EQ(out.file->bundles().stride % block, 0u);
    ExpectBundlesOf(source, out);
  }
}

TEST_F(RepackTest, NormsBiasesAndDivisorsArriveInOrder) {
  MemorySource source(SourceType::kF16, /*tied_head=*/true, /*qkv_bias=*/true);
  source.AddRopeFreqs();
  RepackWith(source, {});
  const auto file = SluiceFile::Open(out_);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto expect = [&source](std::span<const float> got, const std::string& name) {
    EXPECT_EQ(std::vector<float>(got.begin(), got.end()), source.Floats(name)) << name;
  };
  for (uint32_t l = 0; l < 2; ++l) {
    expect((*file)->attention_norm(l), Blk(l, "attn_norm"));
    expect((*file)->ffn_norm(l), Blk(l, "ffn_norm"));
    expect((*file)->q_bias(l), absl::StrCat("blk.", l, ".attn_q.bias"));
    expect((*file)->k_bias(l), absl::StrCat("blk.", l, ".attn_k.bias"));
    expect((*file)->v_bias(l), absl::StrCat("blk.", l, ".attn_v.bias"));
  }
  expect((*file)->output_norm(), "output_norm.weight");
  expect((*file)->rope_divisors(), "rope_freqs.weight");
  EXPECT_TRUE((*file)->config().tied_head);
}

TEST_F(RepackTest, WithoutStoredDivisorsEachIsOne) {
  RepackWith(MemorySource(SourceType::kF16), {});
  const auto file = SluiceFile::Open(out_);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto divisors = (*file)->rope_divisors();
  EXPECT_EQ(std::vector<float>(divisors.begin(), divisors.end()), std::vector<float>(32, 1.0f));
}

TEST_F(RepackTest, TwoRunsGiveTheSameBytes) {
  const MemorySource source(SourceType::kQ4_K);
  RepackWith(source, {});
  const auto first = SluiceImage::Load(out_).bytes;
  RepackOptions options;
  options.overwrite = true;
  RepackWith(source, options);
  EXPECT_TRUE(SluiceImage::Load(out_).bytes == first);
}

TEST_F(RepackTest, ThePlanIsWhatIsWritten) {
  const MemorySource source(SourceType::kQ5_K);
  RepackOptions options;
  options.type = WeightType::kQ4;
  const Directory planned = PlanRepack(source, options);
  const Directory written = RepackWith(source, options).directory;
  ByteWriter a, b;
  WriteDirectory(planned, a);
  WriteDirectory(written, b);
  EXPECT_EQ(a.bytes(), b.bytes());
}

TEST_F(RepackTest, ProgressGrowsToTheWhole) {
  std::vector<std::pair<uint64_t, uint64_t>> steps;
  RepackOptions options;
  options.progress = [&steps](uint64_t done, uint64_t total) {
    steps.emplace_back(done, total);
    return true;
  };
  RepackWith(MemorySource(SourceType::kF32), options);
  ASSERT_FALSE(steps.empty());
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
  EXPECT_EQ(steps.back().first, steps.back().second);
}

TEST_F(RepackTest, AValueThatIsNoNumberOrThatTheTypeCannotHoldIsRefusedAndNamed) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const struct {
    const char* tensor;
    float value;
    WeightType type;
    bool refused;
  } cases[] = {
      {"token_embd.weight", kNaN, WeightType::kF32, true},
      {"output_norm.weight", -kInfinity, WeightType::kF32, true},
      {"blk.1.ffn_gate.weight", kInfinity, WeightType::kQ4, true},
      {"blk.0.ffn_up.weight", kNaN, WeightType::kQ8, true},
      {"blk.1.ffn_down.weight", kNaN, WeightType::kQ4, true},
      {"blk.1.ffn_down.weight", 1e5f, WeightType::kF16, true},
      {"blk.1.ffn_down.weight", 1e5f, WeightType::kF32, false},
      {"blk.0.ffn_up.weight", -1e5f, WeightType::kQ8, false},
      {"blk.0.ffn_up.weight", 1e6f, WeightType::kQ4, true},
  };
  for (const auto& c : cases) {
    TinyGguf model;
    TinyTensor& tensor = model.tensors.at(c.tensor);
    const size_t columns = tensor.shape.back();
    const size_t at = tensor.shape.size() == 1 ? 5 : 3 * columns + 5;
    tensor.values.at(at) = c.value;
    model.Write(dir_.File("tiny.gguf"));
    const auto source = OpenModelSource(dir_.File("tiny.gguf"), {});
    ASSERT_TRUE(source.ok()) << source.status();
    RepackOptions options;
    options.type = c.type;
    const auto report = Repack(**source, out_, options);
    EXPECT_EQ(report.ok(), !c.refused) << c.tensor << ": " << report.status();
    if (!c.refused) {
      std::filesystem::remove(out_);
      continue;
    }
    EXPECT_EQ(report.status().code(), absl::StatusCode::kDataLoss);
    const std::string place =
        absl::StrCat(c.tensor, " holds ", c.value, " at row ", at / columns, ", column 5");
    EXPECT_NE(report.status().message().find(place), std::string::npos) << report.status();
    EXPECT_FALSE(std::filesystem::exists(out_));
  }
}

TEST_F(RepackTest, AFolderAndAGgufOfTheSameWeightsGiveTheSameBundles) {
  TinyGguf("qwen2").Write(dir_.File("tiny.gguf"));
  const std::string folder = dir_.File("tiny");
  std::filesystem::create_directory(folder);
  TinyFolder().Write(folder);
  const auto gguf = OpenModelSource(dir_.File("tiny.gguf"), {});
  const auto hf = OpenModelSource(folder, {});
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  ASSERT_TRUE(hf.ok()) << hf.status();
  RepackWith(**gguf, {});
  const auto other = Repack(**hf, dir_.File("hf.sluice"), {});
  ASSERT_TRUE(other.ok()) << other.status();
  const RepackedFile a(out_), b(dir_.File("hf.sluice"));
  EXPECT_EQ(other->provenance.source_name, "tiny");
  const BundleLayout& layout = a.file->bundles();
  for (uint32_t l = 0; l < a.file->config().n_layers; ++l) {
    for (uint32_t n = 0; n < layout.d_ff; ++n) {
      ASSERT_EQ(Copy(a.UpRow(l, n)), Copy(b.UpRow(l, n)));
      ASSERT_EQ(Copy(a.DownColumn(l, n)), Copy(b.DownColumn(l, n)));
      ASSERT_EQ(Copy(a.MatrixRow(MatrixRole::kGate, l, n)),
                Copy(b.MatrixRow(MatrixRole::kGate, l, n)));
    }
  }
}

TEST_F(RepackTest, ASplitGgufGivesWhatTheWholeOneGives) {
  TinyGguf().Write(dir_.File("tiny.gguf"));
  TinyGguf().WriteSplit(dir_.File("tiny"), 4);
  std::vector<std::vector<std::byte>> bundles;
  for (const char* name : {"tiny.gguf", "tiny-00001-of-00004.gguf", "tiny-00003-of-00004.gguf"}) {
    const auto source = OpenModelSource(dir_.File(name), {});
    ASSERT_TRUE(source.ok()) << source.status();
    RepackOptions options;
    options.overwrite = true;
    RepackWith(**source, options);
    const RepackedFile out(out_);
    std::vector<std::byte>& all = bundles.emplace_back();
    const auto append = [&all](std::span<const std::byte> bytes) {
      all.insert(all.end(), bytes.begin(), bytes.end());
    };
    for (uint32_t n = 0; n < out.file->bundles().d_ff; ++n) {
      append(out.UpRow(1, n));
      append(out.DownColumn(1, n));
      append(out.MatrixRow(MatrixRole::kGate, 0, n));
    }
  }
  EXPECT_EQ(bundles[1], bundles[0]);
  EXPECT_EQ(bundles[2], bundles[0]);
}

TEST_F(RepackTest, ASourceFolderIsNamedWithoutItsTrailingSlash) {
  const std::string folder = dir_.File("named");
  std::filesystem::create_directory(folder);
  TinyFolder().Write(folder);
  const auto source = OpenModelSource(folder + "/", {});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(RepackWith(**source, {}).provenance.source_name, "named");
}

}  // namespace
}  // namespace sluice
