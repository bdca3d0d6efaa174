// Predictors that come with a model, PowerInfer's files and dReLU, as ModelSource.
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/repack.h"
#include "tests/cost_bound.h"
#include "tests/import_test_models.h"
#include "tests/powerinfer_model.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

class PredictorImportTest : public ::testing::Test {
 protected:
  PredictorImportTest() { std::filesystem::create_directory(folder_); }

  // A PowerInfer file.
  absl::StatusOr<std::unique_ptr<ModelSource>> Open(
      const std::string& architecture = "llama",
      const std::function<void(TinyGguf&)>& change = [](auto&) {},
      const ImportOptions& options = {}) {
    TinyGguf model = PowerInferGguf(architecture, Foresight::kGate);
    change(model);
    WritePowerInfer(model, gguf_);
    const CostBound bound;
    return OpenModelSource(gguf_, options);
  }
  void ExpectRefused(const std::function<void(TinyGguf&)>& change, absl::StatusCode code,
                     const std::string& what) {
    const absl::Status status = Open("llama", change).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("tiny"), HasSubstr(what)));
  }

  // A Bamboo checkpoint with predictors whose names begin with `prefix`.
  absl::StatusOr<std::unique_ptr<ModelSource>> OpenBamboo(
      const std::string& prefix = "model.layers.",
      const std::function<void(TinyFolder&)>& change = [](auto&) {}) {
    TinyFolder folder("bamboo");
    for (auto& [name, tensor] : TinyPredictors(TinyTensors("bamboo"), Foresight::kGate)) {
      folder.tensors[absl::StrReplaceAll(name, {{"blk.", prefix}, {".fc", ".mlp.predictor.fc"}})] =
          tensor;
    }
    change(folder);
    folder.Write(folder_);
    return OpenModelSource(folder_, {});
  }

  TempDir dir_;
  const std::string gguf_ = dir_.File("tiny.gguf"), folder_ = dir_.File("tiny");
};

TEST_F(PredictorImportTest, APowerInferFileIsItsModelWithPredictors) {
  const auto source = Open();
  ASSERT_TRUE(source.ok()) << source.status();
  const ModelConfig& c = (*source)->config();
  EXPECT_EQ(c.activation, Activation::kRelu) << "PowerInfer runs ReLU models, and does not say so";
  EXPECT_EQ(c.activation_origin, ActivationOrigin::kMetadata);
  const SourcePredictors* p = (*source)->predictors();
  ASSERT_NE(p, nullptr);
  EXPECT_THAT(p->ranks, ElementsAre(64, 70));
  EXPECT_EQ(p->record.input, PredictorInput::kResidual);
  EXPECT_THAT(p->record.thresholds, ElementsAre(0.0f, 0.0f));
  TensorTable tensors = TinyTensors("llama");
  tensors.merge(TinyPredictors(tensors, Foresight::kGate));
  TurnDown(tensors);
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(SourceFloats(**source, name), tensor.values) << name;
  }
}

TEST_F(PredictorImportTest, TheThresholdIsReadFromTheMetadata) {
  const auto source =
      Open("llama", [](TinyGguf& m) { m.floats["powerinfer.sparse_threshold"] = -1.5f; });
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT((*source)->predictors()->record.thresholds, ElementsAre(-1.5f, -1.5f));
}

TEST_F(PredictorImportTest, TheActivationFlagGoesBeforeWhatPowerInferAssumes) {
  ImportOptions options;
  options.activation = Activation::kFatRelu;
  options.activation_threshold = 0.01f;
  const auto source = Open(
      "llama", [](auto&) {}, options);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->config().activation, Activation::kFatRelu);
}

TEST_F(PredictorImportTest, PredictorsAreWelcomeInAPlainGgufAndNeededInNone) {
  TinyGguf model;
  model.tensors.merge(TinyPredictors(model.tensors, Foresight::kGate));
  model.Write(gguf_);
  const auto plain = OpenModelSource(gguf_, {});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_NE((*plain)->predictors(), nullptr);
  EXPECT_EQ((*plain)->config().activation, Activation::kRelu);

  TinyGguf bare;
  TurnDown(bare.tensors);
  WritePowerInfer(bare, gguf_);
  const auto without = OpenModelSource(gguf_, {});
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ((*without)->predictors(), nullptr);
}

