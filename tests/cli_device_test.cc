// What `sluice generate` knows of the storage: a profile, a short measurement, an emulated device;
// and the activations that it records.
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "predictor/activation_trace.h"
#include "tests/cli_fixture.h"
#include "tests/import_test_files.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

// Faster than any test is impatient; an operation costs as much as many bytes.
constexpr char kProfile[] = R"({"name": "test flash", "read_MBps": [
    {"pattern": "random", "block": 4096, "range": null, "core": "big", "value": 1000},
    {"pattern": "random", "block": 4096, "range": null, "core": "little", "value": 500},
    {"pattern": "random", "block": 65536, "range": null, "core": "big", "value": 8000}]})";

class CliDeviceTest : public CliTest {
 protected:
  CliDeviceTest() { WriteFile(profile_, kProfile); }

  // With the smallest budget, so that reads go on to the end; greedy.
  Arguments Small(const Arguments& more) {
    Arguments all = Generate({"-p", "hello", "-n", "24", "--temp", "0", "--ignore-eos", "-t", "1",
                              "-c", "64", "--mem-budget", LeastBudget()});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  RunResult RunSmall(const Arguments& more) {
    RunResult run = RunSluice(Small(more));
    EXPECT_EQ(run.exit_code, kOk) << run.err;
    return run;
  }

  const std::string profile_ = dir_.File("flash.json");

 private:
  static std::string LeastBudget() {
    const RunResult run = RunSluice(Generate({"--dry-run", "--json", "-t", "1", "-c", "64"}));
    const json plan = json::parse(run.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(plan.is_object()) << run.err;
    // Budgets have units of at least a KiB.
    return std::to_string(plan.value("minimum_bytes", uint64_t{0}) / 1024 + 1) + "K";
  }
};

TEST_F(CliDeviceTest, AProfileThatIsNoneIsAWrongFlag) {
  const std::string text = dir_.File("text"), other = dir_.File("other.json");
  const std::string fifo = dir_.File("fifo");  // nobody ever writes to it
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  WriteFile(text, "no profile");
  WriteFile(other, R"({"name": "empty", "read_MBps": []})");
  for (const char* flag : {"--device", "--emulate"}) {
    for (const std::string& path : {dir_.File("missing.json"), text, other, dir_.path(), model_}) {
      ExpectError(Small({flag, path}), kUsage, path);
    }
    ExpectError(Small({flag, ""}), kUsage, flag);
    ExpectError(Small({flag, dir_.path()}), kUsage, "is a directory");
    ExpectError(Small({flag, fifo}), kUsage, fifo + ": the device profile cannot be opened");
  }
  ExpectError(Small({"--emulate", profile_, "--emulate-core", "huge"}), kUsage,
              "--emulate-core is \"huge\"; known are big, middle, little");
  ExpectError(Generate({"-p", "a", "--emulate", profile_, "--io-engine", "mmap"}), kUsage,
              "--emulate and --io-engine mmap exclude each other");
}

TEST_F(CliDeviceTest, NoOutputReplacesWhatIsRead) {
  const std::string prompt = dir_.File("prompt");
  WriteFile(prompt, "a");
  const auto record = [&](const Arguments& more) {
    Arguments all = {"generate", "-m", model_, "-n", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  ExpectError(record({"-f", prompt, "--record-activations", prompt}), kUsage,
              "--record-activations and -f name one file");
  for (const char* flag : {"--device", "--emulate"}) {
    ExpectError(record({"-p", "a", flag, profile_, "--record-activations", profile_}), kUsage,
                std::string("--record-activations and ") + flag + " name one file");
    ExpectError({"plan", "-m", model_, flag, profile_, "--html", profile_}, kUsage,
                std::string("--html and ") + flag + " name one file");
  }
  ExpectError({"plan", "-m", model_, "--html", model_ + ".device.json"}, kUsage,
              "--html and the kept device profile name one file");
}

TEST_F(CliDeviceTest, TheTextDoesNotDependOnTheDeviceAndTheNotesSayWhichOneItIs) {
  const RunResult plain = RunSmall({"--device", "none"});
  EXPECT_THAT(plain.err, AllOf(HasSubstr("device: no profile, as asked"), HasSubstr("not merged"),
                               Not(HasSubstr("EMULATED"))));
  const RunResult profiled = RunSmall({"--device", profile_});
  EXPECT_EQ(profiled.out, plain.out);
  EXPECT_THAT(profiled.err, AllOf(HasSubstr("device: " + profile_), Not(HasSubstr("EMULATED")),
                                  HasSubstr("merged by the costs of test flash")));
  const RunResult emulated = RunSmall({"--emulate", profile_});
  EXPECT_EQ(emulated.out, plain.out);
  EXPECT_THAT(emulated.err, AllOf(HasSubstr("device: that of the emulation"),
                                  HasSubstr("EMULATED test flash (big core)"),
                                  HasSubstr("merged by the costs of test flash")));
  const RunResult unknown = RunSmall({"--emulate", profile_, "--emulate-core", "little", "--device",
                                      "none", "--io-engine", "pread", "--direct", "off"});
  EXPECT_EQ(unknown.out, plain.out);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("device: no profile, as asked"), HasSubstr("not merged"),
                                 HasSubstr("EMULATED test flash (little core) over pread")));
}

TEST_F(CliDeviceTest, TheJsonOfAnEmulatedRunSaysSo) {
  const auto notes = [&](const Arguments& more) {
    const json document = json::parse(RunSmall(more).out, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(document.is_object());
    std::string all;
    for (const json& note : document["notes"]) all += note.get<std::string>() + "\n";
    return all;
  };
  EXPECT_THAT(notes({"--json", "--emulate", profile_}), HasSubstr("EMULATED test flash"));
  EXPECT_THAT(notes({"--json", "--device", profile_}), Not(HasSubstr("EMULATED")));
}

TEST_F(CliDeviceTest, WithoutFlagsTheDeviceIsMeasuredWhereReadsGoOn) {
  const std::string model = dir_.File("copy.sluice");
  std::filesystem::copy_file(model_, model);
  const std::string kept = model + ".device.json";
  const auto run = [&](Arguments arguments) {
    arguments[2] = model;  // after -m
    RunResult result = RunSluice(arguments);
    EXPECT_EQ(result.exit_code, kOk) << result.err;
    return result;
  };
  // What is in memory once for all needs no profile, nor does a plan.
  EXPECT_THAT(run(Generate({"-p", "a", "-n", "2"})).err, Not(HasSubstr("device: ")));
  EXPECT_THAT(run(Small({"--dry-run"})).err, Not(HasSubstr("device: ")));
  EXPECT_FALSE(std::filesystem::exists(kept));
  const RunResult first = run(Small({}));
  // The second is of a model that is too small, or of a file system without direct I/O.
  EXPECT_THAT(first.err,
              AnyOf(HasSubstr("device: measured in "), HasSubstr("device: no profile: " + model)));
  const RunResult second = run(Small({}));
  EXPECT_EQ(second.out, first.out);
  if (std::filesystem::exists(kept)) {
    EXPECT_THAT(second.err, HasSubstr("device: measured before, kept in " + kept));
  }
  EXPECT_EQ(RunSmall({"--device", "none"}).out, first.out);
}

TEST_F(CliDeviceTest, RecordedActivationsAreATraceOfTheModel) {
  const std::string path = dir_.File("recorded.trace");
  const RunResult plain = RunSmall({"--device", "none"});
  for (const Arguments& more : {Arguments{"--device", "none"}, Arguments{"--emulate", profile_}}) {
    Arguments arguments = more;
    arguments.insert(arguments.end(), {"--record-activations", path});
    const RunResult run = RunSmall(arguments);
    EXPECT_EQ(run.out, plain.out);
    std::smatch match;
    ASSERT_TRUE(std::regex_search(run.err, match, std::regex("activations of ([0-9]+) tokens")))
        << run.err;
    EXPECT_THAT(run.err, HasSubstr("tokens are in " + path));
    const auto trace = ActivationTrace::Load(path);
    ASSERT_TRUE(trace.ok()) << trace.status();
    EXPECT_EQ(trace->n_tokens(), std::stoul(match[1]));
    EXPECT_GE(trace->n_tokens(), 23u);  // the last is not fed back
    EXPECT_GT(trace->n_active(), 0u);
    EXPECT_EQ(trace->n_layers(), ToyModel().n_layers);
    EXPECT_EQ(trace->n_neurons(), ToyModel().d_ff);
  }
}

TEST_F(CliDeviceTest, ATraceThatCannotBeWrittenIsKnownBeforeTheRun) {
  for (const std::string& path : {dir_.File("no/such/folder"), dir_.path()}) {
    ExpectError(Small({"--record-activations", path}), kError, path);
  }
  ExpectError(Small({"--record-activations", model_}), kUsage, "--record-activations");
  EXPECT_EQ(RunSluice({"verify", model_}).exit_code, kOk);
}

TEST_F(CliDeviceTest, ARunThatFailsLeavesNoTrace) {
  const std::string path = dir_.File("recorded.trace");
  RunSetup setup;
  setup.stdout_path = "/dev/full";
  const RunResult run = RunSluice(Small({"--record-activations", path}), setup);
  EXPECT_EQ(run.exit_code, kError);
  EXPECT_THAT(run.err, HasSubstr("stdout"));
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    EXPECT_EQ(entry.path().string(), profile_);
  }
}

}  // namespace
}  // namespace sluice
