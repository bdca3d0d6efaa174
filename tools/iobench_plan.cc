#include "tools/iobench_plan.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "io/available_memory.h"
#include "io/cpu_topology.h"
#include "io/device_profile.h"
#include "io/status.h"
#include "io/suite/axes.h"
#include "tools/device_flags.h"

namespace sluice {
namespace {

constexpr uint64_t kMostCells = 10'000;

absl::Status BadValue(const char* flag, const std::string& value, const char* known) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s has \"%s\"; known are %s", flag, value, known));
}

// Splits a list and turns each element into a value.
template <typename T, typename F>
absl::Status ReadList(const std::string& text, F parse, std::vector<T>* out) {
  out->clear();
  for (const absl::string_view element : absl::StrSplit(text, ',')) {
    SLUICE_ASSIGN_OR_RETURN(const T value, parse(std::string(element)));
    out->push_back(value);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ParsePattern(const std::string& text) {
  if (text == "read") return false;
  if (text == "randread") return true;
  return BadValue("--rw", text, "read, randread (nothing is ever written)");
}

absl::StatusOr<LoadEngine> ParseEngine(const std::string& text) {
  if (text == "io_uring") return LoadEngine::kUring;
  if (text == "pread" || text == "psync") return LoadEngine::kPread;
  if (text == "mmap") return LoadEngine::kMmap;
  return BadValue("--ioengine", text, "io_uring, pread (also psync), mmap");
}

absl::StatusOr<bool> ParseDirect(const std::string& text) {
  if (text == "1") return true;
  if (text == "0") return false;
  return BadValue("--direct", text, "0, 1");
}

// One core of each speed.
std::vector<int> EachKindOfCore() {
  std::vector<uint32_t> speeds;
  std::vector<int> chosen;
  for (const CpuCore& c : AllowedCores()) {
    if (std::find(speeds.begin(), speeds.end(), c.speed) != speeds.end()) continue;
    speeds.push_back(c.speed);
    chosen.push_back(c.id);
  }
  return chosen;
}

// "any", "7" or "0-3".
absl::StatusOr<std::vector<int>> ParseCores(const std::string& text,
                                            const std::vector<int>& allowed) {
  if (text == "any") return std::vector<int>{-1};
  const std::vector<std::string> ends = absl::StrSplit(text, '-');
  int first = 0, last = 0;
  if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
      !absl::SimpleAtoi(ends.back(), &last) || first > last) {
    return BadValue("--cpus", text, "any, each, core numbers and ranges such as 0-3");
  }
  std::vector<int> cores;
  for (int core = first; core <= last; ++core) {
    if (std::find(allowed.begin(), allowed.end(), core) == allowed.end()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--cpus names core %d; this process may use %s", core, FormatCoreIds(allowed)));
    }
    cores.push_back(core);
  }
  return cores;
}

// "each", or a list.
absl::StatusOr<std::vector<int>> ParseCpus(const std::string& text) {
  if (text == "each") return EachKindOfCore();
  std::vector<int> allowed, chosen;
  for (const CpuCore& c : AllowedCores()) allowed.push_back(c.id);
  for (const absl::string_view element : absl::StrSplit(text, ',')) {
    SLUICE_ASSIGN_OR_RETURN(const auto cores, ParseCores(std::string(element), allowed));
    chosen.insert(chosen.end(), cores.begin(), cores.end());
  }
  return chosen;
}

template <typename T>
absl::Status Take(const char* flag, absl::StatusOr<T> value, T* out) {
  if (!value.ok()) return Annotate(value.status(), flag);
  *out = *std::move(value);
  return absl::OkStatus();
}

absl::Status CheckLimits(const Axes& axes, const IobenchFlags& flags) {
  const auto largest = [](const std::vector<uint64_t>& v) {
    return *std::max_element(v.begin(), v.end());
  };
  const auto smallest_block = *std::min_element(axes.blocks.begin(), axes.blocks.end());
  if (smallest_block < 512 || largest(axes.blocks) > 64 << 20) {
    return absl::InvalidArgumentError("--bs: a block must have 512 bytes to 64M");
  }
  if (CountCells(axes) > kMostCells) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the lists of --rw, --bs, --size, --iodepth, --ioengine, --direct, --numjobs and --cpus "
        "multiply to more than %u cells: give shorter ones",
        kMostCells));
  }
  if (largest(axes.depths) > 1024) {
    return absl::InvalidArgumentError("--iodepth: at most 1024 reads in flight");
  }
  if (largest(axes.jobs) > 64) return absl::InvalidArgumentError("--numjobs: at most 64 threads");
  if (!(flags.runtime >= 0.01 && flags.runtime <= 3600)) {
    return absl::InvalidArgumentError("--runtime must be in 0.01..3600 seconds");
  }
  if (!(flags.ramp_time >= 0 && flags.ramp_time <= 3600)) {
    return absl::InvalidArgumentError("--ramp_time must be in 0..3600 seconds");
  }
  if (flags.repeats < 3 || flags.repeats > 1000) {
    return absl::InvalidArgumentError("--repeats must be in 3..1000");
  }
  if (!(flags.gate >= 0 && flags.gate <= 86400)) {
    return absl::InvalidArgumentError("--gate must be in 0..86400 seconds");
  }
  return absl::OkStatus();
}

