// Which cores this process may use and how fast they are, from sysfs.
#ifndef SLUICE_IO_CPU_TOPOLOGY_H_
#define SLUICE_IO_CPU_TOPOLOGY_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sluice {

struct CpuCore {
  int id = 0;
  uint32_t speed = 0;  // cpu_capacity, else cpuinfo_max_freq; 0 where neither is readable
};

// The allowed cores (affinity mask) in order of id, with speeds read below `sysfs_root` (a test
// passes a fake tree).
std::vector<CpuCore> AllowedCores(const std::string& sysfs_root = "/sys");

// The same for the given ids. All speeds come from one of the two sources, so that they compare:
// cpu_capacity if any of the cores has it.
std::vector<CpuCore> CoresWithSpeed(std::span<const int> ids, const std::string& sysfs_root);

// "0-3,6" for {0, 1, 2, 3, 6}.
std::string FormatCoreIds(const std::vector<int>& ids);

// The fastest of them; of equals the highest id, since low ids take most interrupts. -1 if empty.
int FastestCore(const std::vector<CpuCore>& cores);

// Pins the calling thread and reads the mask back. Returns a clause for the log that says what was
// granted: "core 7 of 0-7, granted" or "not pinned: ...".
std::string PinThisThread(int core, bool* granted);

}  // namespace sluice

#endif  // SLUICE_IO_CPU_TOPOLOGY_H_
