#include "io/suite/load.h"

#include <fcntl.h>
#include <time.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/aligned_buffer.h"
#include "io/clock.h"
#include "io/cpu_topology.h"
#include "io/emulated_device.h"
#include "io/pread_engine.h"
#include "io/status.h"
#include "io/suite/load_job.h"
#include "io/suite/mmap_engine.h"
#include "io/suite/range_state.h"
#include "io/uring_engine.h"
#include "io/uring_probe.h"

namespace sluice {
namespace {

uint64_t CpuNs(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

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

// Totals up to a moment.
struct Snapshot {
  uint64_t ns = 0, cpu_ns = 0, operations = 0;
};

// The thread that watches the clock spends CPU of its own, which is not the reads'.
Snapshot Take(const LoadControl& control) {
  Snapshot s;
  s.operations = control.operations.load(std::memory_order_relaxed);
  s.ns = NowNs();
  s.cpu_ns = CpuNs(CLOCK_PROCESS_CPUTIME_ID) - CpuNs(CLOCK_THREAD_CPUTIME_ID);
  return s;
}

// Sleeps until the phase has lasted its time, `quota` operations are done, or the jobs have ended.
// False if the time was not up.
bool WaitForPhase(const LoadControl& control, double seconds, uint64_t quota,
                  const std::atomic<int>* stop) {
  const uint64_t end_ns = NowNs() + static_cast<uint64_t>(seconds * 1e9);
  while (true) {
    const uint64_t now_ns = NowNs();
    if (now_ns >= end_ns) return true;
    const bool stopped = stop != nullptr && stop->load(std::memory_order_relaxed) != 0;
    if (stopped || control.running.load() == 0 || control.operations.load() >= quota) return false;
    const struct timespec pause = {0,
                                   static_cast<long>(std::min<uint64_t>(500'000, end_ns - now_ns))};
    nanosleep(&pause, nullptr);
  }
}

absl::Status CheckSpec(const StorageFile& file, const LoadSpec& spec) {
  if (spec.range > file.size() || spec.offset > file.size() - spec.range) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": has ", file.size(), " bytes; a range of ", spec.range,
                     " bytes from ", spec.offset, " does not fit: give a smaller --size"));
  }
  if (spec.range < spec.block) {
    return absl::InvalidArgumentError(absl::StrCat("a range of ", spec.range,
                                                   " bytes holds no block of ", spec.block,
                                                   ": give a larger --size"));
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
      n_slots_ += engine->depth();
      auto memory = AlignedBuffer::Allocate(size_t{engine->depth()} * spec_.block);
      if (!memory.ok()) return Annotate(memory.status(), "buffers for --iodepth reads of --bs");
      jobs_.push_back(std::make_unique<LoadJob>(*file_, spec_, j, std::move(engine),
                                                *std::move(memory), control_));
    }
    for (const auto& job : jobs_) SLUICE_RETURN_IF_ERROR(job->Start());
    return absl::OkStatus();
  }

  // Each phase has its share of the blocks, where none may be read twice.
  void RunPhases(const std::atomic<int>* stop) {
    const bool repeats = !spec_.random && MayReadAgain(*file_, spec_);
    const uint64_t n_blocks = spec_.range / spec_.block;
    const auto n_phases = static_cast<uint64_t>(spec_.n_windows) + 1;
    Snapshot before;
    for (uint64_t phase = 0; phase < n_phases; ++phase) {
      const uint64_t quota = repeats ? UINT64_MAX : n_blocks * (phase + 1) / n_phases;
      const double seconds = phase == 0 ? spec_.warm_up_s : spec_.window_s;
      const bool in_time = WaitForPhase(control_, seconds, quota, stop);
      const Snapshot now = Take(control_);
      if (phase > 0) {
        result_.ran_out |= !in_time;
        LoadWindow w;
        w.ns = now.ns - before.ns;
        w.operations = now.operations - before.operations;
        w.cpu_ns = now.cpu_ns - before.cpu_ns;
        if (in_time || w.operations >= 2 * n_slots_) {
          result_.windows.push_back(w);
          phases_.push_back(phase);
        }
      }
      control_.window = static_cast<uint32_t>(phase) + 1;
      before = now;
    }
  }

  absl::StatusOr<LoadResult> Finish(const std::atomic<int>* stop) {
    EndJobs();
    if (stop != nullptr && stop->load() != 0) return absl::CancelledError("stopped on request");
    result_.pinned = spec_.core >= 0;
    for (const auto& job : jobs_) {
      SLUICE_RETURN_IF_ERROR(job->status());
      result_.pinned = result_.pinned && job->pinned();
      for (size_t w = 0; w < result_.windows.size(); ++w) {
        result_.windows[w].latency.Merge(job->latency(phases_[w]));
      }
    }
    result_.affinity_note = jobs_.front()->affinity_note();
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
    control_.stop = true;
    for (const auto& job : jobs_) job->Join();
  }

  const LoadSpec& spec_;
  LoadResult result_;
  std::unique_ptr<StorageFile> file_;
  LoadControl control_;
  std::vector<std::unique_ptr<LoadJob>> jobs_;
  uint64_t n_slots_ = 0;          // reads in flight of all jobs
  std::vector<uint64_t> phases_;  // of each window in the result
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

absl::StatusOr<LoadResult> RunLoad(const std::string& path, const LoadSpec& spec,
                                   const std::atomic<int>* stop) {
  Cell cell(spec);
  SLUICE_RETURN_IF_ERROR(cell.Open(path));
  SLUICE_RETURN_IF_ERROR(cell.StartJobs());
  cell.RunPhases(stop);
  return cell.Finish(stop);
}

}  // namespace sluice
