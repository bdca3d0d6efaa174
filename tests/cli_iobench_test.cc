// `sluice iobench` as its users meet it.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli_run.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

std::string Slurp(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

bool CatchesInterrupts(int pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/status");
  for (std::string key, value; in >> key >> value;) {
    if (key == "SigCgt:") return (std::stoull(value, nullptr, 16) >> (SIGINT - 1) & 1) != 0;
    in.ignore(4096, '\n');
  }
  return false;
}

class IobenchTest : public testing::Test {
 protected:
  IobenchTest() { std::ofstream(file_, std::ios::binary) << std::string(2 << 20, 'x'); }

  static Arguments Quick(Arguments more) {
    const Arguments quick = {"--runtime", "0.02", "--ramp_time", "0.01",
                             "--gate",    "0",    "--ioengine",  "pread"};
    more.insert(more.begin(), "iobench");
    more.insert(more.end(), quick.begin(), quick.end());
    return more;
  }

  TempDir dir_;
  const std::string file_ = dir_.File("data");
};

TEST_F(IobenchTest, EveryFormHoldsTheSameFigures) {
  const std::string csv = dir_.File("out.csv"), page = dir_.File("out.html");
  const std::string profile = dir_.File("profile.json");
  Arguments arguments = Quick({file_, "--rw", "randread", "--bs", "4k,16k", "--iodepth", "1-4*2"});
  const RunResult table = RunSluice(arguments);
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("randread"), HasSubstr("16k"), HasSubstr("MB/s")));
  for (const std::string& more : {std::string("--json"), "--csv=" + csv, "--html=" + page}) {
    arguments.push_back(more);
  }
  const RunResult run = RunSluice(arguments);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json document = json::parse(run.out, nullptr, false);
  ASSERT_TRUE(document.is_object()) << run.out;
  ASSERT_EQ(document["cells"].size(), 6u);
  for (const json& cell : document["cells"]) {
    EXPECT_GT(cell["mb_per_s"]["median"], 0.0);
    EXPECT_LE(cell["mb_per_s"]["p5"], cell["mb_per_s"]["p95"]);
    EXPECT_LE(cell["latency_us"]["p50"], cell["latency_us"]["max"]);
    EXPECT_EQ(cell["samples_mb_per_s"].size(), 3u);
    EXPECT_EQ(cell["effective"]["engine"].get<std::string>().substr(0, 5), "pread");
  }
  const std::string html = Slurp(page);
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const size_t at = html.find(begin);
  ASSERT_NE(at, std::string::npos);
  const std::string embedded =
      html.substr(at + begin.size(), html.find("</script>", at) - at - begin.size());
  EXPECT_EQ(json::parse(embedded, nullptr, false), document);
  EXPECT_THAT(html, AllOf(HasSubstr("<svg"), HasSubstr("Throughput by block size")));
  std::ifstream rows(csv);
  std::string line;
  size_t n_lines = 0;
  while (std::getline(rows, line)) ++n_lines;
  EXPECT_EQ(n_lines, 7u);
}

TEST_F(IobenchTest, WhatCannotBeMeasuredIsRefusedByName) {
  ExpectError(Quick({dir_.File("missing")}), 1, "missing");
  ExpectError(Quick({dir_.path()}), 1, "directory");
  const std::string fifo = dir_.File("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  ExpectError(Quick({fifo}), 1, "not a regular file");
  ExpectError(Quick({file_, "--size", "4M"}), 2, "--size 4M");
  ExpectError(Quick({file_, "--bs", "64M"}), 2, "too few");
  ExpectError(Quick({file_, "--bs", "4x"}), 2, "--bs");
  ExpectError(Quick({file_, "--iodepth", "0"}), 2, "--iodepth");
  ExpectError(Quick({file_, "--rw", "randwrite"}), 2, "nothing is ever written");
  ExpectError(Quick({file_, "--cpus", "4095"}), 2, "core 4095");
  ExpectError(Quick({file_, "--suite", "laptop"}), 2, "--suite");
  ExpectError(Quick({file_, "--emulate", dir_.File("none.json")}), 2, "none.json");
  ExpectError(Quick({file_, "--create", "1M"}), 1, "exists");
}

TEST_F(IobenchTest, CreatesAFileAndWritesAProfileOfIt) {
  const std::string made = dir_.File("made"), profile = dir_.File("profile.json");
  const RunResult run = RunSluice(Quick({made, "--create", "3M", "--bs", "4k,64k", "--iodepth", "4",
                                         "--rw", "randread", "--profile", profile}));
  EXPECT_EQ(std::filesystem::file_size(made), 3u << 20);
  if (run.exit_code != 0) {  // a file system without direct I/O, such as tmpfs
    EXPECT_THAT(run.err, HasSubstr("past the page cache"));
    return;
  }
  const json document = json::parse(Slurp(profile), nullptr, false);
  ASSERT_TRUE(document.is_object());
  EXPECT_EQ(document["fits"].size(), 1u);
  const RunResult emulated = RunSluice(
      Quick({made, "--bs", "4k", "--rw", "randread", "--iodepth", "4", "--emulate", profile}));
  EXPECT_EQ(emulated.exit_code, 0) << emulated.err;
}

TEST_F(IobenchTest, AnInterruptLeavesAWholeDocumentOfWhatWasMeasured) {
  // Once it catches the signal; its cells are endless.
  RunSetup setup;
  setup.meanwhile = [](int pid) {
    for (int i = 0; i < 60'000 && !CatchesInterrupts(pid); ++i) usleep(1000);
    EXPECT_EQ(kill(pid, SIGINT), 0);
  };
  const RunResult run = RunSluice({"iobench", file_, "--json", "--gate", "0", "--runtime", "1000",
                                   "--rw", "read", "--ioengine", "pread"},
                                  setup);
  if (run.exit_code == 0) GTEST_SKIP() << "no direct I/O here: a cell ends with its range";
  EXPECT_EQ(run.exit_code, 130) << run.err;
  const json document = json::parse(run.out, nullptr, false);
  EXPECT_TRUE(document.is_object()) << run.out;
  EXPECT_THAT(run.err, HasSubstr("stopped after"));
}

}  // namespace
}  // namespace sluice
