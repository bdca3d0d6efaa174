#include "io/suite/load.h"

#include <fcntl.h>
#include <time.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/aligned_buffer.h"
#include "io/available_memory.h"
#include "io/cpu_topology.h"
#include "io/emulated_device.h"
#include "io/pread_engine.h"
#include "io/status.h"
#include "io/suite/load_job.h"
#include "io/suite/mmap_engine.h"
#include "io/suite/phase_clock.h"
#include "io/suite/range_state.h"
#include "io/uring_engine.h"
#include "io/uring_probe.h"

namespace sluice {
namespace {

constexpr uint32_t kSector = 512;  // what direct reads must be aligned to at least

// The alignment that the reads of a cell have: a power of two, at most 1 MiB.
uint32_t AlignmentOf(const LoadSpec& spec) {
  return 1u << std::min(std::countr_zero(spec.offset | spec.block), 20);
}

absl::StatusOr<std::unique_ptr<ReadEngine>> MakeRealEngine(const StorageFile& file,
                                                           const LoadSpec& spec) {
  if (spec.engine == LoadEngine::kMmap) return MmapEngine::Create(file);
  if (spec.engine == LoadEngine::kPread) return PreadEngine::Create(spec.depth);
  auto uring = UringEngine::Create(file, spec.depth, {});
  if (!uring.ok()) return Annotate(uring.status(), "--ioengine io_uring");
  return uring;
}

// `device`: null, or the emulated device that all jobs share.
absl::StatusOr<std::unique_ptr<ReadEngine>> MakeLoadEngine(
    const StorageFile& file, const LoadSpec& spec, const std::shared_ptr<EmulatedDevice>& device) {
  SLUICE_ASSIGN_OR_RETURN(auto engine, MakeRealEngine(file, spec));
  if (spec.wrap_engine) engine = spec.wrap_engine(std::move(engine));
  if (device == nullptr) return engine;
  return std::make_unique<EmulatedEngine>(std::move(engine), device, spec.emulated_core);
}

absl::Status CheckUring(const StorageFile& file) {
  const absl::Status probed = ProbeUring(file);
  if (probed.ok()) return probed;
  return absl::Status(probed.code(), absl::StrCat("--ioengine io_uring does not work here: ",
                                                  probed.message(), "; use --ioengine pread"));
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
    SLUICE_RETURN_IF_ERROR(OpenFile(path));
    SLUICE_RETURN_IF_ERROR(CheckSpec(*file_, spec_));
    if (spec_.engine == LoadEngine::kUring) SLUICE_RETURN_IF_ERROR(CheckUring(*file_));
    result_.direct = file_->direct();
    result_.hole_share = HoleShare(*file_, spec_.offset, spec_.range);
    return absl::OkStatus();
  }

  // Out of the page cache with the range, or into it: an emulated device is to wait for its model,
  // not for the real one below.
  absl::Status PrepareCache(const std::atomic<int>* stop) {
    if (file_->direct()) return absl::OkStatus();
    if (spec_.emulated == nullptr) {
      posix_fadvise(file_->buffered_fd(), static_cast<off_t>(spec_.offset),
                    static_cast<off_t>(spec_.range), POSIX_FADV_DONTNEED);
    } else if (spec_.range <= AvailableMemory() / 2) {
      SLUICE_RETURN_IF_ERROR(ReadThrough(*file_, spec_.offset, spec_.range, stop));
    }
    SLUICE_ASSIGN_OR_RETURN(result_.cached_share, CachedShare(*file_, spec_.offset, spec_.range));
    return absl::OkStatus();
  }

  absl::Status StartJobs() {
    if (spec_.emulated != nullptr) device_ = std::make_shared<EmulatedDevice>(*spec_.emulated);
    for (int j = 0; j < spec_.n_jobs; ++j) {
      SLUICE_ASSIGN_OR_RETURN(auto engine, MakeLoadEngine(*file_, spec_, device_));
      if (j == 0) result_.engine_note = engine->description();
      // At least as much as gets huge pages, as the memory of a model does: a read into many small
      // ones is spread over as many places, for which a device takes up to twice as long.
      constexpr size_t kHugePages = 4 << 20;
      const size_t bytes = std::max(size_t{engine->depth()} * spec_.block, kHugePages);
      auto memory = AlignedBuffer::Allocate(bytes);
      if (!memory.ok()) return Annotate(memory.status(), "buffers for --iodepth reads of --bs");
      jobs_.push_back(
          std::make_unique<LoadJob>(*file_, spec_, j, std::move(engine), *std::move(memory)));
    }
    const bool repeats = !spec_.random && MayReadAgain(*file_, spec_);
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
    for (const auto& job : jobs_) {
      result_.pinned = result_.pinned && job->pinned();
      for (size_t w = 0; w < result_.windows.size(); ++w) {
        result_.windows[w].latency.Merge(job->latency(w + 1));
      }
    }
    result_.affinity_note = jobs_.front()->affinity_note();
    if (device_ != nullptr) result_.late_share = device_->late_share();
    return std::move(result_);
  }

 private:
  // Direct if that was asked for, works, and means anything.
  absl::Status OpenFile(const std::string& path) {
    const uint32_t alignment = AlignmentOf(spec_), block = std::max(alignment, kSector);
    SLUICE_ASSIGN_OR_RETURN(file_, StorageFile::Open(path, DirectMode::kOff, block));
    result_.direct_note = file_->mode_note();
    if (!spec_.direct || spec_.engine == LoadEngine::kMmap) return absl::OkStatus();
    if (IsInMemory(*file_)) {
      result_.direct_note = "buffered: the file system keeps its files in memory";
    } else if (alignment < kSector) {
      result_.direct_note =
          absl::StrCat("buffered: blocks of ", spec_.block, " bytes from ", spec_.offset,
                       " on are not aligned to ", kSector, " bytes");
    } else {
      SLUICE_ASSIGN_OR_RETURN(file_, StorageFile::Open(path, DirectMode::kAuto, block));
      result_.direct_note = file_->mode_note();
    }
    return absl::OkStatus();
  }

  void EndJobs() {
    if (clock_) clock_->Stop();
    for (const auto& job : jobs_) job->Join();
  }

  const LoadSpec& spec_;
  LoadResult result_;
  std::unique_ptr<StorageFile> file_;
  std::shared_ptr<EmulatedDevice> device_;  // null: the real one
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
  const bool repeats = !spec.random && (spec.direct || spec.emulated != nullptr);
  return repeats ? 1 : 2 * uint64_t{spec.depth} * static_cast<uint64_t>(spec.n_jobs);
}

absl::StatusOr<LoadResult> RunLoad(const std::string& path, const LoadSpec& spec,
                                   const std::atomic<int>* stop) {
  Cell cell(spec);
  SLUICE_RETURN_IF_ERROR(cell.Open(path));
  SLUICE_RETURN_IF_ERROR(cell.PrepareCache(stop));
  SLUICE_RETURN_IF_ERROR(cell.StartJobs());
  cell.WaitForJobs(stop);
  return cell.Finish(stop);
}

}  // namespace sluice
