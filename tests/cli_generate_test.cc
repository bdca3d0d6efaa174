// `sluice generate` as its users meet it: the prompt, the streams, the budget, signals.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/sluice_file.h"
#include "tests/cli_fixture.h"
#include "tests/import_test_files.h"
#include "tests/import_test_models.h"
#include "tests/sluice_image.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

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

TEST_F(CliTest, ValuesMayLookLikeFlags) {
  const RunResult run = RunSluice(Generate({"-p", "-ngl", "-n1", "--temp", "0", "-c", "64"}));
  EXPECT_EQ(run.exit_code, kOk) << run.err;
  EXPECT_THAT(run.out, StartsWith("-ngl"));
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
  // A prompt that alone would take a minute.
  std::ofstream(dir_.File("prompt")) << std::string(49'000, 'a');
  const Arguments arguments = {
      "-f", dir_.File("prompt"), "--ignore-eos", "-n", "-2", "-c", "50000", "-t", "1", "--json"};
  const RunSetup setup = InterruptOnceItSays(dir_.File("pipe"), "seed: ");
  const RunResult run = RunSluice(Generate(arguments), setup);
  EXPECT_EQ(run.exit_code, 130);
  const json document = json::parse(run.out, nullptr, false);
  ASSERT_TRUE(document.is_object()) << run.out;
  EXPECT_EQ(document["stop"], "interrupted");
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

}  // namespace
}  // namespace sluice
