// Peak memory of the program as the kernel accounts it, not as the program claims: `sluice` runs as
// a child, and wait4 tells its largest resident set.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/memory_plan.h"
#include "tests/decoder_harness.h"

namespace sluice {
namespace {

constexpr uint64_t kMiB = 1 << 20;

struct ChildResult {
  int exit_code = -1;
  uint64_t peak_rss = 0;
  std::string out;
};

// Runs sluice with `args`; its stdout goes through `out_path`, its stderr is dropped.
ChildResult RunSluice(const std::vector<std::string>& args, const std::string& out_path) {
  std::vector<char*> argv = {const_cast<char*>(SLUICE_BINARY)};
  for (const std::string& a : args) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const int out = open(out_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int null = open("/dev/null", O_RDWR);
    if (out < 0 || null < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(null, 2) < 0) {
      _exit(126);
    }
    execv(argv[0], argv.data());
    _exit(127);
  }
  ChildResult result;
  int status = 0;
  rusage usage{};
  if (child < 0 || wait4(child, &status, 0, &usage) != child) return result;
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  // The kernel counts what the child was before execv as well: this process must stay small.
  result.peak_rss = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
  std::ifstream in(out_path, std::ios::binary);
  result.out.assign(std::istreambuf_iterator<char>(in), {});
  return result;
}

class MemoryTest : public testing::Test {
 protected:
  void SetUp() override {
#ifdef SLUICE_SANITIZED
    GTEST_SKIP() << "a sanitizer takes memory of its own";
#endif
  }

  ChildResult Run(const std::vector<std::string>& args) {
    return RunSluice(args, dir_.File("out"));
  }

  std::vector<std::string> GenerateArgs(const std::string& model, const std::string& budget) {
    return {"generate", "-m",           model,    "-p",           "a b", "-n",
            "6",        "-c",           "128",    "--temp",       "0",   "-t",
            "2",        "--ignore-eos", "--json", "--mem-budget", budget};
  }

  // In a child, too.
  std::string Pack(const ToyModel& toy) {
    MustBeOk(WriteToyModel(toy, dir_.File("toy.gguf")));
    EXPECT_EQ(Run({"repack", dir_.File("toy.gguf"), dir_.File("toy.sluice")}).exit_code, 0);
    return dir_.File("toy.sluice");
  }

  // The plan's smallest budget and the one that holds everything, as --dry-run tells them.
  void ExpectPeakWithinBudgets(const std::string& model) {
    std::vector<std::string> dry = GenerateArgs(model, "64G");
    dry.push_back("--dry-run");
    const ChildResult plan = Run(dry);
    ASSERT_EQ(plan.exit_code, 0);
    const auto json = nlohmann::json::parse(plan.out, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(json.contains("minimum_bytes")) << plan.out;
    const uint64_t minimum = json["minimum_bytes"], everything = json["everything_bytes"];
    for (const uint64_t percent : {0, 25, 50, 100}) {
      const uint64_t budget =
          (minimum + (everything - minimum) * percent / 100 + 1023) / 1024 * 1024;
      const ChildResult run = Run(GenerateArgs(model, absl::StrCat(budget / 1024, "K")));
      ASSERT_EQ(run.exit_code, 0) << "budget " << budget;
      EXPECT_LE(run.peak_rss, budget + kProcessBytes) << percent << " %, budget " << budget;
      const auto told = nlohmann::json::parse(run.out, nullptr, false);
      EXPECT_LE(told["peak_rss_bytes"].get<uint64_t>(), run.peak_rss + kMiB);
      EXPECT_GE(told["peak_rss_bytes"].get<uint64_t>() + 8 * kMiB, run.peak_rss);
      RecordProperty(absl::StrCat("over_budget_at_", percent),
                     absl::StrCat(static_cast<int64_t>(run.peak_rss - budget)));
    }
  }

  TempDir dir_;
};

TEST_F(MemoryTest, GenerateStaysWithinItsBudgetForASmallModel) {
  ExpectPeakWithinBudgets(Pack(ToyModel()));
}

TEST_F(MemoryTest, GenerateStaysWithinItsBudgetForAModelOfFiftyMegabytes) {
  ToyModel toy;
  toy.n_layers = 6;
  toy.d_model = 512;
  toy.d_ff = 2560;
  toy.n_heads = 8;
  toy.head_dim = 64;
  toy.type = SourceType::kF16;
  const std::string packed = Pack(toy);
  ASSERT_GT(std::filesystem::file_size(packed), 50 * kMiB);
  ExpectPeakWithinBudgets(packed);
}

TEST_F(MemoryTest, RepackTakesAtMost256MiBWhateverTheSizeOfItsInput) {
  const char* large = std::getenv("SLUICE_LARGE_TESTS");
  const bool two_gigabytes = large != nullptr && std::string(large) == "1";
  const std::string in = dir_.File("large.gguf");
  ToyModel toy;
  toy.n_layers = two_gigabytes ? 80 : 16;  // of 26 MiB each
  toy.d_model = 1024;
  toy.d_ff = 4096;
  toy.n_heads = 8;
  toy.head_dim = 64;
  toy.type = SourceType::kF16;
  toy.equal_rows = true;
  MustBeOk(WriteToyModel(toy, in));
  ASSERT_GE(std::filesystem::file_size(in), (two_gigabytes ? 2000 : 400) * kMiB);
  const ChildResult run = Run({"repack", in, dir_.File("large.sluice"), "--type", "q4"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_LE(run.peak_rss, 256 * kMiB);
  RecordProperty("peak_rss_mib", absl::StrCat(run.peak_rss / kMiB));
}

}  // namespace
}  // namespace sluice
