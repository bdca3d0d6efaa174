#include "tools/engine_flags.h"

#include <algorithm>
#include <climits>
#include <vector>

#include "absl/strings/str_format.h"
#include "io/cpu_topology.h"
#include "io/status.h"
#include "tools/flags.h"
#include "tools/run_flags.h"

namespace sluice {
namespace {

absl::Status BadChoice(const char* flag, const std::string& value, const char* known) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is \"%s\"; known are %s", flag, value, known));
}

// Asking for a core that the process may not use is a mistake, not a wish.
absl::Status ReadIoCore(int64_t wanted, const std::vector<CpuCore>& allowed, int* core) {
  SLUICE_RETURN_IF_ERROR(InRange("--io-core", wanted, -1, INT_MAX));
  *core = static_cast<int>(wanted);
  const auto is_wanted = [&](const CpuCore& c) { return c.id == *core; };
  if (wanted < 0 || std::any_of(allowed.begin(), allowed.end(), is_wanted)) {
    return absl::OkStatus();
  }
  std::vector<int> ids;
  for (const CpuCore& c : allowed) ids.push_back(c.id);
  return absl::InvalidArgumentError(
      absl::StrFormat("--io-core is %d; this process may use %s", wanted, FormatCoreIds(ids)));
}

}  // namespace

void AddEngineFlags(CLI::App& cmd, EngineFlags* flags) {
  cmd.add_option("--io-engine", flags->engine, "auto, io_uring, pread, mmap")
      ->capture_default_str();
  cmd.add_option("--direct", flags->direct, "Direct I/O: auto, on, off")->capture_default_str();
  cmd.add_option("--io-core", flags->io_core,
                 "Core of the I/O thread; -1 (default): the fastest allowed");
  cmd.add_option("--kernels", flags->kernels, "Kernel table (default: the best of this machine)")
      ->check(NotEmpty());
}

absl::Status ReadEngineFlags(const EngineFlags& flags, bool* mapped, DecoderOptions* options) {
  if (flags.engine == "io_uring") {
    options->engine = EngineKind::kUring;
  } else if (flags.engine == "pread") {
    options->engine = EngineKind::kPread;
  } else if (flags.engine == "mmap") {
    *mapped = true;
  } else if (flags.engine != "auto") {
    return BadChoice("--io-engine", flags.engine, "auto, io_uring, pread, mmap");
  }
  SLUICE_ASSIGN_OR_RETURN(options->direct, ParseDirect(flags.direct));
  if (!flags.kernels.empty()) {
    options->kernels = FindKernels(flags.kernels);
    if (options->kernels == nullptr) {
      std::string known;
      for (const KernelTable* t : AvailableKernels()) {
        known += (known.empty() ? "" : ", ") + std::string(t->name);
      }
      return BadChoice("--kernels", flags.kernels, known.c_str());
    }
  }
  if (*mapped && options->direct == DirectMode::kOn) {
    return absl::InvalidArgumentError(
        "--direct on and --io-engine mmap exclude each other: mapped weights come through the page "
        "cache; leave one of them out");
  }
  return ReadIoCore(flags.io_core, AllowedCores(), &options->io_core);
}

}  // namespace sluice
