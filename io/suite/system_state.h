// What the machine was doing beside a measurement: clock, heat, memory; and on what the file lies.
// Every value may be unknown, and is then left out of reports.
#ifndef SLUICE_IO_SUITE_SYSTEM_STATE_H_
#define SLUICE_IO_SUITE_SYSTEM_STATE_H_

#include <cstdint>
#include <optional>
#include <string>

namespace sluice {

struct SystemState {
  std::optional<uint32_t> frequency_mhz;  // of the core now; of no core in particular: the fastest
  std::optional<double> temperature_c;    // of the hottest thermal zone
  uint64_t available_memory = 0;          // bytes; 0: unknown
};

// `core` -1: none in particular. Reads /proc and /sys below `root`.
SystemState ReadSystemState(int core, const std::string& root = "");

struct FileSystemInfo {
  std::string type;     // "ext4"; empty: unknown
  std::string source;   // "/dev/vda"
  std::string options;  // "rw,relatime,..."
};

// Of the file system that holds `path`, from /proc/self/mountinfo.
FileSystemInfo ReadFileSystemInfo(const std::string& path);

// Of the device that holds `path`, as this kernel names it: "device 253:0, Linux 6.1.0 aarch64".
// Empty if there is no such file.
std::string DeviceIdentity(const std::string& path);

// "Linux 6.1.0 aarch64".
std::string KernelVersion();

}  // namespace sluice

#endif  // SLUICE_IO_SUITE_SYSTEM_STATE_H_
