// The read merger: its splits against all splits, and against the two ways that need no thought.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "io/read_merger.h"
#include "tests/io_test_files.h"

namespace sluice {
namespace {

using Batch = std::vector<IoRequest>;

// Reads of these lengths at these distances from one another.
Batch RandomBatch(std::mt19937_64& random, size_t n, uint32_t length, uint32_t most_gap) {
  Batch batch;
  uint64_t at = 0;
  for (size_t i = 0; i < n; ++i) {
    at += 4096 * (random() % (most_gap / 4096 + 1));
    batch.push_back({.offset = at, .length = length, .dst = nullptr, .tag = 0});
    at += length;
  }
  return batch;
}

std::vector<uint64_t> Operations(const Batch& batch, std::span<const uint32_t> runs) {
  std::vector<uint64_t> bytes;
  size_t i = 0;
  for (const uint32_t run : runs) {
    const IoRequest& last = batch[i + run - 1];
    bytes.push_back(last.offset + last.length - batch[i].offset);
    i += run;
  }
  EXPECT_EQ(i, batch.size());
  return bytes;
}

// The least time of all 2^(n-1) splits.
double BestOfAll(const ReadMerger& merger, const Batch& batch) {
  double best = std::numeric_limits<double>::infinity();
  for (uint32_t cuts = 0; cuts < 1u << (batch.size() - 1); ++cuts) {
    std::vector<uint32_t> runs = {1};
    bool allowed = true;
    for (size_t i = 1; i < batch.size(); ++i) {
      const uint64_t gap = batch[i].offset - batch[i - 1].offset - batch[i - 1].length;
      if ((cuts >> (i - 1) & 1) != 0) {
        runs.push_back(1);
      } else {
        ++runs.back();
        allowed &= gap <= ReadMerger::kMostGap;
      }
    }
    const std::vector<uint64_t> operations = Operations(batch, runs);
    for (const uint64_t bytes : operations) allowed &= bytes <= ReadMerger::kMostBytes;
    if (allowed) best = std::min(best, merger.TimeNs(operations));
  }
  return best;
}

// What a read costs is no straight line over its size: two of 4 KiB beat one of 8 KiB.
DeviceProfile Bent() {
  std::vector<DeviceModel::Point> points;
  for (const auto& [block, rate] : {std::pair(4096u, 1000.0), std::pair(8192u, 900.0),
                                    std::pair(65536u, 1700.0), std::pair(524288u, 3500.0)}) {
    points.push_back(
        {.random = true, .block = block, .range = std::nullopt, .megabytes_per_second = rate});
  }
  auto model = DeviceModel::FromPoints("bent", std::move(points));
  return DeviceProfile(std::move(*model));
}

TEST(ReadMergerTest, FindsTheBestOfAllSplits) {
  std::mt19937_64 random(7);
  ReadMerger bent(Bent(), 128 << 20, {32}, 0), straight(SlowOperations(), 128 << 20, {1}, 0);
  for (int round = 0; round < 60; ++round) {
    const auto length = static_cast<uint32_t>(4096 * (1 + random() % 4));
    const size_t n = 1 + random() % 11;
    const uint32_t most_gap = 4096u << random() % 7;
    const Batch batch = RandomBatch(random, n, length, most_gap);
    for (ReadMerger* merger : {&bent, &straight}) {
      const std::vector<uint64_t> operations = Operations(batch, merger->Split(batch));
      const double best = BestOfAll(*merger, batch);
      EXPECT_NEAR(merger->modelled_ns(), best, best * 1e-4) << round;
      EXPECT_NEAR(merger->TimeNs(operations), best, best * 1e-4) << round;
    }
  }
}

TEST(ReadMergerTest, ReadsAGapThatTakesLessThanAnOperation) {
  // An operation costs as much as 25,000 bytes.
  ReadMerger merger(SlowOperations(), 128 << 20, {1}, 0);
  const auto operations = [&](uint64_t gap) {
    const Batch batch = {{.offset = 0, .length = 4096, .dst = nullptr, .tag = 0},
                         {.offset = 4096 + gap, .length = 4096, .dst = nullptr, .tag = 0}};
    return merger.Split(batch).size();
  };
  EXPECT_EQ(operations(0), 1u);
  EXPECT_EQ(operations(20'480), 1u);
  EXPECT_EQ(operations(28'672), 2u);
}

TEST(ReadMergerTest, IsNeverModelledSlowerThanOneByOneOrWholeBlobs) {
  constexpr uint64_t kBlob = 512 << 10;
  std::mt19937_64 random(3);
  for (const DeviceProfile& profile : {Bent(), SlowOperations()}) {
    ReadMerger merger(profile, 64 << 20, {32}, 0);
    for (int round = 0; round < 50; ++round) {
      const size_t n = 1 + random() % 900;  // before the gap: compilers differ in the order
      const uint32_t most_gap = 4096u << random() % 5;
      const Batch batch = RandomBatch(random, n, 4608, most_gap);
      std::vector<uint64_t> single(batch.size(), 4608), blobs;
      uint64_t last = UINT64_MAX;
      for (const IoRequest& r : batch) {
        if (r.offset / kBlob != last) blobs.push_back(kBlob);
        last = r.offset / kBlob;
      }
      merger.Split(batch);
      EXPECT_LE(merger.modelled_ns(), merger.TimeNs(single) * 1.0001);
      // An operation has at most 64 requests; of bundles that all lie together a blob has more.
      EXPECT_LE(merger.modelled_ns(), merger.TimeNs(blobs) * 1.1);
    }
  }
}

TEST(ReadMergerTest, AMarginKeepsSmallGainsFromMattering) {
  // Together they take 53.8 us, apart 58.2.
  const Batch batch = {{.offset = 0, .length = 4096, .dst = nullptr, .tag = 0},
                       {.offset = 24'576, .length = 4096, .dst = nullptr, .tag = 0}};
  ReadMerger bold(SlowOperations(), 128 << 20, {1}, 0.05),
      careful(SlowOperations(), 128 << 20, {1}, 0.1);
  EXPECT_EQ(bold.Split(batch).size(), 1u);
  EXPECT_EQ(careful.Split(batch).size(), 2u);
  EXPECT_NEAR(careful.modelled_ns(), 58'192, 10);
  EXPECT_GE(ReadMerger::MarginFor(SlowOperations()), 0.2) << "fitted";
  EXPECT_EQ(ReadMerger::MarginFor(Bent()), 0) << "a table";
}

TEST(ReadMergerTest, LeavesOverlapsDisorderAndEmptyReadsAlone) {
  ReadMerger merger(SlowOperations(), 128 << 20, {8}, 0);
  const auto runs = [&](const Batch& batch) {
    const auto split = merger.Split(batch);
    return std::vector<uint32_t>(split.begin(), split.end());
  };
  using testing::ElementsAre;
  EXPECT_THAT(runs({{8192, 4096, nullptr, 0}, {0, 4096, nullptr, 1}}), ElementsAre(1, 1));
  EXPECT_THAT(runs({{0, 8192, nullptr, 0}, {4096, 4096, nullptr, 1}}), ElementsAre(1, 1));
  EXPECT_THAT(runs({{0, 4096, nullptr, 0}, {4096, 0, nullptr, 1}}), ElementsAre(1, 1));
  EXPECT_THAT(runs({}), ElementsAre());
  constexpr uint32_t kLong = ReadMerger::kLongest + 4096;
  EXPECT_THAT(runs({{0, 4096, nullptr, 0}, {4096, 4096, nullptr, 1}, {8192, kLong, nullptr, 2}}),
              ElementsAre(2, 1));
  EXPECT_THAT(runs({{0, kLong, nullptr, 0}, {kLong, 4096, nullptr, 1}}), ElementsAre(1, 1));
}

}  // namespace
}  // namespace sluice
