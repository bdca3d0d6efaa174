// The program as its users meet it: exit codes, messages, what goes to which stream, and what
// happens when a stream goes away.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/sluice_file.h"
#include "tests/cli_run.h"
#include "tests/import_test_files.h"
#include "tests/import_test_models.h"
#include "tests/sluice_image.h"
#include "tests/test_paths.h"
#include "tests/toy_model.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

using Arguments = std::vector<std::string>;

constexpr int kOk = 0, kError = 1, kUsage = 2;

// One toy model for all tests, as GGUF and repacked by the program itself.
class CliTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    models_ = new TempDir;
    gguf_ = models_->File("toy.gguf");
    model_ = models_->File("toy.sluice");
    const absl::Status written = WriteToyModel(ToyModel(), gguf_);
    ASSERT_TRUE(written.ok()) << written;
    const RunResult repacked = RunSluice({"repack", gguf_, model_});
    ASSERT_EQ(repacked.exit_code, kOk) << repacked.err;
  }
  static void TearDownTestSuite() {
    delete models_;
    models_ = nullptr;
  }

  static Arguments Generate(const Arguments& more) {
    Arguments all = {"generate", "-m", model_};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // Runs and expects an error of this kind that says `what`, with nothing on stdout.
  static void ExpectError(const Arguments& arguments, int exit_code, const std::string& what) {
    const RunResult run = RunSluice(arguments);
    EXPECT_EQ(run.exit_code, exit_code) << run.err;
    EXPECT_THAT(run.err, HasSubstr(what));
    EXPECT_THAT(run.out, IsEmpty());
  }

  static TempDir* models_;
  static std::string gguf_, model_;
  TempDir dir_;
};
TempDir* CliTest::models_ = nullptr;
std::string CliTest::gguf_, CliTest::model_;

TEST_F(CliTest, HelpAndVersionAreAnswersAndNotErrors) {
  for (const Arguments& arguments :
       {Arguments{"--help"}, {"generate", "--help"}, {"repack", "-h"}, {"synth", "--help"}}) {
    const RunResult run = RunSluice(arguments);
    EXPECT_EQ(run.exit_code, kOk);
    EXPECT_THAT(run.out, HasSubstr("Usage"));
    EXPECT_THAT(run.err, IsEmpty());
  }
  EXPECT_THAT(RunSluice({"--version"}).out, StartsWith("sluice "));
}

TEST_F(CliTest, WhatIsNotUnderstoodIsNamed) {
  ExpectError({}, kUsage, "subcommand");
  ExpectError({"boil"}, kUsage, "\"boil\"");
  ExpectError({"generate"}, kUsage, "--model");
  ExpectError(Generate({"--mlock"}), kUsage, "--mlock");
  ExpectError(Generate({"-ngl", "99"}), kUsage, "there is no flag -ngl");
  ExpectError(Generate({"-n", "2", "-np", "1"}), kUsage, "there is no flag -np");
  ExpectError(Generate({"-f", ""}), kUsage, "empty");
  ExpectError(Generate({"--kernels", ""}), kUsage, "empty");
  ExpectError({"repack", gguf_, ""}, kUsage, "empty");
  ExpectError(Generate({"surplus"}), kUsage, "surplus");
  ExpectError(Generate({"-n"}), kUsage, "--predict");
  ExpectError({"repack", gguf_}, kUsage, "OUT");
  ExpectError({"verify"}, kUsage, "FILE");
  ExpectError(Generate({"-p", "a", "-f", "b"}), kUsage, "--file");
  ExpectError(Generate({"--io-engine", "mmap", "--mem-budget", "1G"}), kUsage,
              "exclude each other");
  ExpectError(Generate({"--io-engine", "mmap", "--direct", "on"}), kUsage, "exclude each other");
}

