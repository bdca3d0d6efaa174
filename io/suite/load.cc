#include "io/suite/load.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/aligned_buffer.h"
#include "io/cpu_topology.h"
#include "io/emulated_device.h"
#include "io/read_engine.h"
#include "io/status.h"
#include "io/suite/load_job.h"
#include "io/suite/mmap_engine.h"
#include "io/suite/phase_clock.h"

namespace sluice {
namespace {

// The alignment that reads of this size have: its largest power of two, at most 1 MiB.
uint32_t AlignmentOf(uint32_t block) {
  return std::min<uint32_t>(1u << std::countr_zero(block), 1 << 20);
}

// The share of the pages of [offset, offset + length) that are in the page cache.
absl::StatusOr<double> CachedShare(const StorageFile& file, uint64_t offset, uint64_t length) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t begin = offset / page * page;
  const uint64_t bytes = offset + length - begin;
  void* const map =
      mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.buffered_fd(), static_cast<off_t>(begin));
  if (map == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat(file.path(), ": cannot be mapped"));
  std::vector<unsigned char> resident((bytes + page - 1) / page);
  const int result = mincore(map, bytes, resident.data());
  const int error = errno;
  munmap(map, bytes);
  if (result != 0) return ErrnoStatus(error, absl::StrCat(file.path(), ": mincore"));
  const auto cached =
      std::count_if(resident.begin(), resident.end(), [](unsigned char r) { return (r & 1) != 0; });
  return static_cast<double>(cached) / static_cast<double>(resident.size());
}

absl::StatusOr<std::unique_ptr<ReadEngine>> MakeRealEngine(const StorageFile& file,
                                                           const LoadSpec& spec) {
  if (spec.engine == LoadEngine::kMmap) return MmapEngine::Create(file);
  EngineOptions options;
  options.kind = spec.engine == LoadEngine::kUring ? EngineKind::kUring : EngineKind::kPread;
  options.depth = spec.depth;
  std::string note;
  return MakeReadEngine(file, options, &note);
}

// `device`: null, or the emulated device that all jobs share.
absl::StatusOr<std::unique_ptr<ReadEngine>> MakeLoadEngine(
    const StorageFile& file, const LoadSpec& spec, const std::shared_ptr<EmulatedDevice>& device) {
  SLUICE_ASSIGN_OR_RETURN(auto engine, MakeRealEngine(file, spec));
  if (device == nullptr) return engine;
  return std::make_unique<EmulatedEngine>(std::move(engine), device, spec.emulated_core);
}

absl::Status CheckSpec(const StorageFile& file, const LoadSpec& spec) {
  if (spec.range > file.size() || spec.offset > file.size() - spec.range) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": has ", file.size(), " bytes; a range of ", spec.range,
                     " bytes from ", spec.offset, " does not fit: give a smaller --size"));
  }
  if (spec.range / spec.block < LeastBlocks(spec)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a range of ", spec.range, " bytes holds ", spec.range / spec.block,
                     " blocks of ", spec.block, ", fewer than the ", LeastBlocks(spec),
                     " that this depth and number of jobs need: give a larger --size"));
  }
  return absl::OkStatus();
}

// In the order of its methods.
class Cell {
 public:
  explicit Cell(const LoadSpec& spec) : spec_(spec) {}
  ~Cell() { EndJobs(); }

  absl::Status Open(const std::string& path) {
    const bool direct = spec_.direct && spec_.engine != LoadEngine::kMmap;
    const uint32_t alignment = std::max<uint32_t>(AlignmentOf(spec_.block), 512);
    SLUICE_ASSIGN_OR_RETURN(
        file_, StorageFile::Open(path, direct ? DirectMode::kAuto : DirectMode::kOff, alignment));
    SLUICE_RETURN_IF_ERROR(CheckSpec(*file_, spec_));
    result_.direct = file_->direct();
    result_.direct_note = file_->mode_note();
    if (file_->direct()) return absl::OkStatus();
    posix_fadvise(file_->buffered_fd(), static_cast<off_t>(spec_.offset),
                  static_cast<off_t>(spec_.range), POSIX_FADV_DONTNEED);
    SLUICE_ASSIGN_OR_RETURN(result_.cached_share, CachedShare(*file_, spec_.offset, spec_.range));
    return absl::OkStatus();
  }

