#include "io/available_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace sluice {
namespace {

// The value of `key` in a file of "key value ..." lines.
std::optional<uint64_t> ReadField(const std::string& path, std::string_view key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t value = 0;
    if (words.size() < 2 || words[0] != key) continue;
    if (absl::SimpleAtoi(words[1], &value)) return value;
  }
  return std::nullopt;
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream in(path);
  uint64_t value = 0;
  if (!(in >> value)) return std::nullopt;  // "max" is no limit
  return value;
}

struct FileNames {
  const char *limit, *usage, *droppable;  // the last is a field of memory.stat
};
constexpr FileNames kV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr FileNames kV2 = {"memory.max", "memory.current", "inactive_file"};

// What is left in the group at `base` + `group` and in those around it.
uint64_t LeftInGroups(const std::string& base, std::string group, const FileNames& names) {
  uint64_t left = UINT64_MAX;
  while (true) {
    const std::string folder = base + group + "/";
    const auto limit = ReadNumber(folder + names.limit);
    const auto usage = ReadNumber(folder + names.usage);
    if (limit && usage) {
      const uint64_t droppable = ReadField(folder + "memory.stat", names.droppable).value_or(0);
      const uint64_t taken = *usage - std::min(droppable, *usage);
      left = std::min(left, *limit - std::min(taken, *limit));
    }
    if (group.empty()) return left;
    group.resize(group.find_last_of('/'));
  }
}

}  // namespace

uint64_t AvailableMemory(const std::string& root) {
  uint64_t available = UINT64_MAX;
  if (const auto kib = ReadField(root + "/proc/meminfo", "MemAvailable:")) available = *kib * 1024;
  // Lines "id:controllers:/group"; of v2 "0::/group".
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || !parts[2].starts_with('/')) continue;
    const std::string group = parts[2] == "/" ? "" : parts[2];
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (parts[1].empty()) {
      available = std::min(available, LeftInGroups(root + "/sys/fs/cgroup", group, kV2));
    } else if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      available = std::min(available, LeftInGroups(root + "/sys/fs/cgroup/memory", group, kV1));
    }
  }
  return available == UINT64_MAX ? 0 : available;
}

}  // namespace sluice