TEST_F(CliTest, NumbersOutOfRangeAreRefusedWithTheFlagThatTheyBelongTo) {
  const std::pair<Arguments, const char*> cases[] = {
      {{"-n", "x"}, "--predict"},
      {{"-n", "99999999999999999999"}, "-n is"},
      {{"-n", "-3"}, "-n is -3"},
      {{"-t", "0"}, "-t is 0"},
      {{"-t", "-5"}, "-t is -5"},
      {{"-t", "1.5"}, "--threads"},
      {{"-c", "-2"}, "-c is -2"},
      {{"-b", "0"}, "-b is 0"},
      {{"--top-p", "2"}, "--top-p is 2"},
      {{"--top-p", "nan"}, "--top-p is nan"},
      {{"--top-k", "-1"}, "--top-k is -1"},
      {{"--min-p", "-0.5"}, "--min-p is -0.5"},
      {{"--temp", "-1"}, "--temp is -1"},
      {{"--repeat-penalty", "0"}, "--repeat-penalty is 0"},
      {{"-s", "-2"}, "--seed is -2"},
      {{"--io-core", "-7"}, "--io-core is -7"},
      {{"--io-core", "4294967296"}, "--io-core is 4294967296"},
      {{"--io-core", "1234567"}, "--io-core is 1234567; this process may use 0"},
      {{"--mode", "fast"}, "--mode is \"fast\""},
      {{"--io-engine", "aio"}, "--io-engine is \"aio\""},
      {{"--direct", "maybe"}, "--direct is \"maybe\""},
      {{"--kernels", "abacus"}, "--kernels is \"abacus\""},
  };
  for (const auto& [flags, what] : cases) ExpectError(Generate(flags), kUsage, what);
}

TEST_F(CliTest, ABudgetNeedsANumberAndAUnit) {
  for (const char* budget : {"12", "", "G", "-5G", "2X", "2Gb", "1.2.3G", "9999999999999999T"}) {
    ExpectError(Generate({"--mem-budget", budget}), kUsage, "--mem-budget");
  }
}

TEST_F(CliTest, ABudgetBelowTheMinimumNamesTheMinimumWhichIsThenAccepted) {
  const RunResult run = RunSluice(Generate({"-p", "abc", "-n", "2", "--mem-budget", "1K"}));
  EXPECT_EQ(run.exit_code, kError);
  EXPECT_THAT(run.out, IsEmpty());
  std::smatch match;
  ASSERT_TRUE(std::regex_search(run.err, match, std::regex("least is ([0-9]+) bytes"))) << run.err;
  // Budgets have units of at least a KiB.
  const std::string least = std::to_string(std::stoull(match[1]) / 1024 + 1) + "K";
  const RunResult second = RunSluice(Generate({"-p", "abc", "-n", "2", "--mem-budget", least}));
  EXPECT_EQ(second.exit_code, kOk) << second.err;
}

TEST_F(CliTest, RepackFlagsAreChecked) {
  const std::string out = dir_.File("out.sluice");
  const auto expect = [&](const Arguments& flags, int code, const char* what) {
    Arguments all = {"repack", gguf_, out};
    all.insert(all.end(), flags.begin(), flags.end());
    ExpectError(all, code, what);
    EXPECT_FALSE(std::filesystem::exists(out));
  };
  expect({"--type", "q5"}, kUsage, "\"q5\"");
  expect({"--resident-type", "int3"}, kUsage, "\"int3\"");
  expect({"--block", "1000"}, kUsage, "--block is 1000");
  expect({"--activation", "tanh"}, kUsage, "\"tanh\"");
  expect({"--activation", "fatrelu", "--activation-threshold", "-3"}, kError, "threshold is -3");
}

