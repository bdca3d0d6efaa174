#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "io/atomic_file.h"
#include "io/cpu_topology.h"
#include "io/device_profile.h"
#include "io/status.h"
#include "io/suite/axes.h"
#include "io/suite/effects.h"
#include "io/suite/profile_fit.h"
#include "io/suite/suite.h"
#include "tools/device_flags.h"
#include "tools/flags.h"
#include "tools/iobench_page.h"
#include "tools/iobench_report.h"
#include "tools/stop_signals.h"

namespace sluice {
namespace {

struct IobenchFlags {
  std::string file, create, suite, csv, html, profile, emulate, emulate_core = "big";
  std::string rw = "read,randread", bs = "4k,64k,512k", size, offset = "0", iodepth = "1,32";
  std::string ioengine = "io_uring", direct = "1", numjobs = "1", cpus = "any";
  double runtime = 1, ramp_time = 0.25, gate = 30;
  int repeats = 3;
  bool json = false;
};

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

// "any", "each" (one core of each speed), or core numbers.
absl::StatusOr<std::vector<int>> ParseCpus(const std::string& text) {
  if (text == "any") return std::vector<int>{-1};
  const std::vector<CpuCore> allowed = AllowedCores();
  std::vector<int> ids, chosen;
  for (const CpuCore& c : allowed) ids.push_back(c.id);
  if (text == "each") {
    std::vector<uint32_t> speeds;
    for (const CpuCore& c : allowed) {
      if (std::find(speeds.begin(), speeds.end(), c.speed) != speeds.end()) continue;
      speeds.push_back(c.speed);
      chosen.push_back(c.id);
    }
    return chosen;
  }
  for (const absl::string_view element : absl::StrSplit(text, ',')) {
    int core = 0;
    if (!absl::SimpleAtoi(element, &core)) {
      return BadValue("--cpus", std::string(element), "any, each, core numbers");
    }
    if (std::find(ids.begin(), ids.end(), core) == ids.end()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--cpus names core %d; this process may use %s", core, FormatCoreIds(ids)));
    }
    chosen.push_back(core);
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
  if (largest(axes.blocks) > 64 << 20) {
    return absl::InvalidArgumentError("--bs: a block may have at most 64M");
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

// A file of bytes that no device can compress.
absl::Status CreateFile(const std::string& path, uint64_t bytes, const StopSignals& signals) {
  AtomicFile::Options options;
  options.expected_bytes = bytes;
  SLUICE_ASSIGN_OR_RETURN(const auto out, AtomicFile::Create(path, options));
  ProgressLine line("create");
  std::vector<uint64_t> piece((1 << 20) / sizeof(uint64_t));
  std::mt19937_64 random(1);
  for (uint64_t done = 0; done < bytes;) {
    for (uint64_t& v : piece) v = random();
    const auto all = std::as_bytes(std::span(piece));
    const auto next = all.first(std::min<uint64_t>(all.size(), bytes - done));
    SLUICE_RETURN_IF_ERROR(out->WriteAt(done, next));
    done += next.size();
    if (done % (8 << 20) == 0) out->FlushBehind();
    line.Update(done, bytes);
    if (signals.received() != 0) return absl::CancelledError("stopped on request");
  }
  return out->Commit();
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  AtomicFile::Options options;
  options.overwrite = true;
  SLUICE_ASSIGN_OR_RETURN(const auto out, AtomicFile::Create(path, options));
  SLUICE_RETURN_IF_ERROR(out->WriteAt(0, std::as_bytes(std::span(text))));
  return out->Commit();
}

absl::Status ReadEmulation(const IobenchFlags& flags, LoadSpec* base) {
  if (flags.emulate.empty()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const DeviceProfile profile, DeviceProfile::Load(flags.emulate));
  base->emulated = std::make_shared<const DeviceModel>(profile.model());
  SLUICE_ASSIGN_OR_RETURN(base->emulated_core, ParseCoreClass(flags.emulate_core));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<LoadSpec>> PlanCells(const IobenchFlags& flags, uint64_t file_bytes) {
  LoadSpec base;
  base.warm_up_s = flags.ramp_time;
  base.window_s = flags.runtime;
  base.n_windows = flags.repeats;
  if (flags.offset != "0") {
    SLUICE_RETURN_IF_ERROR(Take("--offset", ParseSize(flags.offset), &base.offset));
  }
  SLUICE_RETURN_IF_ERROR(ReadEmulation(flags, &base));
  SLUICE_ASSIGN_OR_RETURN(const Axes axes, ReadAxes(flags));
  std::vector<Axes> parts = {axes};
  if (flags.suite == "phone") {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<int> cores, ParseCpus("each"));
    parts = Axes::Phone(cores);
  } else if (!flags.suite.empty()) {
    return BadValue("--suite", flags.suite, "phone");
  }
  for (const uint64_t range : flags.suite.empty() ? axes.ranges : std::vector<uint64_t>{}) {
    if (range > file_bytes) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--size %s is more than %s holds (%u bytes)", FormatSize(range), flags.file, file_bytes));
    }
  }
  std::vector<LoadSpec> specs;
  size_t n_left_out = 0;
  for (const Axes& part : parts) {
    for (const LoadSpec& spec : ExpandAxes(part, file_bytes, base, &n_left_out)) {
      specs.push_back(spec);
    }
  }
  if (n_left_out > 0 && !specs.empty()) {
    absl::FPrintF(stderr,
                  "iobench: %u cells are left out: their range holds too few blocks for their "
                  "depth and jobs\n",
                  n_left_out);
  }
  if (specs.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: has %u bytes from --offset on, too few for any of the blocks",
                        flags.file, file_bytes - std::min(base.offset, file_bytes)));
  }
  return specs;
}

void PrintProgress(size_t done, size_t total, double seconds_left) {
  if (isatty(STDERR_FILENO) != 1) return;
  absl::FPrintF(stderr, "\r\033[Kiobench: cell %u of %u, %.0f s left", std::min(done + 1, total),
                total, seconds_left);
  if (done == total) absl::FPrintF(stderr, "\r\033[K");
  fflush(stderr);
}

int RunIobench(const IobenchFlags& flags) {
  const StopSignals signals;
  if (!flags.create.empty()) {
    const auto bytes = ParseSize(flags.create);
    if (!bytes.ok()) return ReportUsage(Annotate(bytes.status(), "--create"));
    const absl::Status created = CreateFile(flags.file, *bytes, signals);
    if (absl::IsCancelled(created)) return ReportStopped(signals, flags.file);
    if (!created.ok()) return ReportError(created);
  }
  IobenchReport report;
  report.file = flags.file;
  {
    const auto file = StorageFile::Open(flags.file, DirectMode::kOff, 4096);
    if (!file.ok()) return ReportError(file.status());
    report.file_bytes = (*file)->size();
  }
  report.file_system = ReadFileSystemInfo(flags.file);
  report.kernel = KernelVersion();
  const auto specs = PlanCells(flags, report.file_bytes);
  if (!specs.ok()) return ReportUsage(specs.status());
  SuiteOptions options;
  options.gate_limit_s = flags.gate;
  options.stop = &signals.received();
  options.progress = PrintProgress;
  const absl::Status status = RunSuite(flags.file, *specs, options, &report.cells);
  if (!status.ok() && !absl::IsCancelled(status)) return ReportError(status);
  report.effects = AxisEffects(report.cells);
  const std::string text = flags.json ? IobenchJson(report) : IobenchTable(report);
  std::fwrite(text.data(), 1, text.size(), stdout);
  absl::Status written;
  if (!flags.csv.empty()) written.Update(WriteText(flags.csv, IobenchCsv(report)));
  if (!flags.html.empty()) written.Update(WriteText(flags.html, IobenchPage(report)));
  if (!flags.profile.empty()) {
    const auto profile = FitProfile(report.file_system.source + ", " + report.file_system.type,
                                    report.cells, ClassifyCores(AllowedCores()), report.file_bytes);
    if (!profile.ok()) return ReportError(Annotate(profile.status(), "--profile"));
    written.Update(WriteText(flags.profile, profile->ToJson()));
  }
  if (!written.ok()) return ReportError(written);
  if (status.ok()) return kExitOk;
  absl::FPrintF(stderr, "sluice: stopped after %u of %u cells\n", report.cells.size(),
                specs->size());
  return signals.exit_code();
}

}  // namespace

void RegisterIobench(CLI::App& app, std::function<int()>* action) {
  auto flags = std::make_shared<IobenchFlags>();
  CLI::App* cmd = app.add_subcommand("iobench", "Measure what the storage under a file can do");
  cmd->add_option("FILE,--filename", flags->file, "File or block device to read")
      ->required()
      ->check(NotEmpty());
  cmd->add_option("--create", flags->create, "Write FILE with so many random bytes first: 1G");
  cmd->add_option("--suite", flags->suite,
                  "phone: the published matrix of blocks, ranges, cores and threads");
  cmd->add_option("--rw", flags->rw, "read, randread")->capture_default_str();
  cmd->add_option("--bs", flags->bs, "Block sizes: 4k,64k or 4k-1M*4")->capture_default_str();
  cmd->add_option("--size", flags->size, "Ranges of the file (default: all of it)");
  cmd->add_option("--offset", flags->offset, "Where the range begins")->capture_default_str();
  cmd->add_option("--iodepth", flags->iodepth, "Reads in flight: 1,32 or 1-64")
      ->capture_default_str();
  cmd->add_option("--ioengine", flags->ioengine, "io_uring, pread, mmap")->capture_default_str();
  cmd->add_option("--direct", flags->direct, "1: past the page cache, 0: through it")
      ->capture_default_str();
  cmd->add_option("--numjobs", flags->numjobs, "Submitting threads")->capture_default_str();
  cmd->add_option("--cpus,--cpus_allowed", flags->cpus,
                  "Submitting cores: any, each (one of each speed), or numbers")
      ->capture_default_str();
  cmd->add_option("--runtime", flags->runtime, "Seconds of each repeat")->capture_default_str();
  cmd->add_option("--ramp_time", flags->ramp_time, "Seconds of warm-up")->capture_default_str();
  cmd->add_option("--repeats,--loops", flags->repeats, "Repeats of each cell")
      ->capture_default_str();
  cmd->add_option("--gate", flags->gate,
                  "Seconds to wait at most, before a cell, for the heat and memory at entry")
      ->capture_default_str();
  cmd->add_option("--emulate", flags->emulate,
                  "Read through an emulation of the device that this profile describes");
  cmd->add_option("--emulate-core", flags->emulate_core, "big, middle, little")
      ->capture_default_str();
  cmd->add_flag("--json", flags->json, "One JSON document on stdout");
  cmd->add_option("--csv", flags->csv, "Write a CSV file too");
  cmd->add_option("--html", flags->html, "Write a page with curves too");
  cmd->add_option("--profile", flags->profile, "Write a device profile too");
  cmd->callback([flags, action] { *action = [flags] { return RunIobench(*flags); }; });
}

}  // namespace sluice
