// `sluice perplexity` as its users meet it.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
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
using testing::IsEmpty;

class PerplexityCliTest : public CliTest {
 protected:
  PerplexityCliTest() {
    std::string text;
    for (int i = 0; i < 80; ++i) text += "a bad cab d ";
    WriteFile(text_, text);
  }

  Arguments Perplexity(const Arguments& more) { return PerplexityOf(text_, more); }
  static Arguments PerplexityOf(const std::string& text, const Arguments& more) {
    Arguments all = {"perplexity", "-m", model_, "-f", text};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  json Report(const Arguments& more) {
    Arguments all = Perplexity(more);
    all.push_back("--json");
    const RunResult run = RunSluice(all);
    EXPECT_EQ(run.exit_code, kOk) << run.err;
    json report = json::parse(run.out, nullptr, false);
    EXPECT_TRUE(report.is_object()) << run.out;
    return report;
  }

  const std::string text_ = dir_.File("text");
};

TEST_F(PerplexityCliTest, ReportsPerplexityWithItsIntervalAndWhatItWasMeasuredOn) {
  const json report = Report({"-c", "64", "--chunks", "3"});
  EXPECT_EQ(report["window"], 64);
  ASSERT_EQ(report["runs"].size(), 1u);
  const json& run = report["runs"][0];
  EXPECT_EQ(run["mode"], "exact");
  EXPECT_EQ(run["windows"], 3);
  EXPECT_EQ(run["scored_tokens"], 3 * 31);
  const double perplexity = run["perplexity"];
  EXPECT_NEAR(std::log(perplexity), run["nll"], 1e-9);
  EXPECT_LT(run["perplexity_95"][0], perplexity);
  EXPECT_GT(run["perplexity_95"][1], perplexity);
  EXPECT_GT(run["tokens_per_second"], 0.0);
  EXPECT_TRUE(report["comparison"].is_null());
  const RunResult table = RunSluice(Perplexity({"-c", "64", "--chunks", "3"}));
  EXPECT_EQ(table.exit_code, kOk) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("exact: perplexity "), HasSubstr("93 tokens scored"),
                               HasSubstr("second half")));
}

TEST_F(PerplexityCliTest, ExactIsHeldAgainstDenseAndIsEqual) {
  const json report = Report({"-c", "64", "--against", "dense"});
  ASSERT_EQ(report["runs"].size(), 2u);
  EXPECT_EQ(report["runs"][1]["mode"], "dense");
  EXPECT_EQ(report["runs"][0]["nll"], report["runs"][1]["nll"]);
  EXPECT_EQ(report["comparison"]["nll_difference"], 0.0);
  EXPECT_EQ(report["comparison"]["perplexity_percent_95"], json({0.0, 0.0}));
  EXPECT_EQ(report["comparison"]["same_greedy_share"], 1.0);
  EXPECT_THAT(RunSluice(Perplexity({"-c", "64", "--against", "dense"})).out,
              HasSubstr("exact against dense: perplexity +0.000 %"));
}

TEST_F(PerplexityCliTest, BudgetBatchAndThreadsDoNotChangeTheFigure) {
  const json all = json::parse(RunSluice(Generate({"--dry-run", "--json", "-c", "64"})).out);
  const uint64_t least = all["minimum_bytes"], most = all["everything_bytes"];
  const json plain = Report({"-c", "64"});
  for (const uint64_t budget : {least + 4096, (least + most) / 2}) {
    const std::string k = std::to_string(budget / 1024) + "K";
    for (const char* batch : {"1", "64"}) {
      const json report = Report({"-c", "64", "-t", "1", "-b", batch, "--mem-budget", k});
      EXPECT_EQ(report["runs"][0]["nll"], plain["runs"][0]["nll"]) << k << ", " << batch;
      EXPECT_LE(report["runs"][0]["planned_bytes"], budget);
    }
  }
}

TEST_F(PerplexityCliTest, TextsThatCannotBeScoredAreRefused) {
  const std::string empty = dir_.File("empty"), bytes = dir_.File("bytes"), cut = dir_.File("cut"),
                    shorter = dir_.File("short"), fifo = dir_.File("fifo"),
                    large = dir_.File("large");
  WriteFile(empty, "");
  WriteFile(bytes, "caf\xc3\xa9 caf\xe9 au lait");
  WriteFile(cut, "caf\xc3");
  WriteFile(shorter, "ab");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  WriteFile(large, "");
  ASSERT_EQ(truncate(large.c_str(), (64 << 20) + 1), 0);
  const std::pair<std::string, const char*> cases[] = {
      {dir_.File("missing"), "No such file"},
      {dir_.path(), "is a directory"},
      {fifo, "is a FIFO"},
      {"/dev/zero", "is a device"},
      {empty, "is empty"},
      {bytes, "is not UTF-8 at byte 9 (0xe9)"},
      {cut, "is not UTF-8 at byte 3 (0xc3), where it ends within a character"},
      {shorter, "fewer than one window of 512"},
      {large, "has 67108865 bytes"},
  };
  for (const auto& [path, what] : cases) {
    ExpectError(PerplexityOf(path, {"--json"}), kError, what);
    EXPECT_THAT(RunSluice(PerplexityOf(path, {})).err, HasSubstr(path));
  }
}

