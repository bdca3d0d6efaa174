// Cells of the storage suite on small files.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "io/fault_engine.h"
#include "io/suite/load.h"
#include "io/suite/suite.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using testing::AllOf;
using testing::Ge;
using testing::HasSubstr;
using testing::Le;

class LoadTest : public testing::Test {
 protected:
  static constexpr uint64_t kBytes = 4 << 20;

  LoadTest() { std::ofstream(path_, std::ios::binary) << std::string(kBytes, 'x'); }

  // Short: these tests look at what was read, not how fast.
  static LoadSpec Short(LoadEngine engine, bool random) {
    LoadSpec spec;
    spec.engine = engine;
    spec.random = random;
    spec.range = kBytes;
    spec.depth = 4;
    spec.warm_up_s = 0.01;
    spec.window_s = 0.02;
    return spec;
  }

  TempDir dir_;
  const std::string path_ = dir_.File("data");
};

TEST_F(LoadTest, EveryEngineReadsWhateverTheBlockAndTheNumberOfJobs) {
  for (const LoadEngine engine : {LoadEngine::kUring, LoadEngine::kPread, LoadEngine::kMmap}) {
    for (const uint32_t block : {512u, 4096u, 24576u, 1u << 18}) {
      for (const int jobs : {1, 3}) {
        LoadSpec spec = Short(engine, true);
        spec.depth = 1;
        spec.block = block;
        spec.n_jobs = jobs;
        const auto result = RunLoad(path_, spec, nullptr);
        if (engine == LoadEngine::kUring && absl::IsUnimplemented(result.status())) continue;
        ASSERT_TRUE(result.ok()) << LoadEngineName(engine) << " " << block << ": "
                                 << result.status();
        EXPECT_THAT(result->windows.size(), AllOf(Ge(1u), Le(3u)));
        uint64_t operations = 0;
        for (const LoadWindow& w : result->windows) operations += w.operations;
        EXPECT_LE(operations, kBytes / block) << "a block was read twice";
      }
    }
  }
}

TEST_F(LoadTest, ARandomCellEndsWhenEveryBlockHasBeenRead) {
  LoadSpec spec = Short(LoadEngine::kPread, true);
  spec.block = 1 << 18;
  spec.depth = 2;
  spec.window_s = 30;
  const auto result = RunLoad(path_, spec, nullptr);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->ran_out);
}

TEST_F(LoadTest, LatenciesAreCountedInTheWindowInWhichTheyEnd) {
  LoadSpec spec = Short(LoadEngine::kPread, false);
  spec.block = 4096;
  const auto result = RunLoad(path_, spec, nullptr);
  ASSERT_TRUE(result.ok()) << result.status();
  for (const LoadWindow& w : result->windows) {
    // The clock and the counts are not taken at one instant.
    EXPECT_NEAR(static_cast<double>(w.latency.count()), static_cast<double>(w.operations),
                2 * spec.depth + 0.05 * static_cast<double>(w.operations));
    EXPECT_GT(w.ns, 0u);
  }
}

TEST_F(LoadTest, WhatCannotBeReadIsRefusedByName) {
  LoadSpec spec = Short(LoadEngine::kPread, true);
  const auto refuse = [&](const std::string& path, const std::string& what) {
    const absl::Status status = RunLoad(path, spec, nullptr).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(what)) << path;
  };
  refuse(dir_.File("missing"), "missing");
  refuse(dir_.path(), "directory");
  const std::string fifo = dir_.File("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  refuse(fifo, "not a regular file");
  spec.range = kBytes + 4096;
  refuse(path_, "--size");
  spec.range = 100;
  refuse(path_, "holds 0 blocks of 4096");
}

TEST_F(LoadTest, AStopEndsACell) {
  LoadSpec spec = Short(LoadEngine::kPread, false);
  spec.window_s = 1000;
  const std::atomic<int> stop{1};
  EXPECT_TRUE(absl::IsCancelled(RunLoad(path_, spec, &stop).status()));
}

