// The program as its users meet it: what all commands share. Exit codes, messages, what goes to
// which stream, and what happens when a stream goes away.
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli_fixture.h"
#include "tests/import_test_files.h"
#include "tests/sluice_image.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

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

}  // namespace
}  // namespace sluice
