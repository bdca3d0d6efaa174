// Prediction of attention heads as a shell sees it: `train --heads`, then what uses its model.
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli_fixture.h"
#include "tests/import_test_files.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class CliHeadsTest : public CliTest {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 250; ++i) text += i % 3 == 0 ? "a bad cab " : "dead beef faced ";
    WriteFile(text_, text);
    ASSERT_EQ(
        RunSluice({"profile", "-m", model_, "--text", text_, "-o", profile_, "-c", "64"}).exit_code,
        kOk);
    const RunResult trained =
        RunSluice({"train", "-m", model_, "--profile", profile_, "-o", neurons_, "--epochs", "2"});
    ASSERT_EQ(trained.exit_code, kOk) << trained.err;
  }

  Arguments TrainHeads(const Arguments& more = {}) const {
    return With({"train", "--heads", "-m", neurons_, "--profile", profile_, "-o", heads_,
                 "--epochs", "2", "--head-share", "0.7"},
                more);
  }
  static Arguments With(Arguments all, const Arguments& more) {
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static json Parse(const RunResult& run) {
    EXPECT_EQ(run.exit_code, kOk) << run.err;
    return json::parse(run.out, nullptr, false);
  }

  const std::string text_ = dir_.File("text"), profile_ = dir_.File("toy.profile");
  const std::string neurons_ = dir_.File("neurons.sluice"), heads_ = dir_.File("heads.sluice");
};

TEST_F(CliHeadsTest, TrainsAddsAndUsesPredictorsOfHeads) {
  const json trained = Parse(RunSluice(TrainHeads({"--json"})));
  EXPECT_EQ(trained["predicts"], "heads");
  ASSERT_EQ(trained["layers"].size(), 3u);
  EXPECT_GT(trained["all"]["recall"], 0.5);
  EXPECT_LT(trained["all"]["true_density"], 1.0);

  // inspect: those of neurons are still there.
  const json inspected = Parse(RunSluice({"inspect", heads_, "--json"}));
  EXPECT_EQ(inspected["head_predictors"]["ranks"].size(), 3u);
  EXPECT_EQ(inspected["head_predictors"]["input"], "residual");
  EXPECT_NEAR(inspected["head_predictors"]["label_share"], 0.7, 1e-6);
  const json before = Parse(RunSluice({"inspect", neurons_, "--json"}));
  EXPECT_TRUE(before["head_predictors"].is_null());
  EXPECT_EQ(inspected["predictors"], before["predictors"]);
  EXPECT_THAT(RunSluice({"inspect", heads_}).out, HasSubstr("for 0.7 of the squared norms"));
  EXPECT_EQ(RunSluice({"verify", heads_}).exit_code, kOk);

  // generate: only on request.
  const Arguments generate = {"generate", "-m", heads_, "-p", "a b", "-n", "6", "--temp", "0"};
  const RunResult with = RunSluice(With(generate, {"--predict-heads"}));
  EXPECT_EQ(with.exit_code, kOk) << with.err;
  EXPECT_THAT(with.err,
              AllOf(HasSubstr("attention heads predicted too"), HasSubstr("heads computed")));
  const RunResult without = RunSluice(generate);
  EXPECT_THAT(without.err, Not(HasSubstr("heads")));
  Arguments of_neurons = generate;
  of_neurons[2] = neurons_;
  EXPECT_EQ(without.out, RunSluice(of_neurons).out);
  const json summary = Parse(RunSluice(With(generate, {"--predict-heads", "--json"})));
  EXPECT_GT(summary["decode"]["head_share"], 0.0);
  EXPECT_LT(summary["decode"]["head_share"], 1.0);
  const json plain = Parse(RunSluice(With(generate, {"--json"})));
  EXPECT_TRUE(plain["decode"]["head_share"].is_null());
  EXPECT_GT(summary["memory_plan"]["minimum_bytes"], plain["memory_plan"]["minimum_bytes"]);
}

TEST_F(CliHeadsTest, PerplexityIsHeldAgainstAllHeadsAndLayersAreMeasured) {
  ASSERT_EQ(RunSluice(TrainHeads()).exit_code, kOk);
  const Arguments perplexity = {"perplexity", "-m", heads_,     "-f", text_,
                                "-c",         "64", "--chunks", "3",  "--predict-heads"};
  const json report =
      Parse(RunSluice(With(perplexity, {"--against", "predicted", "--layers", "--json"})));
  ASSERT_EQ(report["runs"].size(), 2u);
  const json &run = report["runs"][0], &against = report["runs"][1];
  EXPECT_EQ(run["predict_heads"], true);
  EXPECT_EQ(against["predict_heads"], false);
  ASSERT_EQ(run["head_predictors"]["layers"].size(), 3u);
  EXPECT_NEAR(run["head_predictors"]["predicted_density"], run["head_share"], 1e-9);
  EXPECT_TRUE(against["head_predictors"].is_null());
  EXPECT_NE(run["nll"], against["nll"]);
  // To be measured changes nothing.
  const json unmeasured = Parse(RunSluice(With(perplexity, {"--json"})));
  EXPECT_EQ(unmeasured["runs"][0]["nll"], run["nll"]);
  const RunResult table = RunSluice(With(perplexity, {"--layers", "--against", "dense"}));
  EXPECT_THAT(table.out, AllOf(HasSubstr("predicted, heads too: perplexity"),
                               HasSubstr("heads    recall  precision"),
                               HasSubstr("predicted, heads too against dense")));
}

TEST_F(CliHeadsTest, WhatDoesNotFitIsSaid) {
  ExpectError({"generate", "-m", neurons_, "-p", "a", "--predict-heads"}, kError,
              "has no predictors of attention heads; make them with sluice train --heads");
  ExpectError({"generate", "-m", model_, "-p", "a", "--predict-heads"}, kUsage,
              "--predict-heads is about predicted mode");
  ExpectError({"perplexity", "-m", neurons_, "-f", text_, "--mode", "dense", "--against",
               "predicted", "--predict-heads"},
              kUsage, "--predict-heads is about the run of --mode");
  Arguments plain = TrainHeads();
  plain[3] = model_;
  ExpectError(plain, kError, "has no predictors of neurons");
  for (const char* share : {"0", "1.5", "-1"}) {
    Arguments wrong = TrainHeads();
    wrong.back() = share;
    ExpectError(wrong, kUsage, "--head-share");
  }
}

}  // namespace
}  // namespace sluice