TEST_F(PerplexityCliTest, AShortTextIsToldWhichWindowItWouldFill) {
  const std::string path = dir_.File("words");
  WriteFile(path, "a bad cab");
  ExpectError(PerplexityOf(path, {}), kError, "or -c ");
}

TEST_F(PerplexityCliTest, FlagsThatAreWrongAreNamed) {
  const std::pair<Arguments, const char*> cases[] = {
      {{"-c", "3"}, "-c is 3"},
      {{"-c", "-2"}, "-c is -2"},
      {{"--chunks", "0"}, "--chunks is 0"},
      {{"-b", "0"}, "-b is 0"},
      {{"-t", "0"}, "-t is 0"},
      {{"--mode", "fast"}, "--mode is \"fast\""},
      {{"--against", "fast"}, "--against is \"fast\""},
      {{"--mode", "dense", "--against", "dense"}, "--against"},
      {{"--layers"}, "--layers"},
      {{"--mem-budget", "12"}, "--mem-budget"},
      {{"--device", dir_.File("none")}, "none"},
  };
  for (const auto& [flags, what] : cases) ExpectError(Perplexity(flags), kUsage, what);
  ExpectError({"perplexity", "-m", model_}, kUsage, "--file");
  ExpectError(Perplexity({"--mode", "predicted"}), kError, "has no predictors");
  ExpectError({"perplexity", "-m", gguf_, "-f", text_}, kError, "sluice repack");
  ExpectError(Perplexity({"-c", "64", "--mem-budget", "1K"}), kError, "least is");
}

// Interrupts once the notes on stderr show that scoring has begun.
TEST_F(PerplexityCliTest, AnInterruptLeavesNothingOnStdout) {
  WriteFile(text_, std::string(4'000'000, 'a'));  // would take hours
  const std::string pipe = dir_.File("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  RunSetup setup;
  setup.stderr_path = pipe;
  std::string notes;
  setup.meanwhile = [&](int pid) {
    const int fd = open(pipe.c_str(), O_RDONLY | O_CLOEXEC);
    char piece[4096];
    bool sent = false;
    for (ssize_t n = 0; (n = read(fd, piece, sizeof(piece))) > 0;) {
      notes.append(piece, static_cast<size_t>(n));
      if (sent || notes.find("mode: ") == std::string::npos) continue;
      sent = true;
      EXPECT_EQ(kill(pid, SIGINT), 0);
    }
    close(fd);
  };
  const RunResult run = RunSluice(Perplexity({"-t", "1", "--json"}), setup);
  EXPECT_EQ(run.exit_code, 130) << notes;
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_THAT(notes, HasSubstr("exact: stopped"));
}

TEST_F(PerplexityCliTest, JudgesOnTheHeldOutSequencesOfAProfile) {
  const std::string profile = dir_.File("profile");
  const RunResult made =
      RunSluice({"profile", "-m", model_, "--text", text_, "-o", profile, "-c", "16", "--json"});
  ASSERT_EQ(made.exit_code, kOk) << made.err;
  const int held_out = json::parse(made.out)["held_out_tokens"];
  Arguments of_profile = {"perplexity", "-m", model_, "--held-out", profile, "--json"};
  const RunResult run = RunSluice(of_profile);
  ASSERT_EQ(run.exit_code, kOk) << run.err;
  const json report = json::parse(run.out);
  EXPECT_EQ(report["window"], 16);
  EXPECT_EQ(report["text_tokens"], held_out / 16 * 16);
  EXPECT_EQ(report["runs"][0]["windows"], held_out / 16);
  EXPECT_THAT(std::string(report["text"]), HasSubstr(profile));

  of_profile.insert(of_profile.end(), {"-f", text_});
  ExpectError(of_profile, kUsage, "--file TEXT, or --held-out PROFILE");
  ExpectError({"perplexity", "-m", model_}, kUsage, "--file TEXT, or --held-out PROFILE");
  ExpectError({"perplexity", "-m", model_, "--held-out", profile, "-c", "16"}, kUsage, "-c");
  ExpectError({"perplexity", "-m", model_, "--held-out", text_}, kError, "text");
  ToyModel toy;
  toy.seed += 1;
  ASSERT_TRUE(WriteToyModel(toy, dir_.File("other.gguf")).ok());
  const std::string other = dir_.File("other.sluice");
  ASSERT_EQ(RunSluice({"repack", dir_.File("other.gguf"), other}).exit_code, kOk);
  ExpectError({"perplexity", "-m", other, "--held-out", profile}, kError,
              "is the profile of another model");
}

}  // namespace
}  // namespace sluice
