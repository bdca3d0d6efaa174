// `sluice generate --trace`: the picture of a token.
#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli_fixture.h"
#include "tests/import_test_files.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsSupersetOf;

class TraceCliTest : public CliTest {
 protected:
  // The events of a run that has to read, by their kind.
  std::map<std::string, std::vector<json>> EventsOf(const Arguments& more) {
    Arguments flags = {"-p", "abc", "-n",           "6",       "--temp", "0",
                       "-t", "2",   "--ignore-eos", "--trace", path_};
    flags.insert(flags.end(), more.begin(), more.end());
    const RunResult run = RunSluice(Generate(flags));
    EXPECT_EQ(run.exit_code, kOk) << run.err;
    EXPECT_THAT(run.err, HasSubstr("trace of the token at position"));
    document_ = json::parse(ReadFile(path_), nullptr, /*allow_exceptions=*/false);
    std::map<std::string, std::vector<json>> events;
    if (!document_.is_object()) return events;
    for (const json& e : document_["traceEvents"]) events[e["ph"].get<std::string>()].push_back(e);
    return events;
  }

  const std::string path_ = dir_.File("token.json");
  json document_;
};

TEST_F(TraceCliTest, StagesAreThereAndLieWithinTheToken) {
  auto events = EventsOf({});
  ASSERT_TRUE(document_.is_object());
  EXPECT_EQ(document_["otherData"]["complete"], true);
  std::set<std::string> names;
  const json* token = nullptr;
  for (const json& e : events["X"]) {
    names.insert(e["name"].get<std::string>());
    if (e["name"] == "token") token = &e;
  }
  EXPECT_THAT(names, IsSupersetOf({"token", "attention", "ffn", "gate", "head"}));
  ASSERT_NE(token, nullptr);
  EXPECT_EQ((*token)["ts"], 0.0);
  const double end = (*token)["dur"].get<double>() + 1e-3;
  for (const json& e : events["X"]) {
    EXPECT_GE(e["ts"], 0.0) << e;
    EXPECT_LE(e["ts"].get<double>() + e["dur"].get<double>(), end) << e;
  }
  std::vector<std::string> threads;
  for (const json& e : events["M"]) {
    if (e["name"] == "thread_name") threads.push_back(e["args"]["name"].get<std::string>());
  }
  EXPECT_THAT(threads, testing::ElementsAre("decode thread", "worker 1"));
}

TEST_F(TraceCliTest, EveryReadBeginsAndEndsAndHasItsBytes) {
  auto events = EventsOf({"--mem-budget", "1200K"});
  ASSERT_TRUE(document_.is_object());
  ASSERT_FALSE(events["b"].empty()) << "a budget at which all fits tests nothing";
  ASSERT_EQ(events["b"].size(), events["e"].size());
  const double size = static_cast<double>(std::filesystem::file_size(model_));
  for (size_t i = 0; i < events["b"].size(); ++i) {
    const json &b = events["b"][i], &e = events["e"][i];
    EXPECT_EQ(b["id"], e["id"]);
    EXPECT_LE(b["ts"], e["ts"]);
    EXPECT_GT(b["args"]["bytes"], 0);
    EXPECT_LT(b["args"]["offset"], size);
  }
  EXPECT_EQ(events["C"].back()["args"]["reads"], 0) << "all came back";
  const bool stalls = std::any_of(events["X"].begin(), events["X"].end(),
                                  [](const json& e) { return e["name"] == "stall"; });
  EXPECT_TRUE(stalls);
}

TEST_F(TraceCliTest, TheTextIsTheSameWithAndWithout) {
  const Arguments flags = {"-p", "abc", "-n", "8", "--temp", "0", "--ignore-eos"};
  Arguments traced = flags;
  traced.insert(traced.end(), {"--trace", path_});
  EXPECT_EQ(RunSluice(Generate(traced)).out, RunSluice(Generate(flags)).out);
}

TEST_F(TraceCliTest, WhatIsReadAndOtherOutputsAreNotOverwritten) {
  ExpectError(Generate({"-p", "a", "--trace", model_}), kUsage, "--trace");
  ExpectError(Generate({"-p", "a", "--trace", path_, "--record-activations", path_}), kUsage,
              "--trace");
  ExpectError(Generate({"-p", "a", "--trace", dir_.File("absent/t.json")}), kError, "absent");
}

TEST_F(TraceCliTest, WithoutATokenThereIsNoPicture) {
  const RunResult run = RunSluice(Generate({"-p", "abc", "-n", "1", "--trace", path_}));
  EXPECT_EQ(run.exit_code, kError);
  EXPECT_THAT(run.err, HasSubstr("no token was decoded"));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace sluice