TEST_F(PredictorImportTest, ASplitFileMayBePowerInfersToo) {
  const TinyGguf model = PowerInferGguf("llama", Foresight::kGate);
  model.WriteSplit(dir_.File("tiny"), 3);
  const auto source = OpenModelSource(dir_.File("tiny-00002-of-00003.gguf"), {});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_NE((*source)->predictors(), nullptr);
}

TEST_F(PredictorImportTest, BambooHasItsActivationOnBothSides) {
  const auto gguf = Open("bamboo");
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ((*gguf)->config().activation, Activation::kDRelu);
  EXPECT_EQ((*gguf)->config().rope_style, RopeStyle::kInterleaved);
  for (const char* prefix : {"model.layers.", "layers."}) {
    const auto folder = OpenBamboo(prefix);
    ASSERT_TRUE(folder.ok()) << folder.status();
    EXPECT_EQ((*folder)->config().architecture, "bamboo");
    EXPECT_EQ((*folder)->config().activation, Activation::kDRelu);
    EXPECT_EQ((*folder)->config().rope_style, RopeStyle::kHalf);
    ASSERT_NE((*folder)->predictors(), nullptr);
    EXPECT_THAT((*folder)->predictors()->ranks, ElementsAre(64, 70));
    EXPECT_EQ((*folder)->predictors()->record.input, PredictorInput::kResidual);
    for (const auto& [name, tensor] : TinyPredictors(TinyTensors("bamboo"), Foresight::kGate)) {
      EXPECT_EQ(SourceFloats(**folder, name), tensor.values) << name;
    }
  }
}

TEST_F(PredictorImportTest, ACheckpointIsRefusedInItsOwnNames) {
  for (const char* prefix : {"model.layers.", "layers."}) {
    const std::string missing = absl::StrCat(prefix, "1.mlp.predictor.fc2.weight");
    const auto source =
        OpenBamboo(prefix, [&](TinyFolder& f) { EXPECT_EQ(f.tensors.erase(missing), 1u); });
    EXPECT_EQ(source.status().code(), kInvalid) << source.status();
    EXPECT_THAT(std::string(source.status().message()),
                HasSubstr(absl::StrCat("\"", missing, "\" is missing")));
  }
  const auto silu =
      OpenBamboo("model.layers.", [](TinyFolder& f) { f.config["hidden_act"] = "\"silu\""; });
  EXPECT_EQ(silu.status().code(), kUnimplemented) << silu.status();
  EXPECT_THAT(std::string(silu.status().message()), HasSubstr("hidden_act is silu"));
}

TEST_F(PredictorImportTest, AnUngatedModelHasNoDRelu) {
  TinyGguf model("arcee");
  model.Write(gguf_);
  ImportOptions options;
  options.activation = Activation::kDRelu;
  const absl::Status status = OpenModelSource(gguf_, options).status();
  EXPECT_EQ(status.code(), kInvalid) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("drelu, which needs a gate"));
}

TEST_F(PredictorImportTest, APowerInferOptHasTheBiasOfItsTurnedMatrix) {
  TinyGguf model("opt");
  TurnDown(model.tensors);
  WritePowerInfer(model, gguf_);
  const auto source = OpenModelSource(gguf_, {});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(SourceFloats(**source, "blk.1.ffn_down.bias"),
            model.tensors.at("blk.1.ffn_down_t.bias").values);

  model.tensors["blk.1.ffn_down_t.bias"].shape = {16, 2};
  WritePowerInfer(model, gguf_);
  EXPECT_THAT(std::string(OpenModelSource(gguf_, {}).status().message()),
              HasSubstr("\"blk.1.ffn_down_t.bias\" has shape [16, 2]"));
  model.tensors["blk.1.ffn_down_t.bias"].shape = {32};
  model.tensors["blk.1.ffn_down.bias"] = model.tensors["blk.1.ffn_down_t.bias"];
  WritePowerInfer(model, gguf_);
  EXPECT_THAT(std::string(OpenModelSource(gguf_, {}).status().message()), HasSubstr("has both"));
}

