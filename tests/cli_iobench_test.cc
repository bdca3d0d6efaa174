// `sluice iobench` as its users meet it.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

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

TEST_F(IobenchTest, EveryFormHoldsTheSameFigures) {
  // So large that fast storage is not through with it before every repeat has its share.
  std::ofstream(file_, std::ios::binary) << std::string(64 << 20, 'x');
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
  const std::string html = ReadFile(page);
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

TEST_F(IobenchTest, CreatesAFileAndWritesAProfileOfIt) {
  const std::string made = dir_.File("made"), profile = dir_.File("profile.json");
  const RunResult run = RunSluice(Quick({made, "--create", "32M", "--bs", "4k,64k", "--iodepth",
                                         "4", "--rw", "randread", "--profile", profile}));
  EXPECT_EQ(std::filesystem::file_size(made), 32u << 20);
  if (run.exit_code != 0) {  // a file system without direct I/O, such as tmpfs
    EXPECT_THAT(run.err, HasSubstr("past the page cache"));
    return;
  }
  const json document = json::parse(ReadFile(profile), nullptr, false);
  ASSERT_TRUE(document.is_object());
  EXPECT_EQ(document["fits"].size(), 1u);
  EXPECT_THAT(document["device"].get<std::string>(), HasSubstr("device "));
  const RunResult emulated =
      RunSluice(Quick({made, "--bs", "4k", "--rw", "randread", "--iodepth", "4", "--emulate",
                       profile, "--direct", "0", "--json"}));
  EXPECT_EQ(emulated.exit_code, 0) << emulated.err;
  // Not thrown out of the cache first, as a real device's would be, but read into it.
  const json cells = json::parse(emulated.out, nullptr, false)["cells"];
  EXPECT_EQ(cells[0]["effective"]["cached_share"], 1.0);
}

}  // namespace
}  // namespace sluice
