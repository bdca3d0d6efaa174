#include "io/suite/system_state.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "io/available_memory.h"

namespace sluice {
namespace {

std::optional<int64_t> ReadInteger(const std::string& path) {
  std::ifstream in(path);
  int64_t value = 0;
  if (!(in >> value)) return std::nullopt;
  return value;
}

std::optional<uint32_t> FrequencyMhz(int core, const std::string& cpus) {
  const auto khz = ReadInteger(absl::StrCat(cpus, "/cpu", core, "/cpufreq/scaling_cur_freq"));
  if (!khz || *khz <= 0) return std::nullopt;
  return static_cast<uint32_t>(*khz / 1000);
}

std::optional<uint32_t> FastestMhz(const std::string& cpus) {
  std::optional<uint32_t> fastest;
  std::error_code error;
  for (int core = 0; std::filesystem::exists(absl::StrCat(cpus, "/cpu", core), error); ++core) {
    fastest = std::max(fastest, FrequencyMhz(core, cpus));
  }
  return fastest;
}

// Zones give thousandths of a degree; one that is switched off gives 0 or less, or an error.
std::optional<double> HottestZone(const std::string& zones) {
  std::optional<double> hottest;
  std::error_code error;
  for (int zone = 0;; ++zone) {
    const std::string folder = absl::StrCat(zones, "/thermal_zone", zone);
    if (!std::filesystem::exists(folder, error)) return hottest;
    const auto value = ReadInteger(folder + "/temp");
    if (value && *value > 0) hottest = std::max(hottest, std::optional(*value / 1000.0));
  }
}

}  // namespace

SystemState ReadSystemState(int core, const std::string& root) {
  const std::string cpus = root + "/sys/devices/system/cpu";
  SystemState state;
  state.frequency_mhz = core >= 0 ? FrequencyMhz(core, cpus) : FastestMhz(cpus);
  state.temperature_c = HottestZone(root + "/sys/class/thermal");
  state.available_memory = AvailableMemory(root);
  return state;
}

FileSystemInfo ReadFileSystemInfo(const std::string& path) {
  FileSystemInfo info;
  struct stat file;
  if (stat(path.c_str(), &file) != 0) return info;
  const std::string device = absl::StrCat(major(file.st_dev), ":", minor(file.st_dev));
  // "36 35 98:0 /root /mount/point rw,noatime master:1 - ext3 /dev/root rw,errors=continue"
  std::ifstream in("/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 4 || words[2] != device) continue;
    info.type = dash[1];
    info.source = dash[2];
    info.options = absl::StrCat(words[5], ",", dash[3]);
  }
  return info;
}

std::string DeviceIdentity(const std::string& path) {
  struct stat s;
  if (stat(path.c_str(), &s) != 0) return "";
  const dev_t device = S_ISBLK(s.st_mode) ? s.st_rdev : s.st_dev;
  return absl::StrCat("device ", major(device), ":", minor(device), ", ", KernelVersion());
}

std::string KernelVersion() {
  utsname name;
  if (uname(&name) != 0) return "";
  return absl::StrCat(name.sysname, " ", name.release, " ", name.machine);
}

}  // namespace sluice
