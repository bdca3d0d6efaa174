#include "io/uring_engine.h"

#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "io/status.h"
#include "io/uring_setup.h"

namespace sluice {
namespace {

constexpr uint64_t kWakeUser = UINT64_MAX;
// Reads are given to the device in groups of at most this many: it works on the first while the
// next are prepared. All in one call, a deep queue empties and fills in lockstep
// (bench/RESULTS.md).
constexpr uint32_t kGroup = 8;
constexpr size_t kMostRegistered = size_t{1} << 30;  // the kernel's limit for one buffer

std::string WhyNotRegistered(int err) {
  struct rlimit limit;
  if (err == ENOMEM && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    return absl::StrCat("the memlock limit is ", limit.rlim_cur / 1024, " KiB");
  }
  return strerror(err);
}

}  // namespace

UringEngine::UringEngine(const StorageFile& file, uint32_t depth)
    : depth_(depth), fds_{file.fd(), file.buffered_fd()} {}

absl::StatusOr<std::unique_ptr<UringEngine>> UringEngine::Create(
    const StorageFile& file, uint32_t depth, std::span<const std::span<std::byte>> buffers) {
  std::unique_ptr<UringEngine> engine(new UringEngine(file, depth));
  // A blocking eventfd: with EFD_NONBLOCK its read would complete at once with EAGAIN.
  engine->wake_fd_ = eventfd(0, EFD_CLOEXEC);
  if (engine->wake_fd_ < 0) return ErrnoStatus(errno, "io_uring: cannot make an eventfd");
  auto ring = std::make_unique<struct io_uring>();
  const int result = SetUpRing(depth + 1, ring.get());  // one more for the wake-up
  if (result < 0) {
    return ErrnoStatus(-result, absl::StrCat("io_uring: cannot set up a ring of ", depth));
  }
  engine->ring_ = std::move(ring);
  engine->RegisterFiles();
  engine->RegisterBuffers(buffers);
  return engine;
}

UringEngine::~UringEngine() {
  if (ring_ != nullptr) {
    Drain();
    io_uring_queue_exit(ring_.get());
  }
  if (wake_fd_ >= 0) close(wake_fd_);
}

// The kernel writes into the buffers, and into wake_value_, until all is back.
void UringEngine::Drain() {
  constexpr int kMostFailures = 10'000;  // about a second of a ring that cannot be entered any more
  Wake();
  ReadResult results[16];
  for (int failures = 0; failures < kMostFailures;) {
    Collect(results).IgnoreError();
    if (in_flight_ == 0 && !wake_armed_) return;
    if (Enter(/*wait=*/true).ok()) continue;
    ++failures;  // what is in flight still completes, and Collect sees it
    const struct timespec pause = {0, 100'000};
    nanosleep(&pause, nullptr);
  }
}

void UringEngine::RegisterFiles() {
  const int result = io_uring_register_files(ring_.get(), fds_, std::size(fds_));
  files_registered_ = result == 0;
  description_ = files_registered_
                     ? "io_uring (registered file"
                     : absl::StrCat("io_uring (file not registered: ", WhyNotRegistered(-result));
}

void UringEngine::RegisterBuffers(std::span<const std::span<std::byte>> buffers) {
  for (const std::span<std::byte> buffer : buffers) {
    for (size_t begin = 0; begin < buffer.size(); begin += kMostRegistered) {
      regions_.push_back({buffer.data() + begin, std::min(kMostRegistered, buffer.size() - begin)});
    }
  }
  if (!regions_.empty()) {
    std::sort(regions_.begin(), regions_.end(),
              [](const Region& a, const Region& b) { return a.begin < b.begin; });
    std::vector<struct iovec> iovecs;
    for (const Region& region : regions_) iovecs.push_back({region.begin, region.size});
    const int result =
        io_uring_register_buffers(ring_.get(), iovecs.data(), static_cast<unsigned>(iovecs.size()));
    if (result == 0) {
      absl::StrAppend(&description_, files_registered_ ? " and buffers" : "; registered buffers");
    } else {
      absl::StrAppend(&description_, "; buffers not registered: ", WhyNotRegistered(-result));
      regions_.clear();
    }
  }
  description_ += ')';
}

// The index of the registered buffer that holds all of `op`, or -1.
int UringEngine::FindRegion(const ReadOp& op) const {
  const auto after = std::upper_bound(
      regions_.begin(), regions_.end(), op.dst,
      [](const std::byte* dst, const Region& region) { return dst < region.begin; });
  if (after == regions_.begin()) return -1;
  const Region& region = *std::prev(after);
  if (op.dst + op.length > region.begin + region.size) return -1;
  return static_cast<int>(std::distance(regions_.begin(), after)) - 1;
}

// The index of the registered file, or -1.
int UringEngine::FindFile(int fd) const {
  if (!files_registered_) return -1;
  const auto found = std::find(std::begin(fds_), std::end(fds_), fd);
  return found == std::end(fds_) ? -1 : static_cast<int>(found - std::begin(fds_));
}

absl::StatusOr<uint32_t> UringEngine::Submit(std::span<const ReadOp> ops) {
  uint32_t taken = 0;
  for (const ReadOp& op : ops) {
    if (in_flight_ == depth_) break;
    struct io_uring_sqe* sqe = io_uring_get_sqe(ring_.get());
    if (sqe == nullptr) break;
    const int file = FindFile(op.fd);
    const int fd = file >= 0 ? file : op.fd;
    const int region = FindRegion(op);
    if (region >= 0) {
      io_uring_prep_read_fixed(sqe, fd, op.dst, op.length, op.offset, region);
    } else {
      io_uring_prep_read(sqe, fd, op.dst, op.length, op.offset);
    }
    if (file >= 0) sqe->flags |= IOSQE_FIXED_FILE;
    sqe->user_data = op.user;
    ++in_flight_;
    ++taken;
    if (taken % kGroup == 0) SLUICE_RETURN_IF_ERROR(Enter(/*wait=*/false));
  }
  return taken;
}

absl::StatusOr<uint32_t> UringEngine::Reap(std::span<ReadResult> results, bool wait) {
  if (in_flight_ == 0 || results.empty()) return 0;
  const bool armed = wake_armed_ || ArmWake();
  // Without a way to be woken one must not sleep.
  const bool sleep = wait && armed && !woken_ && io_uring_cq_ready(ring_.get()) == 0;
  SLUICE_RETURN_IF_ERROR(Enter(sleep));
  SLUICE_ASSIGN_OR_RETURN(const uint32_t count, Collect(results));
  if (wait) woken_ = false;
  return count;
}

void UringEngine::Wake() {
  const uint64_t one = 1;
  while (write(wake_fd_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

bool UringEngine::ArmWake() {
  struct io_uring_sqe* sqe = io_uring_get_sqe(ring_.get());
  if (sqe == nullptr) return false;
  io_uring_prep_read(sqe, wake_fd_, &wake_value_, sizeof(wake_value_), 0);
  sqe->user_data = kWakeUser;
  wake_armed_ = true;
  return true;
}

// Gives the kernel what was prepared and lets it post completions; with `wait`, at least one.
absl::Status UringEngine::Enter(bool wait) {
  const int result =
      wait ? io_uring_submit_and_wait(ring_.get(), 1) : io_uring_submit_and_get_events(ring_.get());
  if (result >= 0 || result == -EINTR) return absl::OkStatus();
  if (result == -EAGAIN || result == -EBUSY) {
    // The kernel is short of memory; what was not taken stays in the queue for the next time.
    const struct timespec pause = {0, 100'000};
    nanosleep(&pause, nullptr);
    return absl::OkStatus();
  }
  return ErrnoStatus(-result, "io_uring: io_uring_enter failed");
}

absl::StatusOr<uint32_t> UringEngine::Collect(std::span<ReadResult> results) {
  uint32_t count = 0;
  uint32_t seen = 0;
  int wake_result = 0;
  unsigned head;
  struct io_uring_cqe* cqe;
  io_uring_for_each_cqe(ring_.get(), head, cqe) {
    if (cqe->user_data == kWakeUser) {
      wake_armed_ = false;
      woken_ = true;
      wake_result = cqe->res;
    } else if (count < results.size()) {
      results[count++] = {cqe->user_data, cqe->res};
    } else {
      break;
    }
    ++seen;
  }
  io_uring_cq_advance(ring_.get(), seen);
  in_flight_ -= count;
  if (wake_result < 0 && wake_result != -EINTR && wake_result != -EAGAIN) {
    return ErrnoStatus(-wake_result, "io_uring: the wake-up read failed");
  }
  return count;
}

}  // namespace sluice
