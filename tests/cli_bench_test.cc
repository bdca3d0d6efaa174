// `sluice bench` as its users meet it.
#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli_fixture.h"
#include "tests/import_test_files.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class BenchTest : public CliTest {
 protected:
  static Arguments Bench(const Arguments& more) {
    Arguments all = {"bench", "-m", model_, "-t", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static std::string OutputOf(const Arguments& more) {
    const RunResult run = RunSluice(Bench(more));
    EXPECT_EQ(run.exit_code, kOk) << run.err;
    return run.out;
  }
  static json RowsOf(Arguments more) {
    more.insert(more.end(), {"-o", "json"});
    return json::parse(OutputOf(more), nullptr, /*allow_exceptions=*/false);
  }
  static std::vector<std::string> Lines(const std::string& text) {
    return absl::StrSplit(text, '\n', absl::SkipEmpty());
  }
};

TEST_F(BenchTest, ARowForEveryTestOfTheLists) {
  const json rows =
      RowsOf({"-p", "4,8", "-n", "2,3", "-d", "0,5", "--mode", "exact,dense", "-r", "1"});
  ASSERT_TRUE(rows.is_array());
  std::vector<std::string> names;
  for (const json& r : rows) {
    names.push_back(r["mode"].get<std::string>() + " " + std::to_string(r["n_prompt"].get<int>()) +
                    " " + std::to_string(r["n_gen"].get<int>()) + " " +
                    std::to_string(r["n_depth"].get<int>()));
  }
  EXPECT_THAT(names, ElementsAre("exact 4 0 0", "exact 8 0 0", "exact 0 2 0", "exact 0 3 0",
                                 "exact 4 0 5", "exact 8 0 5", "exact 0 2 5", "exact 0 3 5",
                                 "dense 4 0 0", "dense 8 0 0", "dense 0 2 0", "dense 0 3 0",
                                 "dense 4 0 5", "dense 8 0 5", "dense 0 2 5", "dense 0 3 5"));
}

TEST_F(BenchTest, FiguresOfARowFitTogether) {
  const json rows = RowsOf({"-p", "0", "-n", "6", "-r", "3"});
  ASSERT_EQ(rows.size(), 1u);
  const json& row = rows[0];
  ASSERT_EQ(row["samples_ns"].size(), 3u);
  double sum = 0;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(row["samples_ts"][i], 6e9 / row["samples_ns"][i].get<double>(), 1e-6);
    sum += row["samples_ts"][i].get<double>();
  }
  EXPECT_NEAR(row["avg_ts"], sum / 3, 1e-6);
  EXPECT_EQ(row["cache"], "warm");
  EXPECT_EQ(row["flash_bytes_per_token"], 0.0) << "everything fits";
  EXPECT_TRUE(row["disk_bandwidth"].is_null());
  EXPECT_EQ(row["hit_rate"], 1.0);
  EXPECT_NEAR(row["compute_share"].get<double>() + row["stall_share"].get<double>(), 1, 1e-9);
  EXPECT_LE(row["tbt_p50_ms"], row["tbt_p99_ms"]);
  EXPECT_NEAR(row["limit_ts"],
              row["memory_bandwidth"].get<double>() / row["touched_bytes_per_token"].get<double>(),
              1e-6 * row["limit_ts"].get<double>());
  EXPECT_FALSE(row["notes"].empty());
}

TEST_F(BenchTest, ABudgetOfTheFileSaysWhatCameFromFlash) {
  const json rows = RowsOf({"-p", "0", "-n", "8", "--mem-budget", "all,45%"});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_TRUE(rows[0]["mem_budget_bytes"].is_null());
  const auto budget = rows[1]["mem_budget_bytes"].get<uint64_t>();
  EXPECT_EQ(budget, static_cast<uint64_t>(0.45 * rows[1]["model_size"].get<double>()));
  EXPECT_LE(rows[1]["mem_planned_bytes"], budget);
  EXPECT_GT(rows[1]["flash_bytes_per_token"], 0.0);
  EXPECT_GT(rows[1]["disk_bandwidth"], 0.0);
  EXPECT_GT(rows[1]["of_limit"], 0.0);
}