TEST_F(CliTest, WhatIsNoModelIsSaidToBeNone) {
  const std::string empty = dir_.File("empty"), page = dir_.File("page.html");
  const std::string fifo = dir_.File("fifo");
  WriteFile(empty, "");
  WriteFile(page, "<!DOCTYPE html><html>Not found</html>");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const std::pair<std::string, const char*> cases[] = {
      {dir_.File("missing"), "No such file"}, {dir_.path(), "is a directory"},
      {fifo, "not a regular file"},           {empty, "is empty"},
      {page, "is not a .sluice file"},        {gguf_, "sluice repack"},
  };
  for (const auto& [path, what] : cases) {
    for (const Arguments& arguments :
         {Arguments{"generate", "-m", path, "-p", "a"}, {"inspect", path}, {"verify", path}}) {
      ExpectError(arguments, kError, what);
      EXPECT_THAT(RunSluice(arguments).err, HasSubstr(path));
    }
  }
  for (const auto& path : {dir_.File("missing"), dir_.path(), fifo, empty, page, model_}) {
    ExpectError({"repack", path, dir_.File("out.sluice")}, kError, path);
  }
}

TEST_F(CliTest, ValuesMayLookLikeFlags) {
  const RunResult run = RunSluice(Generate({"-p", "-ngl", "-n1", "--temp", "0", "-c", "64"}));
  EXPECT_EQ(run.exit_code, kOk) << run.err;
  EXPECT_THAT(run.out, StartsWith("-ngl"));
}

TEST_F(CliTest, AStoppedRepackSaysSoAndLeavesNothing) {
  // The progress of a small model comes once, at its end; the notes before it are the sign.
  const std::string pipe = dir_.File("pipe"), out = dir_.File("stopped.sluice");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ToyModel large;
  large.d_model = 1024;
  large.d_ff = 4096;
  large.n_layers = 8;
  large.n_heads = 16;
  large.head_dim = 64;
  large.equal_rows = true;
  ASSERT_TRUE(WriteToyModel(large, dir_.File("large.gguf")).ok());
  RunSetup setup;
  setup.stderr_path = pipe;
  std::string notes;
  setup.meanwhile = [&](int pid) {
    const int fd = open(pipe.c_str(), O_RDONLY | O_CLOEXEC);
    char piece[4096];
    bool sent = false;
    for (ssize_t n = 0; (n = read(fd, piece, sizeof(piece))) > 0;) {
      notes.append(piece, static_cast<size_t>(n));
      if (std::exchange(sent, true)) continue;
      EXPECT_EQ(kill(pid, SIGTERM), 0);
    }
    close(fd);
  };
  const RunResult run = RunSluice({"repack", dir_.File("large.gguf"), out}, setup);
  EXPECT_EQ(run.exit_code, 128 + SIGTERM) << notes;
  EXPECT_THAT(notes, HasSubstr("stopped; " + out + " was not written"));
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_FALSE(std::filesystem::exists(dir_.File(".stopped.sluice.partial")));
}

TEST_F(CliTest, APromptLongerThanTheContextIsRefusedWithBothCounts) {
  const RunResult run = RunSluice(Generate({"-p", "a b c d e f g h i j k l", "-c", "8"}));
  EXPECT_EQ(run.exit_code, kError);
  EXPECT_TRUE(std::regex_search(run.err,
                                std::regex("the prompt has [0-9]+ tokens and the context holds 8")))
      << run.err;
}

TEST_F(CliTest, AContextBeyondTheAttentionWindowIsRefusedAndOneBeyondTheTrainedLengthIsNoted) {
  TinyGguf windowed;
  windowed.ints["llama.attention.sliding_window"] = 32;
  windowed.Write(dir_.File("windowed.gguf"));
  const std::string model = dir_.File("windowed.sluice");
  ASSERT_EQ(RunSluice({"repack", dir_.File("windowed.gguf"), model}).exit_code, kOk);
  const auto with = [&](const char* context) {
    return Arguments{"generate", "-m", model, "-p", "ab", "-n", "1", "-c", context};
  };
  ExpectError(with("33"), kError, "-c is 33, but the model attends to a window of 32 tokens");
  const RunResult inside = RunSluice(with("32"));
  EXPECT_EQ(inside.exit_code, kOk) << inside.err;
  EXPECT_THAT(inside.err, Not(HasSubstr("-c is")));
  EXPECT_THAT(RunSluice(Generate({"-p", "a", "-n", "1", "-c", "600"})).err,
              HasSubstr("the model was trained with 512"));
}

