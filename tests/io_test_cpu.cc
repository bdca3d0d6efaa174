// Which cores are allowed and which is the fastest, on made-up sysfs trees.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "io/cpu_topology.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

class CpuTopologyTest : public testing::Test {
 protected:
  void Set(int core, const std::string& file, const std::string& value) {
    const std::filesystem::path path =
        dir_.File("devices/system/cpu/cpu" + std::to_string(core) + "/" + file);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << value << "\n";
  }
  std::vector<CpuCore> Cores(const std::vector<int>& ids) {
    return CoresWithSpeed(ids, dir_.path());
  }

  TempDir dir_;
};

TEST_F(CpuTopologyTest, FindsThePrimeCoreOfAPhone) {
  for (int core = 0; core < 8; ++core) {
    Set(core, "cpu_capacity", core < 4 ? "325" : core < 7 ? "828" : "1024");
    Set(core, "cpufreq/cpuinfo_max_freq", "1000000");
  }
  const std::vector<CpuCore> cores = Cores({0, 1, 2, 3, 4, 5, 6, 7});
  ASSERT_EQ(cores.size(), 8u);
  EXPECT_EQ(cores[3].speed, 325u);
  EXPECT_EQ(cores[6].speed, 828u);
  EXPECT_EQ(FastestCore(cores), 7);
}

TEST_F(CpuTopologyTest, StaysWithinTheAllowedCores) {
  for (int core = 0; core < 8; ++core) {
    Set(core, "cpu_capacity", core < 4 ? "325" : core < 7 ? "828" : "1024");
  }
  EXPECT_EQ(FastestCore(Cores({0, 1, 4})), 4);
  EXPECT_EQ(FastestCore(Cores({2, 1})), 2);
}

TEST_F(CpuTopologyTest, TakesFrequenciesWhereThereAreNoCapacities) {
  Set(0, "cpufreq/cpuinfo_max_freq", "2900000");
  Set(1, "cpufreq/cpuinfo_max_freq", "1800000");
  const std::vector<CpuCore> cores = Cores({0, 1});
  EXPECT_EQ(cores[0].speed, 2'900'000u);
  EXPECT_EQ(FastestCore(cores), 0);
}

TEST_F(CpuTopologyTest, NeverComparesACapacityWithAFrequency) {
  Set(0, "cpu_capacity", "1024");
  Set(1, "cpufreq/cpuinfo_max_freq", "1800000");
  const std::vector<CpuCore> cores = Cores({0, 1});
  EXPECT_EQ(cores[1].speed, 0u);
  EXPECT_EQ(FastestCore(cores), 0);
}

TEST_F(CpuTopologyTest, OfEqualsTakesTheHighestId) {
  for (int core = 0; core < 4; ++core) Set(core, "cpu_capacity", "1024");
  EXPECT_EQ(FastestCore(Cores({0, 1, 2, 3})), 3);
}

TEST_F(CpuTopologyTest, KnowsNoSpeedsWhereTheFilesAreMissingOrDamaged) {
  Set(0, "cpu_capacity", "fast");
  const std::vector<CpuCore> cores = Cores({0, 1});
  EXPECT_EQ(cores[0].speed, 0u);
  EXPECT_EQ(cores[1].speed, 0u);
  EXPECT_EQ(FastestCore(cores), 1);
  EXPECT_EQ(FastestCore({}), -1);
}

TEST(PinThisThreadTest, PinsToAnAllowedCoreAndSaysSo) {
  const std::vector<CpuCore> allowed = AllowedCores();
  ASSERT_FALSE(allowed.empty());
  const int core = allowed.back().id;
  std::thread([core] {
    bool granted = false;
    const std::string note = PinThisThread(core, &granted);
    EXPECT_TRUE(granted) << note;
    EXPECT_THAT(note, HasSubstr("core " + std::to_string(core) + " of "));
    EXPECT_THAT(note, HasSubstr("granted"));
    EXPECT_EQ(sched_getcpu(), core);
    ASSERT_EQ(AllowedCores().size(), 1u);
  }).join();
  EXPECT_EQ(AllowedCores().size(), allowed.size());
}

TEST(PinThisThreadTest, SaysWhyItCannotPin) {
  std::thread([] {
    bool granted = true;
    EXPECT_THAT(PinThisThread(60'000, &granted), HasSubstr("not pinned: "));
    EXPECT_FALSE(granted);
    granted = true;
    EXPECT_THAT(PinThisThread(-1, &granted), HasSubstr("not pinned: "));
    EXPECT_FALSE(granted);
  }).join();
}

}  // namespace
}  // namespace sluice
