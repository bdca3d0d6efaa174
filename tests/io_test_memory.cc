// What the system says about memory, from a fake tree of its files.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "io/available_memory.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

class AvailableMemoryTest : public testing::Test {
 protected:
  void Put(const std::string& path, const std::string& text) {
    const std::filesystem::path full = dir_.File(path);
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  void PutSystem(uint64_t gib) {
    Put("proc/meminfo", "MemTotal:       99999999 kB\nMemAvailable:   " +
                            std::to_string(gib << 20) + " kB\nBuffers: 1 kB\n");
  }
  // A v2 group.
  void PutGroup(const std::string& folder, const std::string& max, uint64_t current,
                uint64_t inactive) {
    Put(folder + "/memory.max", max + "\n");
    Put(folder + "/memory.current", std::to_string(current) + "\n");
    Put(folder + "/memory.stat",
        "anon 1\ninactive_anon 7\ninactive_file " + std::to_string(inactive) + "\n");
  }
  uint64_t Available() { return AvailableMemory(dir_.path()); }

  TempDir dir_;
};

TEST_F(AvailableMemoryTest, IsUnknownWhereNothingSaysIt) { EXPECT_EQ(Available(), 0u); }

TEST_F(AvailableMemoryTest, IsThatOfTheSystemWithoutAGroup) {
  PutSystem(5);
  EXPECT_EQ(Available(), 5 * kGiB);
}

TEST_F(AvailableMemoryTest, OfAGroupItIsWhatIsLeftAndFilePagesCountAsFree) {
  PutSystem(50);
  Put("proc/self/cgroup", "0::/user/me\n");
  PutGroup("sys/fs/cgroup/user/me", std::to_string(4 * kGiB), 3 * kGiB, kGiB);
  EXPECT_EQ(Available(), 2 * kGiB);
}

TEST_F(AvailableMemoryTest, AnOuterGroupMayHaveLess) {
  PutSystem(50);
  Put("proc/self/cgroup", "0::/user/me\n");
  PutGroup("sys/fs/cgroup/user/me", "max", 3 * kGiB, 0);
  PutGroup("sys/fs/cgroup/user", std::to_string(6 * kGiB), 5 * kGiB, 0);
  EXPECT_EQ(Available(), kGiB);
}

TEST_F(AvailableMemoryTest, InAContainerTheGroupIsTheRootOfTheTree) {
  PutSystem(50);
  Put("proc/self/cgroup", "0::/\n");
  PutGroup("sys/fs/cgroup", std::to_string(4 * kGiB), kGiB, 0);
  EXPECT_EQ(Available(), 3 * kGiB);
}

TEST_F(AvailableMemoryTest, AGroupAboveItsLimitHasNothingLeft) {
  PutSystem(50);
  Put("proc/self/cgroup", "0::/a\n");
  PutGroup("sys/fs/cgroup/a", std::to_string(kGiB), 2 * kGiB, 0);
  EXPECT_EQ(Available(), 0u);
}

TEST_F(AvailableMemoryTest, GroupsOfTheFirstVersionCountToo) {
  PutSystem(50);
  Put("proc/self/cgroup", "5:cpu:/\n4:hugetlb,memory:/docker/x\n0::/\n");
  const std::string group = "sys/fs/cgroup/memory/docker/x";
  Put(group + "/memory.limit_in_bytes", std::to_string(8 * kGiB));
  Put(group + "/memory.usage_in_bytes", std::to_string(6 * kGiB));
  Put(group + "/memory.stat",
      "inactive_file 1\ntotal_inactive_file " + std::to_string(kGiB) + "\n");
  EXPECT_EQ(Available(), 3 * kGiB);
}

TEST_F(AvailableMemoryTest, ALimitLargerThanTheMachineIsNone) {
  PutSystem(7);
  Put("proc/self/cgroup", "4:memory:/\n");
  Put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  Put("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000");
  EXPECT_EQ(Available(), 7 * kGiB);
}

}  // namespace
}  // namespace sluice