TEST_F(CliTest, ATextThatNoContextHoldsIsNotReadToItsEnd) {
  std::ofstream(dir_.File("long")) << std::string(4 << 20, 'a');
  ExpectError(Generate({"-f", dir_.File("long"), "-c", "8"}), kError, "more bytes than 8 tokens");
  RunSetup endless;
  endless.stdin_path = "/dev/zero";
  const RunResult run = RunSluice(Generate({"-f", "-", "-c", "8"}), endless);
  EXPECT_EQ(run.exit_code, kError);
  EXPECT_THAT(run.err, HasSubstr("more bytes than 8 tokens"));
}

TEST_F(CliTest, TextGoesToStdoutAndEverythingElseToStderr) {
  const RunResult run =
      RunSluice(Generate({"-p", "hello", "-n", "5", "--temp", "0", "--ignore-eos"}));
  ASSERT_EQ(run.exit_code, kOk) << run.err;
  EXPECT_THAT(run.out, StartsWith("hello"));
  for (const char* word : {"tokens/s", "TTFT", "TBT p50", "MB/token", "greedy", "kernels", "io:"}) {
    EXPECT_THAT(run.err, HasSubstr(word));
    EXPECT_THAT(run.out, Not(HasSubstr(word)));
  }
  const RunResult bare = RunSluice(
      Generate({"-p", "hello", "-n", "5", "--temp", "0", "--ignore-eos", "--no-display-prompt"}));
  EXPECT_EQ("hello" + bare.out, run.out);
}

TEST_F(CliTest, ThePrintedSeedReproducesTheRun) {
  const Arguments flags = {"-p", "ab", "-n", "24", "--temp", "1.5", "--ignore-eos"};
  const RunResult first = RunSluice(Generate(flags));
  ASSERT_EQ(first.exit_code, kOk) << first.err;
  std::smatch match;
  ASSERT_TRUE(std::regex_search(first.err, match, std::regex("seed: ([0-9]+)"))) << first.err;
  Arguments again = flags;
  again.insert(again.end(), {"--seed", match[1]});
  EXPECT_EQ(RunSluice(Generate(again)).out, first.out);
  again.back() = std::to_string(std::stoull(match[1]) ^ 1);
  EXPECT_NE(RunSluice(Generate(again)).out, first.out);
}

TEST_F(CliTest, JsonIsOneDocumentAndAllThatIsOnStdout) {
  const RunResult run =
      RunSluice(Generate({"-p", "ab", "-n", "6", "--temp", "0", "--ignore-eos", "--json"}));
  ASSERT_EQ(run.exit_code, kOk) << run.err;
  const json document = json::parse(run.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(document.is_object()) << run.out;
  EXPECT_EQ(document["tokens"].size(), 6u);
  EXPECT_EQ(document["stop"], "length");
  EXPECT_EQ(document["model"], model_);
  EXPECT_GT(document["decode"]["tokens_per_second"], 0.0);
  EXPECT_GT(document["prefill"]["tokens"], 0);
  const RunResult text =
      RunSluice(Generate({"-p", "ab", "-n", "6", "--temp", "0", "--ignore-eos"}));
  EXPECT_EQ(document["text"], text.out);
}

TEST_F(CliTest, ADryRunShowsThePlanAndReadsNoWeights) {
  const RunResult run = RunSluice(Generate({"--dry-run", "--mem-budget", "64M"}));
  EXPECT_EQ(run.exit_code, kOk) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("in all"), HasSubstr("64"), HasSubstr("least budget")));
  EXPECT_THAT(run.err, IsEmpty());
  const RunResult as_json = RunSluice(Generate({"--dry-run", "--json"}));
  const json plan = json::parse(as_json.out, nullptr, false);
  ASSERT_TRUE(plan.is_object()) << as_json.out;
  EXPECT_GT(plan["minimum_bytes"], 0);
  EXPECT_LE(plan["minimum_bytes"], plan["total_bytes"]);
  const RunResult repack = RunSluice({"repack", gguf_, dir_.File("dry.sluice"), "--dry-run"});
  EXPECT_EQ(repack.exit_code, kOk) << repack.err;
  EXPECT_THAT(repack.out, HasSubstr("would take about"));
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
  ExpectError({"repack", gguf_, dir_.File("no/dry.sluice"), "--dry-run"}, kError, "does not exist");
  ExpectError({"repack", gguf_, model_, "--dry-run"}, kError, "--force");
}

