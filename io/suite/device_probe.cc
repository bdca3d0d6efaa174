#include "io/suite/device_probe.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/atomic_file.h"
#include "io/clock.h"
#include "io/status.h"
#include "io/storage_file.h"
#include "io/suite/axes.h"
#include "io/suite/profile_fit.h"
#include "io/suite/suite.h"
#include "io/uring_probe.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kTie[] = "measured_on", kMemory[] = "measured_with_bytes_in_flight";
// That much of the memory that a process may have beside its budget is free at its start; the other
// is as much as the deepest queue of the largest block takes.
constexpr uint64_t kLeastMemory = 2 << 20, kMostMemory = 16 << 20;
// Ranges below this differ little on any device, and hold too few large blocks.
constexpr uint64_t kLeastRange = 128 << 20;
constexpr uint64_t kAlignment = 512 << 10;  // of the largest block

struct ProbedFile {
  uint64_t size = 0;
  std::string identity;  // what a kept profile must have been measured on
};

absl::StatusOr<ProbedFile> Identify(const std::string& path) {
  struct stat s;
  if (stat(path.c_str(), &s) != 0) return ErrnoStatus(errno, path);
  ProbedFile file;
  file.size = static_cast<uint64_t>(s.st_size);
  file.identity = absl::StrFormat("%s, inode %u, %u bytes of %d.%09d", DeviceIdentity(path),
                                  s.st_ino, s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
  return file;
}

// What is kept, if it is of this file, and as much was in flight; anything else is measured again.
std::optional<DeviceProfile> LoadKept(const std::string& kept, const ProbedFile& file,
                                      uint64_t memory) {
  constexpr size_t kLargest = 1 << 20;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(kept, ignored)) return std::nullopt;  // a FIFO would wait
  std::ifstream in(kept, std::ios::binary);
  std::string text(kLargest, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  const Json document = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object() || !document.contains(kTie) || document[kTie] != file.identity ||
      !document.contains(kMemory) || !document[kMemory].is_number() || document[kMemory] < memory) {
    return std::nullopt;
  }
  auto profile = DeviceProfile::Parse(text, kept);
  if (!profile.ok()) return std::nullopt;
  return *std::move(profile);
}

absl::Status Keep(const std::string& kept, const ProbedFile& file, uint64_t memory,
                  const DeviceProfile& profile) {
  Json document = Json::parse(profile.ToJson());
  document[kTie] = file.identity;
  document[kMemory] = memory;
  const std::string text = document.dump(2) + "\n";
  AtomicFile::Options options;
  options.overwrite = true;
  SLUICE_ASSIGN_OR_RETURN(const auto out, AtomicFile::Create(kept, options));
  SLUICE_RETURN_IF_ERROR(out->WriteAt(0, std::as_bytes(std::span(text))));
  return out->Commit();
}

// At most fourteen cells of 0.11 s. Each lies somewhere else in a file that is larger than the
// range: what one has read may be in a cache of the device or of the host of a virtual machine for
// the next one, and of a model that is much larger than such a cache it never is.
std::vector<LoadSpec> Cells(const ProbedFile& file, uint64_t range, uint64_t memory,
                            LoadEngine engine) {
  LoadSpec base;
  base.engine = engine;
  base.warm_up_s = 0.02;
  base.window_s = 0.03;
  Axes random;
  random.engines = {engine};
  random.random = {true};
  random.ranges = {std::max(range, kLeastRange)};
  random.blocks = {4096, 16384, 65536};
  random.depths = {1, 4, 32};
  Axes large = random;
  large.blocks = {524288};
  Axes stream = large;
  stream.random = {false};
  stream.depths = {4, 32};
  std::vector<LoadSpec> cells;
  for (const Axes& axes : {random, large, stream}) {
    for (const LoadSpec& spec : ExpandAxes(axes, file.size, base)) {
      if (uint64_t{spec.block} * spec.depth <= memory) cells.push_back(spec);
    }
  }
  for (size_t i = 1; i < cells.size(); ++i) {
    const uint64_t room = file.size - std::min(file.size, cells[i].range);
    cells[i].offset = room / (cells.size() - 1) * i / kAlignment * kAlignment;
  }
  return cells;
}

}  // namespace

std::string ProbeCachePath(const std::string& path) { return path + ".device.json"; }

absl::StatusOr<ProbedDevice> ProbeDevice(const std::string& path, uint64_t range, uint64_t memory,
                                         const std::atomic<int>* stop) {
  memory = std::clamp(memory, kLeastMemory, kMostMemory);
  SLUICE_ASSIGN_OR_RETURN(const ProbedFile file, Identify(path));
  const std::string kept = ProbeCachePath(path);
  if (auto profile = LoadKept(kept, file, memory)) {
    return ProbedDevice{*std::move(profile), absl::StrCat("measured before, kept in ", kept)};
  }
  const uint64_t begin_ns = NowNs();
  SLUICE_ASSIGN_OR_RETURN(const auto storage, StorageFile::Open(path, DirectMode::kAuto, 4096));
  if (!storage->direct()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": cannot be read past the page cache: ", storage->mode_note()));
  }
  const LoadEngine engine = ProbeUring(*storage).ok() ? LoadEngine::kUring : LoadEngine::kPread;
  SuiteOptions options;
  options.gate_limit_s = 0;
  options.stop = stop;
  std::vector<CellResult> results;
  SLUICE_RETURN_IF_ERROR(RunSuite(path, Cells(file, range, memory, engine), options, &results));
  const auto profile = FitProfile(absl::StrCat("a short probe of ", path), results, {}, file.size);
  if (!profile.ok() || profile->fits().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": is too small for a probe of its device"));
  }
  const absl::Status status = Keep(kept, file, memory, *profile);
  const double seconds = static_cast<double>(NowNs() - begin_ns) / 1e9;
  std::string note = absl::StrFormat("measured in %.1f s, ", seconds);
  absl::StrAppend(&note, status.ok() ? absl::StrCat("kept in ", kept)
                                     : absl::StrCat("not kept: ", status.message()));
  return ProbedDevice{*profile, std::move(note)};
}

}  // namespace sluice
