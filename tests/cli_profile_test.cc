// `sluice profile` as its users meet it.
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "predictor/activation_profile.h"
#include "tests/cli_fixture.h"
#include "tests/import_test_files.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class ProfileTest : public CliTest {
 protected:
  ProfileTest() {
    std::string text;
    for (int i = 0; i < 40; ++i) text += absl::StrFormat("line %d of a text; ", i * i);
    WriteFile(text_, text);
  }

  Arguments Profile(const Arguments& more) {
    Arguments all = {"profile", "-m", model_, "-o", out_, "--text", text_};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void ExpectTextRefused(const std::string& text, const std::string& what) {
    ExpectError({"profile", "-m", model_, "-o", out_, "--text", text_, text}, kError, what);
    EXPECT_FALSE(std::filesystem::exists(out_));
  }

  const std::string text_ = dir_.File("text.txt"), out_ = dir_.File("text.profile");
};

TEST_F(ProfileTest, WritesAProfileAndTellsItsFigures) {
  const RunResult run = RunSluice(Profile({"--json"}));
  ASSERT_EQ(run.exit_code, kOk) << run.err;
  const json document = json::parse(run.out, nullptr, false);
  ASSERT_TRUE(document.is_object()) << run.out;
  const auto profile = ActivationProfile::Load(out_);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(document["train_tokens"], profile->n_train_tokens());
  EXPECT_EQ(document["held_out_tokens"], profile->n_held_out_tokens());
  EXPECT_GT(profile->n_held_out_tokens(), 0u) << "a short text too";
  EXPECT_EQ(document["sequences"], profile->sequences().size());
  ASSERT_EQ(document["layers"].size(), profile->n_layers());
  uint64_t active = 0;
  for (const uint32_t count : profile->counts(1)) active += count;
  const json& layer = document["layers"][1];
  EXPECT_DOUBLE_EQ(layer["overlap"], profile->overlap(1));
  EXPECT_NEAR(layer["sparsity"],
              1 - static_cast<double>(active) / profile->n_train_tokens() / profile->n_neurons(),
              1e-12);
  EXPECT_GT(layer["neurons_for_80_percent"], 0.0);
  EXPECT_TRUE(layer["threshold"].is_null());
  EXPECT_TRUE(document["in_source_order"]);
  EXPECT_EQ(layer["mean_run_in_file_order"], layer["mean_run_in_source_order"]);
}

TEST_F(ProfileTest, LiesBesideTheModelUnlessItIsNamed) {
  const RunResult run = RunSluice({"profile", "-m", model_, "--text", text_});
  ASSERT_EQ(run.exit_code, kOk) << run.err;
  const std::string beside = model_ + ".profile";
  EXPECT_TRUE(ActivationProfile::Load(beside).ok());
  EXPECT_THAT(run.out, AllOf(HasSubstr(beside), HasSubstr("overlap"), HasSubstr("\n   all ")));
  std::filesystem::remove(beside);
}

TEST_F(ProfileTest, TheSameTextGivesTheSameBytesWhateverThreadsAndBudget) {
  ASSERT_EQ(RunSluice(Profile({"-t", "1"})).exit_code, kOk);
  const std::string expected = ReadFile(out_);
  const json plan = json::parse(RunSluice(Generate({"--dry-run", "--json"})).out, nullptr, false);
  const std::string least = std::to_string(plan["minimum_bytes"].get<uint64_t>() / 1024 + 64) + "K";
  for (const Arguments& way :
       {Arguments{"-t", "1"}, Arguments{"-t", "2"}, Arguments{"-t", "2", "--mem-budget", least}}) {
    const RunResult run = RunSluice(Profile(way));
    ASSERT_EQ(run.exit_code, kOk) << run.err;
    EXPECT_EQ(ReadFile(out_), expected);
  }
}

TEST_F(ProfileTest, TakesTheFirstTokensOfSeveralTexts) {
  const std::string second = dir_.File("second.txt");
  WriteFile(second, "Another one.");
  const auto tokens = [&](const Arguments& more) {
    Arguments all = Profile(more);
    all.push_back("--json");
    const RunResult run = RunSluice(all);
    EXPECT_EQ(run.exit_code, kOk) << run.err;
    const json document = json::parse(run.out, nullptr, false);
    return std::pair(document["text_tokens"].get<int>(),
                     document["train_tokens"].get<int>() + document["held_out_tokens"].get<int>() -
                         document["sequences"].get<int>());  // each has a BOS
  };
  const auto [one, used] = tokens({});
  EXPECT_EQ(used, one);
  const auto [both, used_of_both] = tokens({second});
  EXPECT_GT(both, one);
  EXPECT_EQ(used_of_both, both);
  EXPECT_EQ(tokens({second, "--max-tokens", "50"}), std::pair(both, 50));
}