TEST_F(CliTest, ThePromptComesFromAFlagAFileOrStdin) {
  const Arguments flags = {"-n", "4", "--temp", "0", "--ignore-eos"};
  const auto with = [&](Arguments prompt, RunSetup setup = {}) {
    prompt.insert(prompt.end(), flags.begin(), flags.end());
    const RunResult run = RunSluice(Generate(prompt), setup);
    EXPECT_EQ(run.exit_code, kOk) << run.err;
    return run.out;
  };
  const std::string file = dir_.File("prompt.txt");
  WriteFile(file, "a \"b\"\nc");
  RunSetup from_file;
  from_file.stdin_path = file;
  const std::string expected = with({"-f", file});
  EXPECT_THAT(expected, StartsWith("a \"b\"\nc"));
  EXPECT_EQ(with({"-f", "-"}, from_file), expected);
  EXPECT_EQ(with({"-p", "a \\\"b\\\"\\nc"}), expected);
  EXPECT_THAT(with({"-p", "a\\nb", "--no-escape"}), StartsWith("a\\nb"));
  ExpectError(Generate({"-f", dir_.path()}), kError, dir_.path());
  ExpectError(Generate({"-f", dir_.File("missing")}), kError, dir_.File("missing"));
}

TEST_F(CliTest, BytesThatAreNoUtf8InAPromptAreNoError) {
  const std::string file = dir_.File("bytes.txt");
  WriteFile(file, "ab\xff\xfe\xc3(");
  const RunResult run = RunSluice(Generate({"-f", file, "-n", "4", "--json"}));
  EXPECT_EQ(run.exit_code, kOk) << run.err;
  EXPECT_TRUE(json::accept(run.out));
}

TEST_F(CliTest, AClosedStdinIsOnlyAnErrorWhereItIsRead) {
  RunSetup closed;
  closed.stdin_path = "";
  EXPECT_EQ(RunSluice(Generate({"-p", "a", "-n", "2"}), closed).exit_code, kOk);
  const RunResult run = RunSluice(Generate({"-f", "-", "-n", "2"}), closed);
  EXPECT_EQ(run.exit_code, kError);
  EXPECT_THAT(run.err, HasSubstr("stdin"));
}

TEST_F(CliTest, OutputThatCannotBeWrittenIsAnError) {
  RunSetup closed, full;
  closed.close_stdout = true;
  full.stdout_path = "/dev/full";
  for (const RunSetup& setup : {closed, full}) {
    for (const Arguments& arguments : {Generate({"-p", "a", "-n", "3"}),
                                       Generate({"-p", "a", "-n", "3", "--json"}),
                                       Generate({"--dry-run", "--json"}),
                                       Arguments{"inspect", model_},
                                       {"inspect", model_, "--json"},
                                       {"verify", model_},
                                       {"--help"}}) {
      const RunResult run = RunSluice(arguments, setup);
      EXPECT_EQ(run.exit_code, kError) << arguments.front() << ": " << run.err;
      EXPECT_THAT(run.err, HasSubstr("stdout"));
    }
  }
}

TEST_F(CliTest, AClosedStderrDoesNotEndUpInTheOutputFile) {
  RunSetup closed;
  closed.close_stderr = true;
  const std::string out = dir_.File("out.sluice");
  EXPECT_EQ(RunSluice({"repack", gguf_, out}, closed).exit_code, kOk);
  EXPECT_TRUE(SluiceImage::Load(out).bytes == SluiceImage::Load(model_).bytes);
}

