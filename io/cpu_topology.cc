#include "io/cpu_topology.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

// A CPU mask as large as the kernel wants it: the fixed cpu_set_t ends at 1024 cores.
class CpuMask {
 public:
  explicit CpuMask(int cpus) : cpus_(cpus), set_(CPU_ALLOC(cpus)), bytes_(CPU_ALLOC_SIZE(cpus)) {
    CPU_ZERO_S(bytes_, set_);
  }
  ~CpuMask() { CPU_FREE(set_); }
  CpuMask(const CpuMask&) = delete;
  CpuMask& operator=(const CpuMask&) = delete;

  void Add(int id) { CPU_SET_S(static_cast<size_t>(id), bytes_, set_); }
  int ReadOfThisThread() { return sched_getaffinity(0, bytes_, set_) == 0 ? 0 : errno; }
  int ApplyToThisThread() const { return sched_setaffinity(0, bytes_, set_) == 0 ? 0 : errno; }
  std::vector<int> Ids() const {
    std::vector<int> ids;
    for (int id = 0; id < cpus_; ++id) {
      if (CPU_ISSET_S(static_cast<size_t>(id), bytes_, set_)) ids.push_back(id);
    }
    return ids;
  }

 private:
  int cpus_;
  cpu_set_t* set_;
  size_t bytes_;
};

std::vector<int> AllowedIds() {
  constexpr int kMostCpus = 1 << 16;
  // EINVAL: the kernel's own mask is larger.
  for (int cpus = 1024; cpus <= kMostCpus; cpus *= 2) {
    CpuMask mask(cpus);
    const int err = mask.ReadOfThisThread();
    if (err == 0) return mask.Ids();
    if (err != EINVAL) break;
  }
  return {};
}

std::optional<uint32_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint32_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

}  // namespace

std::vector<CpuCore> AllowedCores(const std::string& sysfs_root) {
  return CoresWithSpeed(AllowedIds(), sysfs_root);
}

std::vector<CpuCore> CoresWithSpeed(std::span<const int> ids, const std::string& sysfs_root) {
  std::vector<CpuCore> cores;
  for (const char* const source : {"cpu_capacity", "cpufreq/cpuinfo_max_freq"}) {
    cores.clear();
    bool any = false;
    for (const int id : ids) {
      const std::optional<uint32_t> speed =
          ReadNumber(absl::StrCat(sysfs_root, "/devices/system/cpu/cpu", id, "/", source));
      any = any || speed.has_value();
      cores.push_back({id, speed.value_or(0)});
    }
    if (any) break;
  }
  return cores;
}

std::string FormatCoreIds(const std::vector<int>& ids) {
  std::string text;
  for (size_t begin = 0; begin < ids.size();) {
    size_t end = begin + 1;
    while (end < ids.size() && ids[end] == ids[end - 1] + 1) ++end;
    absl::StrAppend(&text, text.empty() ? "" : ",", ids[begin]);
    if (end - begin > 1) absl::StrAppend(&text, "-", ids[end - 1]);
    begin = end;
  }
  return text;
}

int FastestCore(const std::vector<CpuCore>& cores) {
  const auto slower = [](const CpuCore& a, const CpuCore& b) {
    return a.speed != b.speed ? a.speed < b.speed : a.id < b.id;
  };
  const auto fastest = std::max_element(cores.begin(), cores.end(), slower);
  return fastest == cores.end() ? -1 : fastest->id;
}

std::string PinThisThread(int core, bool* granted) {
  *granted = false;
  if (core < 0) return "not pinned: no core is known";
  const std::vector<int> before = AllowedIds();
  CpuMask wanted(std::max(core + 1, 1024));
  wanted.Add(core);
  if (const int err = wanted.ApplyToThisThread(); err != 0) {
    return absl::StrCat("not pinned: sched_setaffinity to core ", core, ": ", strerror(err));
  }
  const std::vector<int> after = AllowedIds();
  *granted = after == std::vector<int>{core};
  if (!*granted) {
    return absl::StrCat("not pinned: asked for core ", core, ", got ", FormatCoreIds(after));
  }
  return absl::StrCat("core ", core, " of ", FormatCoreIds(before), ", granted");
}

}  // namespace sluice