TEST_F(PredictorImportTest, PredictorsThatDoNotFitAreNamed) {
  const auto erase = [](const std::string& name) {
    return [=](TinyGguf& m) { EXPECT_EQ(m.tensors.erase(name), 1u); };
  };
  const auto reshape = [](const std::string& name, std::vector<uint64_t> shape) {
    return [=](TinyGguf& m) {
      uint64_t n = 1;
      for (const uint64_t d : shape) n *= d;
      m.tensors.at(name) = {shape, std::vector<float>(n)};
    };
  };
  ExpectRefused(erase("blk.1.fc1.weight"), kInvalid, "\"blk.1.fc1.weight\" is missing");
  ExpectRefused(erase("blk.0.fc2.weight"), kInvalid, "\"blk.0.fc2.weight\" is missing");
  ExpectRefused(
      [&](TinyGguf& m) {
        erase("blk.1.fc1.weight")(m);
        erase("blk.1.fc2.weight")(m);
      },
      kInvalid, "a predictor in every layer or in none");
  ExpectRefused(reshape("blk.1.fc1.weight", {70, 64}), kInvalid,
                "\"blk.1.fc1.weight\" has shape [70, 64], but the config asks for [70, 32]");
  ExpectRefused(reshape("blk.0.fc2.weight", {44, 70}), kInvalid,
                "\"blk.0.fc2.weight\" has shape [44, 70], but the config asks for [44, 64]");
  ExpectRefused(reshape("blk.0.fc2.weight", {45, 64}), kInvalid, "has shape [45, 64]");
  ExpectRefused(reshape("blk.0.fc1.weight", {64 * 32}), kInvalid, "has shape [2048]");
  ExpectRefused(reshape("blk.0.fc1.weight", {8193, 32}), kInvalid,
                "\"blk.0.fc1.weight\" makes a predictor of rank 8193; Sluice runs 1 to 8192");
  ExpectRefused(
      [](TinyGguf& m) {
        m.tensors["blk.0.fc1.bias"] = {{64}, std::vector<float>(64)};
      },
      kUnimplemented, "\"blk.0.fc1.bias\"");
  ExpectRefused(
      [](TinyGguf& m) {
        m.tensors["blk.2.fc1.weight"] = {{32, 32}, std::vector<float>(1024)};
      },
      kUnimplemented, "\"blk.2.fc1.weight\"");
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    ExpectRefused([=](TinyGguf& m) { m.floats["powerinfer.sparse_threshold"] = bad; }, kInvalid,
                  "the threshold of the predictors is");
  }
  ExpectRefused([](TinyGguf& m) { m.strings["powerinfer.sparse_threshold"] = "0"; }, kInvalid,
                "powerinfer.sparse_threshold\" must be a number");
}

TEST_F(PredictorImportTest, ADownMatrixIsThereOnce) {
  ExpectRefused(
      [](TinyGguf& m) {
        m.tensors["blk.1.ffn_down.weight"] = {{32, 44}, std::vector<float>(1408)};
      },
      kInvalid, "both \"blk.1.ffn_down.weight\" and \"blk.1.ffn_down_t.weight\"");
  ExpectRefused([](TinyGguf& m) { m.tensors.erase("blk.0.ffn_down_t.weight"); }, kInvalid,
                "\"blk.0.ffn_down.weight\" is missing");
  ExpectRefused(
      [](TinyGguf& m) {
        m.tensors["blk.0.ffn_down_t.weight"].shape = {32, 44};
      },
      kInvalid, "\"blk.0.ffn_down_t.weight\" has shape [32, 44], but the config asks for [44, 32]");
}

TEST_F(PredictorImportTest, AWeightThatIsNoNumberIsFoundWhenItIsPacked) {
  const auto source = Open("llama", [](TinyGguf& m) {
    m.tensors["blk.1.fc2.weight"].values[70 * 3 + 69] = std::numeric_limits<float>::quiet_NaN();
  });
  ASSERT_TRUE(source.ok()) << source.status();
  const absl::Status status = Repack(**source, dir_.File("out.sluice"), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("tensor blk.1.fc2.weight holds nan at row 3, column 69"));
  EXPECT_FALSE(std::filesystem::exists(dir_.File("out.sluice")));
}

TEST_F(PredictorImportTest, PowerInfersFilesMayEndAnywhere) {
  WritePowerInfer(PowerInferGguf("llama", Foresight::kGate), gguf_);
  const auto size = std::filesystem::file_size(gguf_);
  for (uintmax_t left = size - 1; left > 0; left = left * 7 / 8) {
    std::filesystem::resize_file(gguf_, left);
    const CostBound bound;
    EXPECT_FALSE(OpenModelSource(gguf_, {}).ok()) << left << " bytes";
  }
}

}  // namespace
}  // namespace sluice