// Lets the program write into a pipe; `read` gets the reading end.
RunResult RunIntoPipe(const Arguments& arguments, const std::string& pipe,
                      const std::function<void(int fd, int pid)>& read) {
  EXPECT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  RunSetup setup;
  setup.stdout_path = pipe;
  setup.meanwhile = [&](int pid) { read(open(pipe.c_str(), O_RDONLY | O_CLOEXEC), pid); };
  return RunSluice(arguments, setup);
}

// Long enough to be interrupted anywhere.
const Arguments kEndless = {"-p", "ab", "--ignore-eos", "-n", "-2", "-c", "50000", "-t", "1"};

TEST_F(CliTest, AReaderThatGoesAwayEndsTheRun) {
  const RunResult run = RunIntoPipe(Generate(kEndless), dir_.File("pipe"), [](int fd, int) {
    char first = 0;
    EXPECT_EQ(read(fd, &first, 1), 1);
    EXPECT_EQ(first, 'a');
    close(fd);
  });
  EXPECT_EQ(run.exit_code, kError);
  EXPECT_THAT(run.err, AllOf(HasSubstr("stdout"), HasSubstr("output closed")));
}

void InterruptAfterSomeText(int fd, int pid, int signal_number, std::string* text) {
  char piece[4096];
  bool sent = false;
  for (ssize_t n = 0; (n = read(fd, piece, sizeof(piece))) > 0;) {
    text->append(piece, static_cast<size_t>(n));
    if (!sent && text->size() > 20) {
      sent = true;
      EXPECT_EQ(kill(pid, signal_number), 0);
    }
  }
  close(fd);
}

TEST_F(CliTest, AnInterruptEndsTheTextWithASummary) {
  for (const int signal_number : {SIGINT, SIGTERM}) {
    std::string text;
    const RunResult run = RunIntoPipe(
        Generate(kEndless), dir_.File("pipe" + std::to_string(signal_number)),
        [&](int fd, int pid) { InterruptAfterSomeText(fd, pid, signal_number, &text); });
    EXPECT_EQ(run.exit_code, 128 + signal_number) << run.err;
    EXPECT_THAT(run.err, AllOf(HasSubstr("interrupted"), HasSubstr("tokens/s")));
    EXPECT_THAT(text, StartsWith("ab"));
  }
}