TEST_F(ProfileTest, SaysWhenItKeepsNoMoreSets) {
  std::string text;
  for (int i = 0; i < 8'000; ++i) text += absl::StrFormat("%d ", i);
  WriteFile(text_, text);
  const RunResult run = RunSluice(Profile({"--max-mib", "1", "--json"}));
  ASSERT_EQ(run.exit_code, kOk) << run.err;
  EXPECT_THAT(run.err, HasSubstr("--max-mib"));
  const json document = json::parse(run.out, nullptr, false);
  EXPECT_LT(document["train_tokens_with_sets"], document["train_tokens"]);
  EXPECT_LT(std::filesystem::file_size(out_), 2u << 20);
}

TEST_F(ProfileTest, DenseModelsNeedAShareToMakeInactive) {
  ToyModel toy;
  toy.activation = Activation::kSilu;
  ASSERT_TRUE(WriteToyModel(toy, dir_.File("silu.gguf")).ok());
  const std::string silu = dir_.File("silu.sluice");
  ASSERT_EQ(RunSluice({"repack", dir_.File("silu.gguf"), silu}).exit_code, kOk);
  const Arguments profile = {"profile", "-m", silu, "-o", out_, "--text", text_};
  ExpectError(profile, kError, "is not naturally sparse: its activation, silu");
  Arguments half = profile;
  half.insert(half.end(), {"--sparsify", "0.5", "--json"});
  const RunResult run = RunSluice(half);
  ASSERT_EQ(run.exit_code, kOk) << run.err;
  const json document = json::parse(run.out, nullptr, false);
  for (const json& layer : document["layers"]) {
    EXPECT_NEAR(layer["sparsity"], 0.5, 0.01);
    EXPECT_GT(layer["threshold"], 0.0);
  }
  ExpectError(Profile({"--sparsify", "0.5"}), kError, "exact zeros");
  for (const char* share : {"0", "1", "-0.5", "nan"}) {
    ExpectError(Profile({"--sparsify", share}), kUsage, "--sparsify");
  }
}

TEST_F(ProfileTest, ThePageShowsTheFiguresOfTheDocument) {
  const std::string page = dir_.File("page.html");
  const RunResult run = RunSluice(Profile({"--json", "--html", page}));
  ASSERT_EQ(run.exit_code, kOk) << run.err;
  const std::string html = ReadFile(page);
  const std::string begin = "id=\"data\">";
  const size_t at = html.find(begin) + begin.size();
  EXPECT_EQ(json::parse(html.substr(at, html.find("</script>", at) - at), nullptr, false),
            json::parse(run.out, nullptr, false));
  for (const char* chart : {"Sparsity", "frequency", "Overlap", "Active neurons side by side"}) {
    EXPECT_THAT(html, HasSubstr(absl::StrFormat("data-chart=\"%s\"", chart)));
  }
  for (const char* outside : {"http:", "https:", "src=", "<link", "@import", "url(", "nan"}) {
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  }
}

TEST_F(ProfileTest, TextsThatAreNoneAreNamed) {
  const std::string bad = dir_.File("bad.txt");
  WriteFile(bad, "");
  ExpectTextRefused(bad, bad + ": is empty");
  WriteFile(bad, "good \xc3\xa4 \xff bad");
  ExpectTextRefused(bad, bad + ": is not UTF-8 at byte 8");
  WriteFile(bad, "cut \xc3");
  ExpectTextRefused(bad, "at byte 4");
  ExpectTextRefused(dir_.path(), "directory");
  ExpectTextRefused(dir_.File("missing"), "missing");
  const std::string fifo = dir_.File("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  ExpectTextRefused(fifo, "FIFO");
}

TEST_F(ProfileTest, WhatIsWrongIsNamedAndNothingIsReplaced) {
  WriteFile(out_, "before");
  ExpectError(Profile({"--max-tokens", "0"}), kUsage, "--max-tokens");
  ExpectError(Profile({"--max-mib", "0"}), kUsage, "--max-mib");
  ExpectError(Profile({"-c", "1"}), kUsage, "-c");
  ExpectError(Profile({"-t", "0"}), kUsage, "-t");
  ExpectError(Profile({"--mem-budget", "12"}), kUsage, "--mem-budget");
  ExpectError(Profile({"--mem-budget", "1K"}), kError, "least is");
  ExpectError({"profile", "-m", model_}, kUsage, "--text");
  ExpectError({"profile", "-m", gguf_, "-o", out_, "--text", text_}, kError, "sluice repack");
  ExpectError({"profile", "-m", model_, "-o", text_, "--text", text_}, kUsage, "-o and --text");
  ExpectError({"profile", "-m", model_, "-o", model_, "--text", text_}, kUsage, "-o and -m");
  ExpectError(Profile({"--html", out_}), kUsage, "--html and -o");
  EXPECT_EQ(ReadFile(out_), "before");
}

}  // namespace
}  // namespace sluice
