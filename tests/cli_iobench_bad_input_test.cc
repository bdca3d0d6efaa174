// `sluice iobench` with what cannot be: stdout holds one whole document or nothing, and the message
// names the option or the file.
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli_run.h"
#include "tests/import_test_files.h"
#include "tests/iobench_fixture.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kInterrupted = 128 + SIGINT;

class IobenchBadInputTest : public IobenchTest {};

TEST_F(IobenchBadInputTest, WhatIsNoFileIsRefusedByName) {
  ExpectError(Quick({dir_.File("missing")}), kError, dir_.File("missing"));
  ExpectError(Quick({dir_.path()}), kError, dir_.path() + ": is a directory");
  const std::string fifo = dir_.File("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  ExpectError(Quick({fifo, "--json"}), kError, fifo + ": is not a regular file");
  ExpectError(Quick({"/dev/null"}), kError, "/dev/null: is not a regular file");
  const std::string empty = dir_.File("empty");
  std::ofstream{empty};
  ExpectError(Quick({empty}), kError, empty + ": is empty");
  ExpectError(Quick({""}), kUsage, "--filename");
}

TEST_F(IobenchBadInputTest, AFileWithoutPermissionIsRefusedByName) {
  ASSERT_EQ(chmod(dir_.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(file_.c_str(), 0), 0);
  RunSetup setup;
  setup.as_nobody = true;
  const RunResult run = RunSluice(Quick({file_, "--json"}), setup);
  if (run.exit_code == kCannotRun) GTEST_SKIP() << "another user cannot run the program here";
  EXPECT_EQ(run.exit_code, kError);
  EXPECT_THAT(run.err, HasSubstr(file_ + ": cannot be opened: Permission denied"));
  EXPECT_THAT(run.out, IsEmpty());
}

TEST_F(IobenchBadInputTest, ARangeBeyondTheFileIsRefusedByItsFlag) {
  ExpectError(Quick({file_, "--size", "4M"}), kUsage, "--size 4M is more than " + file_);
  ExpectError(Quick({file_, "--size", "1M,2M", "--offset", "4k"}), kUsage,
              "--size 2M from --offset");
  ExpectError(Quick({file_, "--offset", "2M"}), kUsage, "--offset");
  ExpectError(Quick({file_, "--offset", "1T"}), kUsage, "--offset");
  ExpectError(Quick({file_, "--bs", "4M"}), kUsage, file_ + ": has 2097152 bytes");
  ExpectError(Quick({file_, "--size", "1k"}), kUsage, "no --size of that holds enough");
}

TEST_F(IobenchBadInputTest, BlocksThatDoNotFitAreLeftOutAndCounted) {
  const RunResult run =
      RunSluice(Quick({file_, "--bs", "64k,4M", "--iodepth", "1", "--rw", "read", "--json"}));
  EXPECT_EQ(run.exit_code, kOk) << run.err;
  EXPECT_THAT(run.err, HasSubstr("left out: 1 of 2 cells"));
  const json document = json::parse(run.out, nullptr, false);
  ASSERT_TRUE(document.is_object()) << run.out;
  EXPECT_EQ(document["cells"].size(), 1u);
}

TEST_F(IobenchBadInputTest, ValuesOutOfRangeAreRefusedByTheirFlag) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> bad = {
      {"--bs", {"", "0", "4x", "-4k", "4k,", "511", "65M", "64k-4k", "4k-64k*1", "4 k", "1e3"}},
      {"--size", {"", "0", "1.5M", "99999999T"}},
      {"--offset", {"x", "-1", "99999999T"}},
      {"--iodepth", {"", "0", "1025", "-1", "1-4*0", "9999999999999999999999"}},
      {"--numjobs", {"", "0", "65", "two"}},
      {"--rw", {"", "randwrite", "write", "read,trim"}},
      {"--ioengine", {"", "libaio", "pread,"}},
      {"--direct", {"", "2", "yes"}},
      {"--cpus", {"", "-1", "4095", "0,x", "big", "0-4095", "1-0", "each,0"}},
      {"--runtime", {"", "0", "-1", "nan", "inf", "1s", "1e9"}},
      {"--ramp_time", {"-1", "nan", "inf"}},
      {"--gate", {"-1", "nan", "inf"}},
      {"--repeats", {"2", "-3", "1001", "3.5", "many"}},
      {"--suite", {"", "laptop"}},
      {"--emulate", {"", dir_.File("none.json"), dir_.path(), file_}},
      {"--create", {"", "0", "1.5G", "big"}},
      {"--csv", {"", dir_.path()}},
      {"--html", {"", dir_.path()}},
      {"--profile", {"", dir_.path()}}};
  for (const auto& [flag, values] : bad) {
    for (const std::string& value : values) {
      SCOPED_TRACE(flag + "=" + value);
      const RunResult run = RunSluice({"iobench", file_, "--json", flag + "=" + value});
      EXPECT_EQ(run.exit_code, kUsage) << run.err;
      const bool names_file = flag == "--emulate" && !value.empty();
      EXPECT_THAT(run.err, HasSubstr(names_file ? value : flag));
      EXPECT_THAT(run.out, IsEmpty());
    }
  }
  ExpectError(Quick({file_, "--cpus", "4095"}), kUsage, "--cpus names core 4095");
}

TEST_F(IobenchBadInputTest, FlagsThatWouldBeIgnoredAreRefused) {
  ExpectError(Quick({file_, "--suite", "phone", "--bs", "4k"}), kUsage, "--bs");
  ExpectError(Quick({file_, "--suite", "phone", "--iodepth", "4"}), kUsage, "--iodepth");
  ExpectError(Quick({file_, "--emulate-core", "little"}), kUsage, "--emulate");
  // Before anything is measured.
  const std::string profile = dir_.File("profile");
  const Arguments long_run = {"iobench", file_, "--runtime", "1000", "--profile", profile};
  for (const char* unfit : {"--rw=read", "--direct=0", "--ioengine=mmap", "--numjobs=2"}) {
    Arguments arguments = long_run;
    arguments.push_back(unfit);
    ExpectError(arguments, kUsage, "--profile");
  }
}

TEST_F(IobenchBadInputTest, MoreThanTheMachineCanHoldIsRefused) {
  ExpectError(Quick({file_, "--bs", "512-64M", "--iodepth", "1-1024", "--numjobs", "1-64", "--size",
                     "1-1M,2-1M", "--direct", "0,1"}),
              kUsage, "more than 10000 cells");
  const std::string large = dir_.File("large");
  std::ofstream{large};
  ASSERT_EQ(truncate(large.c_str(), off_t{1} << 30), 0);
  ExpectError(Quick({large, "--bs", "64M", "--iodepth", "1024", "--numjobs", "64"}), kUsage,
              "give a smaller --bs, --iodepth, --numjobs");
}

TEST_F(IobenchBadInputTest, OutputsThatCannotBeAreRefusedBeforeAnythingIsMeasured) {
  const std::string before = ReadFile(file_), link = dir_.File("link"), page = dir_.File("page");
  std::filesystem::create_symlink(file_, link);
  ExpectError(Endless({"--html", file_}), kUsage, "--html and FILE name one file");
  ExpectError(Endless({"--csv", link}), kUsage, "--csv and FILE name one file");
  ExpectError(Endless({"--csv", page, "--html", dir_.path() + "/./page"}), kUsage,
              "--html and --csv name one file");
  ExpectError(Endless({"--html", dir_.File("none/page")}), kError,
              "--html: " + dir_.File("none/page"));
  ExpectError(Endless({"--profile", "/dev/full"}), kUsage, "--profile: /dev/full");
  EXPECT_EQ(ReadFile(file_), before);
  EXPECT_FALSE(std::filesystem::exists(page));
}

TEST_F(IobenchBadInputTest, CreateNeverReplacesNorWritesInVain) {
  const std::string before = ReadFile(file_), made = dir_.File("made");
  ExpectError(Quick({file_, "--create", "1M"}), kError, "--create: " + file_ + " exists already");
  EXPECT_EQ(ReadFile(file_), before);
  ExpectError(Quick({made, "--create", "1M", "--bs", "4x"}), kUsage, "--bs");
  ExpectError(Quick({made, "--create", "1M", "--size", "2M"}), kUsage, "--size 2M");
  ExpectError(Quick({made, "--create", "8000000T"}), kError, made + ": needs");
  ExpectError(Quick({made, "--create", "1M", "--html", made}), kUsage, "--html and FILE");
  ExpectError(Quick({dir_.File("none/made"), "--create", "1M"}), kError, dir_.File("none/made"));
  EXPECT_FALSE(std::filesystem::exists(made));
}

TEST_F(IobenchBadInputTest, AReportThatNobodyReadsIsNoSuccess) {
  RunSetup setup;
  setup.close_stdout = true;
  const Arguments arguments =
      Quick({file_, "--bs", "4k", "--iodepth", "1", "--rw", "read", "--json"});
  EXPECT_EQ(RunSluice(arguments, setup).exit_code, kError);
  setup.close_stdout = false;
  setup.stdout_path = "/dev/full";
  const RunResult full = RunSluice(arguments, setup);
  EXPECT_EQ(full.exit_code, kError);
  EXPECT_THAT(full.err, HasSubstr("stdout"));
}

TEST_F(IobenchBadInputTest, AFileThatBecomesShorterUnderACellIsNamedWithTheOffset) {
  RunSetup setup;
  setup.meanwhile = [this](int pid) {
    WaitUntil(RunsACell, pid);
    EXPECT_EQ(truncate(file_.c_str(), 4096), 0);
  };
  const RunResult run = RunSluice(Endless({}), setup);
  if (run.exit_code == kOk) GTEST_SKIP() << "no direct I/O here: a cell ends with its range";
  EXPECT_EQ(run.exit_code, kError);
  EXPECT_THAT(run.err, AllOf(HasSubstr(file_ + ": a read of 4096 bytes at "),
                             HasSubstr("the file has become shorter")));
  EXPECT_THAT(run.out, IsEmpty());
}

TEST_F(IobenchBadInputTest, ADamagedSectorUnderACellIsNamedWithItsOffset) {
  RunSetup setup;
  setup.damaged_offset = 1179648;
  for (const Arguments& more : {Arguments{}, Arguments{"--bs", "64k"}}) {
    const RunResult run = RunSluice(Endless(more), setup);
    if (run.exit_code == kCannotRun) GTEST_SKIP() << "no filter of system calls here";
    EXPECT_EQ(run.exit_code, kError);
    EXPECT_THAT(run.err, AllOf(HasSubstr(file_), HasSubstr("1179648"), HasSubstr("Input/output")));
    EXPECT_THAT(run.out, IsEmpty());
  }
}

TEST_F(IobenchBadInputTest, AnErrorKeepsTheCellsThatWereMeasuredBefore) {
  RunSetup setup;
  setup.meanwhile = [this](int pid) {
    WaitUntil(RunsACell, pid);
    usleep(300'000);
    EXPECT_EQ(truncate(file_.c_str(), 4096), 0);
  };
  const RunResult run =
      RunSluice(Quick({file_, "--bs", "4k", "--rw", "read", "--iodepth",
                       "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28",
                       "--json"}),
                setup);
  if (run.exit_code == kOk) GTEST_SKIP() << "the cells were over before";
  EXPECT_EQ(run.exit_code, kError);
  EXPECT_THAT(run.err, HasSubstr(file_));
  if (run.out.empty()) GTEST_SKIP() << "the first cell was not over before";
  const json document = json::parse(run.out, nullptr, false);
  ASSERT_TRUE(document.is_object()) << run.out;
  EXPECT_THAT(document["ended_early"].get<std::string>(), HasSubstr(file_));
  EXPECT_EQ(document["cells_planned"], 28);
  EXPECT_GT(document["cells"].size(), 0u);
  EXPECT_LT(document["cells"].size(), 28u);
}

TEST_F(IobenchBadInputTest, AnInterruptLeavesAWholeDocumentOfWhatWasMeasured) {
  for (const auto is_so : {CatchesInterrupts, RunsACell}) {
    const std::string page = dir_.File("page.html"), profile = dir_.File("profile.json");
    const RunResult run =
        RunSluice(Endless({"--html", page, "--profile", profile}), InterruptOnce(is_so));
    if (run.exit_code == kOk) GTEST_SKIP() << "no direct I/O here: a cell ends with its range";
    EXPECT_EQ(run.exit_code, kInterrupted) << run.err;
    const json document = json::parse(run.out, nullptr, false);
    ASSERT_TRUE(document.is_object()) << run.out;
    EXPECT_FALSE(document["ended_early"].is_null());
    EXPECT_THAT(run.err, AllOf(HasSubstr("stopped after 0 of 10 cells"), HasSubstr(profile)));
    EXPECT_THAT(ReadFile(page), HasSubstr("Ended early, after 0 of 10 cells"));
    EXPECT_FALSE(std::filesystem::exists(profile));
  }
}

TEST_F(IobenchBadInputTest, AnInterruptWhileTheFileIsMadeLeavesNone) {
  const std::string made = dir_.File("made");
  const RunResult run =
      RunSluice(Quick({made, "--create", "2G", "--json"}), InterruptOnce(CatchesInterrupts));
  if (run.exit_code == kError) GTEST_SKIP() << run.err;
  EXPECT_EQ(run.exit_code, kInterrupted) << run.err;
  EXPECT_THAT(run.err, HasSubstr(made));
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(made));
}

}  // namespace
}  // namespace sluice
