// The parts of the storage suite that read nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "io/suite/axes.h"
#include "io/suite/effects.h"
#include "io/suite/latency_histogram.h"
#include "io/suite/offset_sequence.h"
#include "io/suite/profile_fit.h"
#include "io/suite/suite.h"
#include "io/suite/system_state.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(LatencyHistogramTest, PercentilesAreWithinABucketOfTheExactOnes) {
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> latency(11, 1.5);
  std::vector<uint64_t> exact;
  LatencyHistogram h;
  for (int i = 0; i < 50'000; ++i) {
    exact.push_back(static_cast<uint64_t>(latency(random)));
    h.Add(exact.back());
  }
  std::sort(exact.begin(), exact.end());
  for (const double q : {0.01, 0.5, 0.95, 0.99, 0.999}) {
    const uint64_t expected = exact[static_cast<size_t>(std::ceil(q * 50'000)) - 1];
    EXPECT_NEAR(static_cast<double>(h.Percentile(q)), static_cast<double>(expected),
                static_cast<double>(expected) / 64)
        << q;
  }
  EXPECT_EQ(h.max_ns(), exact.back());
  EXPECT_EQ(h.Percentile(1), exact.back());
  EXPECT_EQ(h.count(), 50'000u);
}

TEST(LatencyHistogramTest, SmallAndHugeValuesHaveTheirPlace) {
  LatencyHistogram h;
  EXPECT_EQ(h.Percentile(0.5), 0u);
  for (uint64_t ns = 0; ns < 64; ++ns) h.Add(ns);
  EXPECT_EQ(h.Percentile(0.5), 31u);
  EXPECT_EQ(h.Percentile(0), 0u);
  h.Add(UINT64_MAX);
  EXPECT_EQ(h.max_ns(), UINT64_MAX);
  EXPECT_GT(h.Percentile(1), uint64_t{1} << 39);
}

TEST(LatencyHistogramTest, MergedHistogramsCountAsOne) {
  LatencyHistogram a, b, both;
  for (uint64_t ns = 1; ns < 2000; ns += 3) {
    (ns % 2 == 0 ? a : b).Add(ns * ns);
    both.Add(ns * ns);
  }
  a.Merge(b);
  EXPECT_EQ(a.count(), both.count());
  for (const double q : {0.1, 0.5, 0.9, 1.0}) EXPECT_EQ(a.Percentile(q), both.Percentile(q));
}

TEST(BlockPermutationTest, GivesEveryBlockOnce) {
  for (const uint64_t n : {1u, 2u, 3u, 4u, 5u, 16u, 17u, 255u, 256u, 1000u, 4097u}) {
    const BlockPermutation permutation(n, 7);
    std::vector<bool> seen(n);
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t value = permutation.At(i);
      ASSERT_LT(value, n);
      ASSERT_FALSE(seen[value]) << n;
      seen[value] = true;
    }
  }
}

TEST(BlockPermutationTest, JumpsAboutInAnOrderOfTheSeed) {
  constexpr uint64_t kBlocks = 4096;
  const BlockPermutation a(kBlocks, 1), again(kBlocks, 1), b(kBlocks, 2);
  uint64_t same = 0, near = 0;
  for (uint64_t i = 0; i + 1 < kBlocks; ++i) {
    EXPECT_EQ(a.At(i), again.At(i));
    same += a.At(i) == b.At(i);
    near += a.At(i + 1) == a.At(i) + 1;
  }
  EXPECT_LT(same, 20u);
  EXPECT_LT(near, 20u);
}

std::vector<uint64_t> All(OffsetSequence sequence) {
  std::vector<uint64_t> all;
  while (const auto next = sequence.Next()) all.push_back(*next);
  return all;
}

TEST(OffsetSequenceTest, RandomJobsShareTheBlocksWithoutRepeating) {
  std::set<uint64_t> seen;
  size_t count = 0;
  for (int job = 0; job < 3; ++job) {
    for (const uint64_t block : All(OffsetSequence(true, 100, 5, job, 3, /*wraps=*/true))) {
      seen.insert(block);
      ++count;
    }
  }
  EXPECT_EQ(count, 100u);
  EXPECT_EQ(seen.size(), 100u);
}

TEST(OffsetSequenceTest, SequentialJobsHaveAPartEach) {
  EXPECT_THAT(All(OffsetSequence(false, 7, 1, 0, 2, false)), ElementsAre(0, 1, 2));
  EXPECT_THAT(All(OffsetSequence(false, 7, 1, 1, 2, false)), ElementsAre(3, 4, 5, 6));
  OffsetSequence wrapping(false, 7, 1, 1, 2, true);
  std::vector<uint64_t> first;
  for (int i = 0; i < 6; ++i) first.push_back(wrapping.Next().value());
  EXPECT_THAT(first, ElementsAre(3, 4, 5, 6, 3, 4));
  EXPECT_THAT(All(OffsetSequence(false, 1, 1, 0, 2, true)), IsEmpty()) << "no block for this job";
}

TEST(SizeTest, ReadsWhatFioUsersWrite) {
  EXPECT_EQ(ParseSize("4096").value(), 4096u);
  EXPECT_EQ(ParseSize("4k").value(), 4096u);
  EXPECT_EQ(ParseSize("4K").value(), 4096u);
  EXPECT_EQ(ParseSize("4KiB").value(), 4096u);
  EXPECT_EQ(ParseSize("2M").value(), 2u << 20);
  EXPECT_EQ(ParseSize("3G").value(), uint64_t{3} << 30);
  for (const char* bad :
       {"", "k", "0", "0k", "-4k", "4x", "4kk", "1.5M", "9999999999999T", "4 k"}) {
    EXPECT_FALSE(ParseSize(bad).ok()) << bad;
  }
  for (const uint64_t bytes : {1ull, 1000ull, 4096ull, 24576ull, 1ull << 20, 3ull << 40}) {
    EXPECT_EQ(ParseSize(FormatSize(bytes)).value(), bytes);
  }
  EXPECT_EQ(FormatSize(24576), "24k");
}

TEST(ListTest, ReadsValuesAndRanges) {
  EXPECT_THAT(ParseSizes("4k,64k").value(), ElementsAre(4096, 65536));
  EXPECT_THAT(ParseSizes("4k-64k*4,1M").value(), ElementsAre(4096, 16384, 65536, 1 << 20));
  EXPECT_THAT(ParseNumbers("1-8").value(), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(ParseNumbers("3-10*3").value(), ElementsAre(3, 9));
  EXPECT_THAT(ParseNumbers("5-5").value(), ElementsAre(5));
  for (const char* bad : {"", ",", "1,", "8-1", "1-8*1", "1-8*0", "1-8*x", "1-", "-8", "a-b"}) {
    EXPECT_FALSE(ParseNumbers(bad).ok()) << bad;
  }
}

TEST(AxesTest, EveryCombinationIsACellCutToTheFile) {
  Axes axes;
  axes.blocks = {4096, 1 << 20};
  axes.ranges = {0, 1 << 16};
  axes.depths = {1, 2, 3};
  LoadSpec base;
  base.offset = 8192;
  size_t n_left_out = 0;
  const std::vector<LoadSpec> specs = ExpandAxes(axes, 4 << 20, base, &n_left_out);
  // 1 MiB does not fit the small range, and of the three in the file random reads two deep need
  // four.
  EXPECT_EQ(specs.size(), 2u * 3u * (2u + 1u) - 2u);
  EXPECT_EQ(n_left_out, 2u * 3u + 2u);
  for (const LoadSpec& s : specs) {
    EXPECT_GE(s.range, s.block);
    EXPECT_LE(s.offset + s.range, 4u << 20);
    EXPECT_EQ(s.offset, 8192u);
  }
}

TEST(SizeTest, ShortensWhatWouldBeLong) {
  EXPECT_EQ(ShortSize(4096), "4k");
  EXPECT_EQ(ShortSize(999'999), "999999");
  EXPECT_EQ(ShortSize(100'234'567), "95.6M");
  EXPECT_EQ(ShortSize(8'972'544), "8.56M");
  EXPECT_EQ(ShortSize(uint64_t{3} << 40), "3T");
}

TEST(AxesTest, CellsAreCountedAndRepeatsLeftOut) {
  Axes axes;
  axes.blocks = {4096, 8192, 4096};
  axes.ranges = {1 << 20, 8 << 20};
  EXPECT_EQ(CountCells(axes), 2u * 3u * 2u);
  // The file ends before the second range.
  EXPECT_EQ(WithoutRepeats(ExpandAxes(axes, 1 << 20, LoadSpec())).size(), 2u * 2u);
  const std::vector<uint64_t> many(1000, 1);
  axes.blocks = axes.ranges = axes.depths = axes.jobs = many;
  axes.cores.resize(1000);
  axes.engines.resize(1000);
  axes.direct.resize(1000);
  EXPECT_EQ(CountCells(axes), UINT64_MAX);
}

TEST(AxesTest, ThePhoneSuiteCoversBlocksRangesCoresAndThreads) {
  std::set<uint32_t> blocks;
  std::set<uint64_t> ranges;
  std::set<int> cores, jobs;
  for (const Axes& part : Axes::Phone({0, 4, 7})) {
    for (const LoadSpec& s : ExpandAxes(part, uint64_t{1} << 30, LoadSpec())) {
      blocks.insert(s.block);
      ranges.insert(s.range);
      cores.insert(s.core);
      jobs.insert(s.n_jobs);
    }
  }
  EXPECT_THAT(blocks, testing::IsSupersetOf({4096, 524288}));
  EXPECT_THAT(ranges, testing::IsSupersetOf({128 << 20, 512 << 20, 1 << 30}));
  EXPECT_THAT(cores, testing::IsSupersetOf({0, 4, 7}));
  EXPECT_THAT(jobs, testing::IsSupersetOf({1, 2, 4}));
}

TEST(SpreadTest, InterpolatesBetweenRanks) {
  const Spread s = SpreadOf({30, 10, 20});
  EXPECT_DOUBLE_EQ(s.median, 20);
  EXPECT_DOUBLE_EQ(s.p5, 11);
  EXPECT_DOUBLE_EQ(s.p95, 29);
  EXPECT_DOUBLE_EQ(SpreadOf({}).median, 0);
}

// A cell whose windows had these rates, in operations a second.
CellResult CellOf(uint32_t block, uint32_t depth, std::vector<uint64_t> rates) {
  CellResult cell;
  cell.spec.block = block;
  cell.spec.depth = depth;
  cell.load.direct = true;
  for (const uint64_t rate : rates) {
    LoadWindow& w = cell.load.windows.emplace_back();
    w.ns = 1'000'000'000;
    w.operations = rate;
  }
  return cell;
}

TEST(EffectsTest, AnAxisIsJudgedOverEqualPlacesOnTheOthers) {
  const std::vector<CellResult> cells = {
      CellOf(4096, 1, {1000, 1010, 990}), CellOf(4096, 8, {3000, 3030, 2980}),
      CellOf(8192, 1, {1000, 1001, 999}), CellOf(8192, 8, {3100, 3050, 3000})};
  const auto effects = AxisEffects(cells);
  ASSERT_EQ(effects.size(), 2u);
  EXPECT_EQ(effects[0].axis, "bs");
  EXPECT_NEAR(effects[0].ratio, 2, 0.05);
  EXPECT_EQ(effects[0].verdict, EffectVerdict::kEffect);
  EXPECT_EQ(effects[1].axis, "iodepth");
  EXPECT_EQ(effects[1].from, "1");
  EXPECT_EQ(effects[1].to, "8");
  EXPECT_NEAR(effects[1].ratio, 3, 0.1);
  EXPECT_LT(effects[1].low, effects[1].ratio);
  EXPECT_GT(effects[1].high, effects[1].ratio);
  EXPECT_EQ(effects[1].n_pairs, 2u);
  EXPECT_TRUE(effects[1].over_windows) << "two pairs say too little of how pairs differ";
}

TEST(EffectsTest, ThePairsOfCellsMakeTheIntervalNotTheirWindows) {
  // Every pair agrees within itself and contradicts the others.
  std::vector<CellResult> cells;
  for (const uint32_t block : {4096u, 8192u, 16384u}) {
    cells.push_back(CellOf(block, 1, {1000, 1001, 999}));
  }
  cells.push_back(CellOf(4096, 8, {1300, 1301, 1299}));
  cells.push_back(CellOf(8192, 8, {1000, 1001, 999}));
  cells.push_back(CellOf(16384, 8, {1250, 1251, 1249}));
  const auto effects = AxisEffects(cells);
  const auto& depth = effects.back();
  EXPECT_EQ(depth.axis, "iodepth");
  EXPECT_EQ(depth.n_pairs, 3u);
  EXPECT_FALSE(depth.over_windows);
  EXPECT_LT(depth.low, 1);
  EXPECT_EQ(depth.verdict, EffectVerdict::kUndecided);
}

TEST(EffectsTest, OfDirectCountsWhatWasEffective) {
  std::vector<CellResult> cells = {CellOf(4096, 1, {1000, 1004, 998}),
                                   CellOf(4096, 1, {1900, 1901, 1902})};
  cells[1].spec.direct = cells[0].spec.direct = true;
  cells[1].load.direct = false;
  const auto effects = AxisEffects(cells);
  ASSERT_EQ(effects.size(), 1u);
  EXPECT_EQ(effects[0].axis, "direct");
  EXPECT_EQ(effects[0].from, "1");
  EXPECT_EQ(effects[0].to, "0");
}

TEST(EffectsTest, ANarrowIntervalAroundOneIsNoEffectAndAWideOneIsUndecided) {
  std::vector<CellResult> cells;
  for (const uint32_t block : {4096u, 8192u, 16384u}) {
    cells.push_back(CellOf(block, 1, {1000, 1004, 998}));
    cells.push_back(CellOf(block, 2, {1002, 1001, 1000}));
  }
  EXPECT_EQ(AxisEffects(cells).back().verdict, EffectVerdict::kNone);
  const auto few = AxisEffects(std::span(cells).first(2));
  ASSERT_EQ(few.size(), 1u);
  EXPECT_EQ(few[0].verdict, EffectVerdict::kUndecided) << "one pair may agree by chance";
  const auto unsure = AxisEffects(std::vector<CellResult>{CellOf(4096, 1, {1000, 2000, 500}),
                                                          CellOf(4096, 2, {1800, 900, 1000})});
  ASSERT_EQ(unsure.size(), 1u);
  EXPECT_EQ(unsure[0].verdict, EffectVerdict::kUndecided);
}

TEST(EffectsTest, CellsThatReadTheCacheDoNotCount) {
  std::vector<CellResult> cells = {CellOf(4096, 1, {1000, 1004, 998}),
                                   CellOf(4096, 2, {9000, 9001, 9002})};
  cells[1].load.direct = false;
  cells[1].load.cached_share = 0.5;
  EXPECT_TRUE(cells[1].reads_cache());
  EXPECT_THAT(AxisEffects(cells), IsEmpty());
}

// Rates that follow 20 us an operation and 2 GB/s exactly.
CellResult ExactCell(uint32_t block, uint32_t depth) {
  const double ns = 20'000 + block / 2.0;
  CellResult cell = CellOf(block, depth, std::vector<uint64_t>(3, static_cast<uint64_t>(1e9 / ns)));
  cell.spec.range = 1 << 30;
  return cell;
}

TEST(ProfileFitTest, FindsTheCostsThatTheCellsFollow) {
  std::vector<CellResult> cells;
  for (const uint32_t block : {4096u, 16384u, 65536u, 524288u}) {
    cells.push_back(ExactCell(block, 32));
    cells.push_back(ExactCell(block, 8));
  }
  cells.push_back(CellOf(4096, 1, {1000, 1000, 1000}));
  cells.back().spec.range = 1 << 30;
  const auto profile = FitProfile("exact", cells, {}, uint64_t{1} << 34);
  ASSERT_TRUE(profile.ok()) << profile.status();
  ASSERT_EQ(profile->fits().size(), 2u) << "one size is too few at depth 1";
  for (const CostFit& fit : profile->fits()) {
    EXPECT_NEAR(fit.operation_ns, 20'000, 100);
    EXPECT_NEAR(fit.ns_per_byte, 0.5, 0.005);
    EXPECT_LT(fit.worst_residual, 0.01);
  }
  EXPECT_EQ(profile->BestDepth(), 8u);
  EXPECT_NEAR(profile->ReadNs(65536, 1 << 30, 32), 20'000 + 65536 * 0.5, 1000);
  EXPECT_NEAR(profile->ReadNs(100'000, 1 << 30, 8), 20'000 + 100'000 * 0.5, 1000);
  const auto again = DeviceProfile::Parse(profile->ToJson(), "again");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->ToJson(), profile->ToJson());
}

TEST(ProfileFitTest, NeedsRandomReadsPastTheCache) {
  std::vector<CellResult> cells = {ExactCell(4096, 8)};
  cells[0].load.direct = false;
  EXPECT_EQ(FitProfile("x", cells, {}, 1 << 30).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(ProfileFitTest, CoresAreClassedBySpeed) {
  using C = CoreClass;
  const std::vector<CpuCore> phone = {{0, 300}, {1, 700}, {2, 700}, {3, 1024}};
  EXPECT_EQ(ClassifyCores(phone),
            (std::map<int, C>{{0, C::kLittle}, {1, C::kMiddle}, {2, C::kMiddle}, {3, C::kBig}}));
  const std::vector<CpuCore> equal = {{0, 0}, {1, 0}};
  EXPECT_EQ(ClassifyCores(equal), (std::map<int, C>{{0, C::kBig}, {1, C::kBig}}));
}

TEST(SystemStateTest, ReadsClockHeatAndMemoryBelowTheRoot) {
  const TempDir dir;
  const auto put = [&](const std::string& path, const std::string& text) {
    const std::filesystem::path full = dir.File(path);
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  };
  EXPECT_FALSE(ReadSystemState(0, dir.path()).frequency_mhz);
  EXPECT_FALSE(ReadSystemState(-1, dir.path()).temperature_c);
  put("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "1800000\n");
  put("sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", "3300000\n");
  put("sys/class/thermal/thermal_zone0/temp", "41500\n");
  put("sys/class/thermal/thermal_zone1/temp", "-274000\n");
  put("sys/class/thermal/thermal_zone2/temp", "52000\n");
  put("proc/meminfo", "MemAvailable: 1000 kB\n");
  EXPECT_EQ(ReadSystemState(0, dir.path()).frequency_mhz, 1800u);
  const SystemState any = ReadSystemState(-1, dir.path());
  EXPECT_EQ(any.frequency_mhz, 3300u);
  EXPECT_EQ(any.temperature_c, 52.0);
  EXPECT_EQ(any.available_memory, 1000u * 1024);
}

}  // namespace
}  // namespace sluice