  absl::Status StartJobs() {
    std::shared_ptr<EmulatedDevice> device;
    if (spec_.emulated != nullptr) device = std::make_shared<EmulatedDevice>(*spec_.emulated);
    for (int j = 0; j < spec_.n_jobs; ++j) {
      SLUICE_ASSIGN_OR_RETURN(auto engine, MakeLoadEngine(*file_, spec_, device));
      if (j == 0) result_.engine_note = engine->description();
      SLUICE_ASSIGN_OR_RETURN(auto memory,
                              AlignedBuffer::Allocate(size_t{engine->depth()} * spec_.block));
      jobs_.push_back(
          std::make_unique<LoadJob>(*file_, spec_, j, std::move(engine), std::move(memory)));
    }
    const bool repeats = !spec_.random && file_->direct();
    clock_.emplace(PhaseClock::Plan{.warm_up_s = spec_.warm_up_s,
                                    .window_s = spec_.window_s,
                                    .n_windows = spec_.n_windows,
                                    .n_blocks = repeats ? 0 : spec_.range / spec_.block});
    for (const auto& job : jobs_) SLUICE_RETURN_IF_ERROR(job->Start(*clock_, running_));
    return absl::OkStatus();
  }

  void WaitForJobs(const std::atomic<int>* stop) {
    constexpr struct timespec kPause = {0, 2'000'000};
    while (running_ > 0) {
      if (stop != nullptr && stop->load(std::memory_order_relaxed) != 0) clock_->Stop();
      nanosleep(&kPause, nullptr);
    }
  }

  absl::StatusOr<LoadResult> Finish(const std::atomic<int>* stop) {
    EndJobs();
    if (stop != nullptr && stop->load() != 0) return absl::CancelledError("stopped on request");
    result_.pinned = spec_.core >= 0;
    for (const PhaseClock::Window& w : clock_->TakeWindows()) {
      result_.windows.push_back(
          {.ns = w.ns, .operations = w.operations, .cpu_ns = w.cpu_ns, .latency = {}});
    }
    result_.ran_out = clock_->ran_out();
    for (const auto& job : jobs_) SLUICE_RETURN_IF_ERROR(job->status());
    if (result_.windows.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(file_->path(), ": the warm-up read all ", spec_.range / spec_.block,
                       " blocks of the range: give a larger --size"));
    }
    for (const auto& job : jobs_) {
      result_.pinned = result_.pinned && job->pinned();
      for (size_t w = 0; w < result_.windows.size(); ++w) {
        result_.windows[w].latency.Merge(job->latency(w + 1));
      }
    }
    result_.affinity_note = jobs_.front()->affinity_note();
    return std::move(result_);
  }

 private:
  void EndJobs() {
    if (clock_) clock_->Stop();
    for (const auto& job : jobs_) job->Join();
  }

  const LoadSpec& spec_;
  LoadResult result_;
  std::unique_ptr<StorageFile> file_;
  std::optional<PhaseClock> clock_;
  std::atomic<int> running_{0};
  std::vector<std::unique_ptr<LoadJob>> jobs_;
};

}  // namespace

std::string_view LoadEngineName(LoadEngine engine) {
  switch (engine) {
    case LoadEngine::kUring:
      return "io_uring";
    case LoadEngine::kPread:
      return "pread";
    case LoadEngine::kMmap:
      return "mmap";
  }
  return "?";
}

uint64_t LeastBlocks(const LoadSpec& spec) {
  const bool repeats = !spec.random && spec.direct;
  return repeats ? 1 : 2 * uint64_t{spec.depth} * static_cast<uint64_t>(spec.n_jobs);
}

absl::StatusOr<LoadResult> RunLoad(const std::string& path, const LoadSpec& spec,
                                   const std::atomic<int>* stop) {
  Cell cell(spec);
  SLUICE_RETURN_IF_ERROR(cell.Open(path));
  SLUICE_RETURN_IF_ERROR(cell.StartJobs());
  cell.WaitForJobs(stop);
  return cell.Finish(stop);
}

}  // namespace sluice