TEST_F(LoadTest, AFileThatBecomesShorterEndsTheSuiteAndKeepsWhatWasMeasured) {
  const std::vector<LoadSpec> specs(3, Short(LoadEngine::kPread, true));
  SuiteOptions options;
  options.progress = [&](size_t done, size_t, double) {
    if (done != 1) return;
    ASSERT_EQ(truncate(path_.c_str(), 4096), 0);
  };
  std::vector<CellResult> results;
  const absl::Status status = RunSuite(path_, specs, options, &results);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
  EXPECT_EQ(results.size(), 1u);
}

// Makes every read of a byte in [begin, end) fail.
auto FailingBetween(uint64_t begin, uint64_t end) {
  return [=](std::unique_ptr<ReadEngine> inner) -> std::unique_ptr<ReadEngine> {
    FaultConfig config;
    config.eio_begin = begin;
    config.eio_end = end;
    return std::make_unique<FaultEngine>(std::move(inner), config, /*direct_fd=*/-1);
  };
}

TEST_F(LoadTest, AReadThatFailsInTheMiddleOfACellEndsItByFileAndOffset) {
  for (const bool random : {false, true}) {
    for (const int jobs : {1, 3}) {
      LoadSpec spec = Short(LoadEngine::kPread, random);
      spec.block = 4096;
      spec.n_jobs = jobs;
      spec.window_s = 1000;
      spec.wrap_engine = FailingBetween(kBytes / 2, kBytes / 2 + 1);
      const absl::Status status = RunLoad(path_, spec, nullptr).status();
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(path_ + ": a read of 4096 bytes at 2097152 failed"),
                        HasSubstr("Input/output error")));
    }
  }
}

TEST_F(LoadTest, AReadThatFailsEndsTheSuiteAndKeepsTheCellsBefore) {
  std::vector<LoadSpec> specs(3, Short(LoadEngine::kPread, true));
  specs[2].wrap_engine = FailingBetween(0, kBytes);
  std::vector<CellResult> results;
  const absl::Status status = RunSuite(path_, specs, SuiteOptions(), &results);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
  EXPECT_EQ(results.size(), 2u);
}

TEST_F(LoadTest, ReadsThatCannotBeAlignedAreBufferedAndSaySo) {
  LoadSpec odd_block = Short(LoadEngine::kPread, true), odd_offset = odd_block;
  odd_block.block = 1000;
  odd_offset.offset = 1;
  odd_offset.range = kBytes - 4096;
  for (const LoadSpec& spec : {odd_block, odd_offset}) {
    const auto result = RunLoad(path_, spec, nullptr);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_FALSE(result->direct);
    EXPECT_THAT(result->direct_note, HasSubstr("buffered"));
  }
}

TEST_F(LoadTest, HolesOfAFileAreNoFigureOfItsDevice) {
  const std::string sparse = dir_.File("sparse");
  std::ofstream(sparse, std::ios::binary) << std::string(1 << 20, 'x');
  ASSERT_EQ(truncate(sparse.c_str(), kBytes), 0);
  CellResult cell;
  const auto result = RunLoad(sparse, Short(LoadEngine::kPread, true), nullptr);
  ASSERT_TRUE(result.ok()) << result.status();
  cell.load = *result;
  if (cell.load.hole_share == 0) GTEST_SKIP() << "no holes on this file system";
  EXPECT_NEAR(cell.load.hole_share, 0.75, 0.02);
  EXPECT_TRUE(cell.reads_holes());
  EXPECT_FALSE(cell.reads_device());
}

TEST_F(LoadTest, ReadsThroughTheCacheSayWhatWasInIt) {
  LoadSpec spec = Short(LoadEngine::kPread, true);
  spec.direct = false;
  // Bytes that were written and not yet flushed cannot be dropped from the cache.
  const int fd = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  const std::string dirty(kBytes / 2, 'y');
  ASSERT_EQ(pwrite(fd, dirty.data(), dirty.size(), 0), static_cast<ssize_t>(dirty.size()));
  const auto result = RunLoad(path_, spec, nullptr);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->direct);
  EXPECT_GT(result->cached_share, 0.2);
  ASSERT_EQ(fsync(fd), 0);
  close(fd);
  const auto clean = RunLoad(path_, spec, nullptr);
  ASSERT_TRUE(clean.ok()) << clean.status();
  if (clean->cached_share == 1) GTEST_SKIP() << "this file system is memory";
  EXPECT_LT(clean->cached_share, result->cached_share);
}

}  // namespace
}  // namespace sluice