// Interrupts once the notes on stderr show that the run has begun: before any text, most likely.
TEST_F(CliTest, AnInterruptedJsonRunStillGivesOneDocument) {
  const std::string pipe = dir_.File("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  // A prompt that alone would take a minute.
  std::ofstream(dir_.File("prompt")) << std::string(49'000, 'a');
  const Arguments arguments = {
      "-f", dir_.File("prompt"), "--ignore-eos", "-n", "-2", "-c", "50000", "-t", "1", "--json"};
  RunSetup setup;
  setup.stderr_path = pipe;
  setup.meanwhile = [&](int pid) {
    const int fd = open(pipe.c_str(), O_RDONLY | O_CLOEXEC);
    std::string notes;
    char piece[4096];
    bool sent = false;
    for (ssize_t n = 0; (n = read(fd, piece, sizeof(piece))) > 0;) {
      notes.append(piece, static_cast<size_t>(n));
      if (sent || notes.find("seed: ") == std::string::npos) continue;
      sent = true;
      EXPECT_EQ(kill(pid, SIGINT), 0);
    }
    close(fd);
  };
  const RunResult run = RunSluice(Generate(arguments), setup);
  EXPECT_EQ(run.exit_code, 130);
  const json document = json::parse(run.out, nullptr, false);
  ASSERT_TRUE(document.is_object()) << run.out;
  EXPECT_EQ(document["stop"], "interrupted");
}

TEST_F(CliTest, InspectShowsWhatTheFileHolds) {
  const RunResult run = RunSluice({"inspect", model_, "--json"});
  ASSERT_EQ(run.exit_code, kOk) << run.err;
  const json document = json::parse(run.out, nullptr, false);
  ASSERT_TRUE(document.is_object()) << run.out;
  const auto file = SluiceFile::Open(model_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(document["format"], "1.1");
  EXPECT_EQ(document["file_bytes"], (*file)->file_size());
  EXPECT_EQ(document["config"]["layers"], 3);
  EXPECT_EQ(document["config"]["d_ff"], 160);
  EXPECT_EQ(document["config"]["activation"], "relu");
  EXPECT_EQ(document["bundles"]["stride"], (*file)->bundles().stride);
  EXPECT_EQ(document["bundles"]["layer_offsets"].size(), 3u);
  EXPECT_EQ(document["provenance"]["source"], "toy.gguf");
  const RunResult text = RunSluice({"inspect", model_});
  EXPECT_EQ(text.exit_code, kOk);
  EXPECT_THAT(text.out, AllOf(HasSubstr("3 layers"), HasSubstr("relu"), HasSubstr("bundles")));
}

TEST_F(CliTest, InspectShowsTheVersionOfTheFileAndNotOfTheProgram) {
  SluiceImage image = SluiceImage::Load(model_);
  StoreLe<uint16_t>(&image.bytes[10], 7);
  image.SealHeader();
  const std::string newer = dir_.File("newer.sluice");
  image.Write(newer);
  EXPECT_EQ(json::parse(RunSluice({"inspect", newer, "--json"}).out)["format"], "1.7");
  EXPECT_THAT(RunSluice({"inspect", newer}).out, HasSubstr("format 1.7"));
}

TEST_F(CliTest, VerifyPassesAGoodFileAndNamesTheDamageOfABadOne) {
  const RunResult good = RunSluice({"verify", model_});
  EXPECT_EQ(good.exit_code, kOk) << good.err;
  EXPECT_THAT(good.out, HasSubstr("480 bundles checked, 0 damaged"));
  const auto file = SluiceFile::Open(model_);
  ASSERT_TRUE(file.ok()) << file.status();
  SluiceImage image = SluiceImage::Load(model_);
  image.bytes[(*file)->bundles().BundleOffset(2, 33) + 5] ^= std::byte{1};
  const std::string damaged = dir_.File("damaged.sluice");
  image.Write(damaged);
  const RunResult bad = RunSluice({"verify", damaged});
  EXPECT_EQ(bad.exit_code, kError);
  EXPECT_THAT(bad.out, HasSubstr("1 damaged"));
  EXPECT_THAT(bad.err, AllOf(HasSubstr(damaged), HasSubstr("layer 2, neuron 33")));
}

TEST_F(CliTest, ADamagedBundleEndsGenerationWithItsName) {
  const auto file = SluiceFile::Open(model_);
  ASSERT_TRUE(file.ok()) << file.status();
  SluiceImage image = SluiceImage::Load(model_);
  const BundleLayout& b = (*file)->bundles();
  for (uint32_t p = 0; p < b.d_ff; ++p) image.bytes[b.BundleOffset(1, p)] ^= std::byte{0x7f};
  const std::string damaged = dir_.File("damaged.sluice");
  image.Write(damaged);
  for (const char* mode : {"dense", "exact"}) {
    const RunResult run =
        RunSluice({"generate", "-m", damaged, "-p", "ab", "-n", "4", "--mode", mode});
    EXPECT_EQ(run.exit_code, kError) << mode;
    EXPECT_THAT(run.err, AllOf(HasSubstr(damaged), HasSubstr("layer 1"), HasSubstr("neuron")));
  }
}

TEST_F(CliTest, RepackKeepsAnExistingFileUnlessForced) {
  const std::string out = dir_.File("out.sluice");
  WriteFile(out, "precious");
  ExpectError({"repack", gguf_, out}, kError, "--force");
  EXPECT_EQ(ReadFile(out), "precious");
  EXPECT_EQ(RunSluice({"repack", gguf_, out, "--force"}).exit_code, kOk);
  ExpectError({"repack", gguf_, gguf_, "--force"}, kError, "input");
}

}  // namespace
}  // namespace sluice
