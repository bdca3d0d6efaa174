// `sluice plan` as its users meet it.
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli_fixture.h"
#include "tests/import_test_files.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// A device profile of the published form: no fits, a table.
constexpr char kProfile[] = R"({"name": "a device of the tests", "read_MBps": [
  {"pattern": "random", "block": 4096, "range": null, "core": "big", "value": 400},
  {"pattern": "random", "block": 524288, "range": null, "core": "big", "value": 3000},
  {"pattern": "sequential", "block": 524288, "range": null, "core": "big", "value": 4000}]})";

class PlanTest : public CliTest {
 protected:
  PlanTest() { WriteFile(profile_, kProfile); }

  Arguments Plan(const Arguments& more) {
    Arguments all = {"plan", "-m",       model_,   "-c",           "128", "-t",
                     "1",    "--device", profile_, "--run-tokens", "4"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  json PlanOf(const Arguments& more) {
    Arguments all = Plan(more);
    all.push_back("--json");
    const RunResult run = RunSluice(all);
    EXPECT_EQ(run.exit_code, kOk) << run.err;
    return json::parse(run.out, nullptr, false);
  }

  const std::string profile_ = dir_.File("profile.json");
};

TEST_F(PlanTest, SpreadsBudgetsFromTheLeastToTheOneThatHoldsEverything) {
  const json plan = PlanOf({});
  ASSERT_TRUE(plan.is_object());
  const json& rows = plan["budgets"];
  ASSERT_EQ(rows.size(), 6u);
  for (size_t i = 1; i < rows.size(); ++i) {
    EXPECT_GT(rows[i]["budget_bytes"], rows[i - 1]["budget_bytes"]);
    EXPECT_LE(rows[i]["flash_mb_per_token"], rows[i - 1]["flash_mb_per_token"]);
    // Where a cache holds less than a token needs, chance gives a hit in ten thousand.
    EXPECT_GE(rows[i]["hit_rate"], rows[i - 1]["hit_rate"].get<double>() - 0.001);
  }
  EXPECT_EQ(rows.back()["hit_rate"], 1.0);
  EXPECT_EQ(rows.back()["flash_mb_per_token"], 0.0);
  EXPECT_EQ(rows.back()["limit"], "compute") << "nothing is read";
  EXPECT_TRUE(plan["modelled"]);
  EXPECT_EQ(plan["measured"].size(), 3u);
}

TEST_F(PlanTest, ForetellsTheTrafficOfARunWithTheSameActivations) {
  const std::string trace = dir_.File("trace");
  const Arguments flags = {"-p", "ab",  "-n", "60", "--temp", "0",        "--ignore-eos",
                           "-c", "128", "-t", "1",  "--json", "--device", profile_};
  const json all = json::parse(RunSluice(Generate({"--dry-run", "--json", "-c", "128"})).out);
  const uint64_t least = all["minimum_bytes"], most = all["everything_bytes"];
  const std::string budget = std::to_string((least + (most - least) / 2) / 1024) + "K";
  Arguments run = Generate(flags);
  run.insert(run.end(), {"--mem-budget", budget, "--record-activations", trace});
  const RunResult result = RunSluice(run);
  ASSERT_EQ(result.exit_code, kOk) << result.err;
  const json decode = json::parse(result.out)["decode"];
  const json row = PlanOf({"--mem-budget", budget, "--profile", trace})["budgets"][0];
  EXPECT_NEAR(row["hit_rate"], decode["hit_rate"].get<double>(), 0.1);
  EXPECT_NEAR(row["flash_mb_per_token"], decode["flash_mb_per_token"].get<double>(),
              0.2 * decode["flash_mb_per_token"].get<double>() + 0.002);
}

TEST_F(PlanTest, TakesAProfileOfTheModelForActivations) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += absl::StrFormat("line %d of a text; ", i * i);
  WriteFile(dir_.File("text"), text);
  const std::string profile = dir_.File("activations");
  ASSERT_EQ(
      RunSluice({"profile", "-m", model_, "--text", dir_.File("text"), "-o", profile}).exit_code,
      kOk);
  const json plan = PlanOf({"--profile", profile});
  EXPECT_THAT(std::string(plan["activations"]), AllOf(HasSubstr(profile), HasSubstr("held-out")));
  EXPECT_GT(plan["budgets"][0]["flash_mb_per_token"], 0.0);

  ToyModel toy;
  toy.seed = 2;
  ASSERT_TRUE(WriteToyModel(toy, dir_.File("other.gguf")).ok());
  const std::string other = dir_.File("other.sluice");
  ASSERT_EQ(RunSluice({"repack", dir_.File("other.gguf"), other}).exit_code, kOk);
  ExpectError({"plan", "-m", other, "--device", profile_, "--profile", profile}, kError,
              "is the profile of another model");
  ExpectError(Plan({"--profile", model_}), kError, "is not an activation trace or profile");
}

TEST_F(PlanTest, DenseModeNeedsEveryNeuron) {
  const json dense = PlanOf({"--mode", "dense"})["budgets"], exact = PlanOf({})["budgets"];
  EXPECT_GT(dense[0]["stream_mb_per_token"], exact[0]["stream_mb_per_token"]);
  EXPECT_EQ(dense[0]["miss_ms_per_token"], 0.0);
}

TEST_F(PlanTest, SaysWhatIsModelledAndWhatWasMeasured) {
  const RunResult run = RunSluice(Plan({}));
  ASSERT_EQ(run.exit_code, kOk) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("modelled"), HasSubstr("measured"), HasSubstr("tokens/s"),
                             HasSubstr("a device of the tests")));
}

TEST_F(PlanTest, WhatIsWrongIsNamed) {
  ExpectError(Plan({"--mem-budget", "12"}), kUsage, "--mem-budget");
  ExpectError(Plan({"--mem-budget", "64M,"}), kUsage, "--mem-budget");
  ExpectError(Plan({"--mode", "fast"}), kUsage, "--mode");
  ExpectError(Plan({"--run-tokens", "1"}), kUsage, "--run-tokens");
  ExpectError(Plan({"--prompt-tokens", "0"}), kUsage, "--prompt-tokens");
  ExpectError(Plan({"-t", "0"}), kUsage, "-t");
  ExpectError({"plan", "-m", gguf_}, kError, "sluice repack");
  ExpectError({"plan", "-m", model_, "--device", dir_.File("none")}, kUsage, "none");
  ExpectError({"plan", "-m", model_, "--device", "none"}, kError, "--device");
  ExpectError(Plan({"--profile", profile_}), kError, profile_);
  RunResult run = RunSluice(Plan({"--mem-budget", "1K"}));
  EXPECT_EQ(run.exit_code, kError);
  EXPECT_THAT(run.err, HasSubstr("least is"));
}

}  // namespace
}  // namespace sluice
