#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "io/atomic_file.h"
#include "io/cpu_topology.h"
#include "io/status.h"
#include "io/suite/axes.h"
#include "io/suite/effects.h"
#include "io/suite/profile_fit.h"
#include "io/suite/suite.h"
#include "tools/device_flags.h"
#include "tools/flags.h"
#include "tools/iobench_page.h"
#include "tools/iobench_plan.h"
#include "tools/iobench_report.h"
#include "tools/output_files.h"
#include "tools/stop_signals.h"

namespace sluice {
namespace {

// A file of bytes that no device can compress.
absl::Status CreateFile(const std::string& path, uint64_t bytes, const StopSignals& signals) {
  AtomicFile::Options options;
  options.expected_bytes = bytes;
  const auto opened = AtomicFile::Create(path, options);
  if (absl::IsAlreadyExists(opened.status())) {
    return absl::AlreadyExistsError(
        absl::StrCat("--create: ", path, " exists already; leave --create out to measure it, or ",
                     "give another name"));
  }
  SLUICE_RETURN_IF_ERROR(opened.status());
  AtomicFile* const out = opened->get();
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

void PrintProgress(size_t done, size_t total, double seconds_left) {
  if (isatty(STDERR_FILENO) != 1) return;
  absl::FPrintF(stderr, "\r\033[Kiobench: cell %u of %u, %.0f s left", std::min(done + 1, total),
                total, seconds_left);
  fflush(stderr);
}

void ClearProgress() {
  if (isatty(STDERR_FILENO) == 1) absl::FPrintF(stderr, "\r\033[K");
}

// The size that FILE has, or will have.
absl::StatusOr<uint64_t> SizeOfFile(const IobenchFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(const auto file, StorageFile::Open(flags.file, DirectMode::kOff, 4096));
  return file->size();
}

// The document on stdout, then the files.
absl::Status WriteReport(const IobenchFlags& flags, const IobenchReport& report,
                         OutputFiles& outputs) {
  const std::string text = flags.json ? IobenchJson(report) : IobenchTable(report);
  std::fwrite(text.data(), 1, text.size(), stdout);
  absl::Status status;
  if (outputs.has("--csv")) status.Update(outputs.Write("--csv", IobenchCsv(report)));
  if (outputs.has("--html")) status.Update(outputs.Write("--html", IobenchPage(report)));
  if (!outputs.has("--profile")) return status;
  if (report.ended) {
    absl::FPrintF(stderr, "sluice: %s was not written: a profile needs every cell\n",
                  flags.profile);
    return status;
  }
  std::string name = report.file_system.source + ", " + report.file_system.type;
  if (!flags.emulate.empty()) name = "EMULATED by " + flags.emulate;
  auto profile = FitProfile(name, report.cells, ClassifyCores(AllowedCores()), report.file_bytes);
  if (profile.ok() && flags.emulate.empty()) profile->SetDevice(DeviceIdentity(flags.file));
  status.Update(profile.ok() ? outputs.Write("--profile", profile->ToJson())
                             : Annotate(profile.status(), "--profile"));
  return status;
}

int MeasureAndReport(const IobenchFlags& flags, const std::vector<LoadSpec>& specs,
                     const StopSignals& signals, IobenchReport report, OutputFiles& outputs) {
  SuiteOptions options;
  options.gate_limit_s = flags.gate;
  options.stop = &signals.received();
  options.progress = PrintProgress;
  report.n_planned = specs.size();
  const absl::Status status = RunSuite(flags.file, specs, options, &report.cells);
  ClearProgress();
  const bool stopped = absl::IsCancelled(status);
  if (!status.ok()) report.ended = std::string(status.message());
  // What was measured before an error is worth its time.
  if (!status.ok() && !stopped && report.cells.empty()) return ReportError(status);
  report.effects = AxisEffects(report.cells);
  const absl::Status written = WriteReport(flags, report, outputs);
  if (!written.ok()) ReportError(written);
  if (status.ok()) return written.ok() ? kExitOk : kExitError;
  if (!stopped) ReportError(status);
  absl::FPrintF(stderr, "sluice: stopped after %u of %u cells\n", report.cells.size(),
                specs.size());
  return stopped ? signals.exit_code() : kExitError;
}

int RunIobench(const IobenchFlags& flags) {
  const StopSignals signals;
  IobenchReport report;
  report.file = flags.file;
  const bool creates = !flags.create.empty();
  const auto bytes = creates ? ParseSize(flags.create) : SizeOfFile(flags);
  if (!bytes.ok() && creates) return ReportUsage(Annotate(bytes.status(), "--create"));
  if (!bytes.ok()) return ReportError(bytes.status());
  report.file_bytes = *bytes;
  const auto specs = PlanCells(flags, *bytes);
  if (!specs.ok()) return ReportUsage(specs.status());
  if (!flags.profile.empty()) {
    const absl::Status fits = CheckCellsFit(*specs);
    if (!fits.ok()) return ReportUsage(Annotate(fits, "--profile"));
  }
  OutputFiles outputs;
  const absl::Status opened =
      outputs.Open({{"FILE", flags.file}, {"--emulate", flags.emulate}},
                   {{"--csv", flags.csv}, {"--html", flags.html}, {"--profile", flags.profile}});
  if (absl::IsInvalidArgument(opened)) return ReportUsage(opened);
  if (!opened.ok()) return ReportError(opened);
  if (creates) {
    const absl::Status created = CreateFile(flags.file, *bytes, signals);
    if (absl::IsCancelled(created)) return ReportStopped(signals, flags.file);
    if (!created.ok()) return ReportError(created);
  }
  report.file_system = ReadFileSystemInfo(flags.file);
  report.kernel = KernelVersion();
  return MeasureAndReport(flags, *specs, signals, std::move(report), outputs);
}

}  // namespace

void RegisterIobench(CLI::App& app, std::function<int()>* action) {
  auto flags = std::make_shared<IobenchFlags>();
  CLI::App* cmd = app.add_subcommand("iobench", "Measure what the storage under a file can do");
  cmd->add_option("FILE,--filename", flags->file, "File or block device to read")
      ->required()
      ->check(NotEmpty());
  cmd->add_option("--create", flags->create, "Write FILE with so many random bytes first: 1G")
      ->check(NotEmpty());
  CLI::Option* const suite =
      cmd->add_option("--suite", flags->suite,
                      "phone: the published matrix of blocks, ranges, cores and threads")
          ->check(NotEmpty());
  cmd->add_option("--rw", flags->rw, "read, randread")->capture_default_str();
  cmd->add_option("--bs", flags->bs, "Block sizes: 4k,64k or 4k-1M*4")->capture_default_str();
  cmd->add_option("--size", flags->size, "Ranges of the file (default: all of it)")
      ->check(NotEmpty());
  cmd->add_option("--offset", flags->offset, "Where the range begins")->capture_default_str();
  cmd->add_option("--iodepth", flags->iodepth, "Reads in flight: 1,32 or 1-64")
      ->capture_default_str();
  cmd->add_option("--ioengine", flags->ioengine, "io_uring, pread, mmap")->capture_default_str();
  cmd->add_option("--direct", flags->direct, "1: past the page cache, 0: through it")
      ->capture_default_str();
  cmd->add_option("--numjobs", flags->numjobs, "Submitting threads")->capture_default_str();
  cmd->add_option("--cpus,--cpus_allowed", flags->cpus,
                  "Submitting cores: any, each (one of each speed), or 0,2-3")
      ->capture_default_str();
  cmd->add_option("--runtime", flags->runtime, "Seconds of each repeat")->capture_default_str();
  cmd->add_option("--ramp_time", flags->ramp_time, "Seconds of warm-up")->capture_default_str();
  cmd->add_option("--repeats,--loops", flags->repeats, "Repeats of each cell")
      ->capture_default_str();
  cmd->add_option("--gate", flags->gate,
                  "Seconds to wait at most, before a cell, for the heat and memory at entry")
      ->capture_default_str();
  CLI::Option* const emulate =
      cmd->add_option("--emulate", flags->emulate,
                      "Read through an emulation of the device that this profile describes")
          ->check(NotEmpty());
  cmd->add_option("--emulate-core", flags->emulate_core, "big, middle, little")
      ->needs(emulate)
      ->capture_default_str();
  cmd->add_flag("--json", flags->json, "One JSON document on stdout");
  cmd->add_option("--csv", flags->csv, "Write a CSV file too")->check(NotEmpty());
  cmd->add_option("--html", flags->html, "Write a page with curves too")->check(NotEmpty());
  cmd->add_option("--profile", flags->profile, "Write a device profile too")->check(NotEmpty());
  // The suite brings these axes along.
  for (const char* axis : {"--rw", "--bs", "--size", "--iodepth", "--numjobs", "--cpus"}) {
    suite->excludes(cmd->get_option(axis));
  }
  cmd->callback([flags, action] { *action = [flags] { return RunIobench(*flags); }; });
}

}  // namespace sluice
