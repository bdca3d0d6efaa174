// Models that bring their predictors, as users meet them.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli_run.h"
#include "tests/import_test_files.h"
#include "tests/powerinfer_model.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class PowerInferCliTest : public testing::Test {
 protected:
  void ExpectRuns() {
    EXPECT_EQ(RunSluice({"verify", model_}).exit_code, kOk);
    const RunResult run = RunSluice({"generate", "-m", model_, "-p", "abc", "-n", "4"});
    ASSERT_EQ(run.exit_code, kOk) << run.err;
    EXPECT_THAT(run.err, HasSubstr("mode: predicted")) << "of itself";
  }

  const TempDir dir_;
  const std::string model_ = dir_.File("model.sluice");
};

TEST_F(PowerInferCliTest, AFileOfPowerInferIsRepackedInspectedAndRun) {
  TinyGguf model = PowerInferGguf("llama", Foresight::kGate);
  model.floats["powerinfer.sparse_threshold"] = -40.0f;
  WritePowerInfer(model, dir_.File("a.powerinfer.gguf"));
  const RunResult planned =
      RunSluice({"repack", dir_.File("a.powerinfer.gguf"), model_, "--dry-run"});
  EXPECT_THAT(planned.err, HasSubstr("predictors: 2 layers, rank 64..70, "));
  const RunResult repacked = RunSluice({"repack", dir_.File("a.powerinfer.gguf"), model_});
  ASSERT_EQ(repacked.exit_code, kOk) << repacked.err;
  EXPECT_THAT(repacked.err, AllOf(HasSubstr("activation relu\n"),
                                  HasSubstr("predictors: 2 layers, rank 64..70, "),
                                  HasSubstr(" % of the bytes, threshold -40\n")));
  const RunResult inspected = RunSluice({"inspect", model_});
  EXPECT_THAT(inspected.out,
              AllOf(HasSubstr("activation  relu (from the source)"), HasSubstr("predictors  "),
                    HasSubstr("predictor fc1   2 x 64..96 x ")));
  const json document = json::parse(RunSluice({"inspect", model_, "--json"}).out, nullptr, false);
  EXPECT_EQ(document["predictors"]["input"], "residual");
  EXPECT_EQ(document["predictors"]["ranks"], json({64, 96}));
  EXPECT_EQ(document["predictors"]["thresholds"], json({-40.0, -40.0}));
  ExpectRuns();
}

TEST_F(PowerInferCliTest, RecallOfABambooIsByGateAndUp) {
  TinyFolder folder("bamboo");
  for (auto& [name, tensor] : TinyPredictors(TinyTensors("bamboo"), Foresight::kGate)) {
    folder.tensors[absl::StrReplaceAll(
        name, {{"blk.", "model.layers."}, {".fc", ".mlp.predictor.fc"}})] = tensor;
  }
  std::filesystem::create_directory(dir_.File("bamboo"));
  folder.Write(dir_.File("bamboo"));
  const RunResult repacked = RunSluice({"repack", dir_.File("bamboo"), model_});
  ASSERT_EQ(repacked.exit_code, kOk) << repacked.err;
  EXPECT_THAT(repacked.err, AllOf(HasSubstr("activation drelu\n"), HasSubstr("threshold 0\n")));
  ExpectRuns();
  std::string text;
  for (int i = 0; i < 60; ++i) text += std::string("abcab") + "abc"[i * i % 3];
  WriteFile(dir_.File("text.txt"), text);
  const RunResult run = RunSluice({"perplexity", "-m", model_, "-f", dir_.File("text.txt"),
                                   "--against", "dense", "--layers", "-c", "32", "--json"});
  ASSERT_EQ(run.exit_code, kOk) << run.err;
  const json document = json::parse(run.out, nullptr, false);
  ASSERT_TRUE(document.is_object()) << run.out;
  const json& all = document["runs"][0]["predictors"];
  EXPECT_GT(all["recall"], 0.95) << document.dump(1);
  EXPECT_LT(all["true_density"], 0.4) << "both sides must fire";
}

TEST_F(PowerInferCliTest, PredictorsThatDoNotFitAreRefusedInASentence) {
  TinyGguf model = PowerInferGguf("llama", Foresight::kGate);
  model.tensors.erase("blk.1.fc2.weight");
  WritePowerInfer(model, dir_.File("bad.gguf"));
  ExpectError({"repack", dir_.File("bad.gguf"), model_}, kError,
              "tensor \"blk.1.fc2.weight\" is missing, but");
  EXPECT_FALSE(std::filesystem::exists(model_));
}

}  // namespace
}  // namespace sluice