absl::StatusOr<Axes> ReadAxes(const IobenchFlags& flags) {
  Axes axes;
  SLUICE_RETURN_IF_ERROR(ReadList(flags.rw, ParsePattern, &axes.random));
  SLUICE_RETURN_IF_ERROR(ReadList(flags.ioengine, ParseEngine, &axes.engines));
  SLUICE_RETURN_IF_ERROR(ReadList(flags.direct, ParseDirect, &axes.direct));
  SLUICE_RETURN_IF_ERROR(Take("--bs", ParseSizes(flags.bs), &axes.blocks));
  SLUICE_RETURN_IF_ERROR(Take("--iodepth", ParseNumbers(flags.iodepth), &axes.depths));
  SLUICE_RETURN_IF_ERROR(Take("--numjobs", ParseNumbers(flags.numjobs), &axes.jobs));
  if (!flags.size.empty()) {
    SLUICE_RETURN_IF_ERROR(Take("--size", ParseSizes(flags.size), &axes.ranges));
  }
  SLUICE_ASSIGN_OR_RETURN(axes.cores, ParseCpus(flags.cpus));
  SLUICE_RETURN_IF_ERROR(CheckLimits(axes, flags));
  return axes;
}

absl::Status ReadEmulation(const IobenchFlags& flags, LoadSpec* base) {
  if (flags.emulate.empty()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const DeviceProfile profile, DeviceProfile::Load(flags.emulate));
  base->emulated = std::make_shared<const DeviceModel>(profile.model());
  SLUICE_ASSIGN_OR_RETURN(base->emulated_core, ParseCoreClass(flags.emulate_core));
  return absl::OkStatus();
}

// The memory that buffers and samples of the cells take must be there: what an overcommitted system
// promises and cannot give would end the program in the middle.
absl::Status CheckMemory(const std::vector<LoadSpec>& specs) {
  uint64_t buffers = 0, samples = 0;
  for (const LoadSpec& s : specs) {
    const auto jobs = static_cast<uint64_t>(s.n_jobs), windows = static_cast<uint64_t>(s.n_windows);
    const uint64_t latencies = jobs * (windows + 2) * sizeof(LatencyHistogram);
    buffers = std::max(buffers, jobs * s.depth * s.block + latencies);
    samples += windows * sizeof(LoadWindow);
  }
  const uint64_t available = AvailableMemory();
  if (available == 0 || buffers + samples <= available / 2) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%u cells would take %u MiB of memory, and half of what is available is %u MiB: give a "
      "smaller --bs, --iodepth, --numjobs or --repeats, or shorter lists",
      specs.size(), (buffers + samples) >> 20, available >> 21));
}

// What the lists or the suite ask for, whether it fits the file or not.
absl::StatusOr<std::vector<Axes>> AskedFor(const IobenchFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(const Axes axes, ReadAxes(flags));
  if (flags.suite.empty()) return std::vector<Axes>{axes};
  if (flags.suite != "phone") return BadValue("--suite", flags.suite, "phone");
  std::vector<Axes> parts = Axes::Phone(EachKindOfCore());
  for (Axes& part : parts) {
    part.engines = axes.engines;
    part.direct = axes.direct;
  }
  return parts;
}

// Ranges that were asked for are measured as they are or not at all; those of a suite are cut.
absl::Status CheckRanges(const IobenchFlags& flags, const Axes& axes, uint64_t bytes,
                         uint64_t offset) {
  for (const uint64_t range : axes.ranges) {
    if (range <= bytes - std::min(offset, bytes)) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("--size %s%s is more than %s holds (%u bytes)", FormatSize(range),
                        offset > 0 ? " from --offset on" : "", flags.file, bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<LoadSpec>> PlanCells(const IobenchFlags& flags, uint64_t file_bytes) {
  LoadSpec base;
  base.warm_up_s = flags.ramp_time;
  base.window_s = flags.runtime;
  base.n_windows = flags.repeats;
  if (flags.offset != "0") {
    SLUICE_RETURN_IF_ERROR(Take("--offset", ParseSize(flags.offset), &base.offset));
  }
  SLUICE_RETURN_IF_ERROR(ReadEmulation(flags, &base));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Axes> parts, AskedFor(flags));
  if (flags.suite.empty()) {
    SLUICE_RETURN_IF_ERROR(CheckRanges(flags, parts[0], file_bytes, base.offset));
  }
  std::vector<LoadSpec> specs;
  size_t n_left_out = 0;
  for (const Axes& part : parts) {
    const std::vector<LoadSpec> cells = ExpandAxes(part, file_bytes, base, &n_left_out);
    specs.insert(specs.end(), cells.begin(), cells.end());
  }
  if (specs.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: has %u bytes from --offset on, and no --size of that holds enough blocks of --bs for "
        "--iodepth and --numjobs",
        flags.file, file_bytes - std::min(base.offset, file_bytes)));
  }
  if (n_left_out > 0) {
    absl::FPrintF(stderr,
                  "sluice: left out: %u of %u cells, whose --size holds too few blocks of --bs for "
                  "their --iodepth and --numjobs\n",
                  n_left_out, n_left_out + specs.size());
  }
  specs = WithoutRepeats(specs);
  SLUICE_RETURN_IF_ERROR(CheckMemory(specs));
  return specs;
}

}  // namespace sluice