TEST_F(BenchTest, AColdCacheIsReadAgainForEveryRepetition) {
  const json rows = RowsOf({"-p", "0", "-n", "4", "--cache", "cold", "-r", "2"});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["cache"], "cold");
  EXPECT_GT(rows[0]["flash_bytes_per_token"], 0.0);
  EXPECT_LT(rows[0]["hit_rate"], 1.0);
}

TEST_F(BenchTest, EveryFormatHasTheSameRows) {
  const Arguments tests = {"-p", "4", "-n", "2", "-r", "2"};
  const auto with = [&](const char* format) {
    Arguments all = tests;
    all.insert(all.end(), {"-o", format});
    return OutputOf(all);
  };
  const std::vector<std::string> jsonl = Lines(with("jsonl"));
  ASSERT_EQ(jsonl.size(), 2u);
  const json row = json::parse(jsonl[0], nullptr, false);
  ASSERT_TRUE(row.is_object());
  EXPECT_EQ(row["n_prompt"], 4);
  const std::vector<std::string> csv = Lines(with("csv"));
  ASSERT_EQ(csv.size(), 3u);
  size_t n_names = 0;
  for (const auto& field : row.items()) {
    EXPECT_THAT(csv[0], HasSubstr(field.key()));
    ++n_names;
  }
  EXPECT_EQ(static_cast<size_t>(std::count(csv[0].begin(), csv[0].end(), ',')), n_names - 1);
  EXPECT_THAT(csv[1], StartsWith('"' + model_ + '"'));
  const std::vector<std::string> md = Lines(with("md"));
  ASSERT_EQ(md.size(), 4u);
  EXPECT_THAT(md[2], HasSubstr("| pp4 |"));
  EXPECT_THAT(md[3], HasSubstr("| tg2 |"));
}

TEST_F(BenchTest, TokensOfATextGoIn) {
  const std::string text = dir_.File("text");
  WriteFile(text, std::string(200, 'a'));
  EXPECT_EQ(RowsOf({"-p", "16", "-n", "0", "-f", text}).size(), 1u);
  ExpectError(Bench({"-p", "1000", "-f", text}), kError, "give a longer text");
}

TEST_F(BenchTest, MappedWeightsCountNothingThatTheKernelDoes) {
  const json rows = RowsOf({"-p", "0", "-n", "2", "--io-engine", "mmap"});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_TRUE(rows[0]["hit_rate"].is_null());
  EXPECT_TRUE(rows[0]["flash_bytes_per_token"].is_null());
}

TEST_F(BenchTest, RefusesWhatItCannotMeasure) {
  ExpectError(Bench({"-p", "0", "-n", "0"}), kUsage, "nothing to measure");
  ExpectError(Bench({"-p", "x"}), kUsage, "-p");
  ExpectError(Bench({"-r", "0"}), kUsage, "-r");
  ExpectError(Bench({"-o", "xml"}), kUsage, "known are md, json");
  ExpectError(Bench({"--cache", "hot"}), kUsage, "known are warm, cold");
  ExpectError(Bench({"--mode", "fast"}), kUsage, "--mode");
  ExpectError(Bench({"--mem-budget", "0%"}), kUsage, "share of the model file");
  ExpectError(Bench({"--mem-budget", "1K"}), kError, "1");
  ExpectError(Bench({"--mem-budget", "50%", "--io-engine", "mmap"}), kUsage, "--mem-budget");
  ExpectError({"bench", "-m", dir_.File("absent")}, kError, "absent");
}

TEST_F(BenchTest, InterruptedItPrintsNoHalfDocument) {
  const RunSetup setup = InterruptOnceItSays(dir_.File("pipe"), "memory: ");
  const RunResult run =
      RunSluice(Bench({"-p", "0", "-n", "200", "-r", "10000", "-o", "json"}), setup);
  EXPECT_EQ(run.exit_code, 128 + SIGINT) << run.err;
  EXPECT_EQ(run.out, "");
}

}  // namespace
}  // namespace sluice
