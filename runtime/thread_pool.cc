#include "runtime/thread_pool.h"

#include <algorithm>
#include <system_error>

#include "absl/strings/str_format.h"
#include "io/clock.h"
#include "io/futex.h"
#include "io/scoped_signal_block.h"

namespace sluice {
namespace {

// More than one share a thread, so that a thread that starts late or runs slowly does not hold up
// the others for long.
constexpr size_t kSharesPerThread = 4;
constexpr size_t kMaxShares = 0xffff;

// Waits a moment, and says no once it has done so for its time: how long one hint to the processor
// takes differs by a factor of ten.
class Spinner {
 public:
  explicit Spinner(uint64_t limit_ns) : limit_ns_(limit_ns) {}
  bool Spin() {
    constexpr uint32_t kSpinsPerLook = 32;
    if (limit_ns_ == 0) return false;
    if (n_ % kSpinsPerLook == 0) {
      const uint64_t now_ns = NowNs();
      if (begin_ns_ == 0) begin_ns_ = now_ns;
      if (now_ns - begin_ns_ > limit_ns_) return false;
    }
    ++n_;
    CpuRelax();
    return true;
  }

 private:
  const uint64_t limit_ns_;
  uint64_t begin_ns_ = 0;
  uint32_t n_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ThreadPool>> ThreadPool::Create(int n_threads, uint64_t spin_ns,
                                                               SpanLog* spans) {
  const ScopedSignalBlock no_signals;
  auto pool = std::unique_ptr<ThreadPool>(new ThreadPool(spin_ns, spans));
  try {
    for (int t = 1; t < n_threads; ++t) {
      pool->workers_.emplace_back([p = pool.get(), t] { p->WorkerLoop(t); });
    }
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "cannot start %d compute threads: %s; give a smaller -t, or raise the limits of "
        "processes and memory (ulimit -u, -d, -v)",
        n_threads, error.what()));
  }
  return pool;
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  generation_.fetch_add(1);
  for (size_t i = 0; i < workers_.size(); ++i) FutexWake(generation_);
  for (std::thread& w : workers_) w.join();
}

bool ThreadPool::Claim(uint32_t* share) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (;;) {
    const auto n_shares = static_cast<uint32_t>(ticket >> 16 & 0xffff);
    *share = static_cast<uint32_t>(ticket & 0xffff);
    if (*share >= n_shares) return false;
    // A ticket of an older task is no longer there, so this claims nothing of a later one.
    if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
      return true;
    }
  }
}

void ThreadPool::RunTask(const Task& task, size_t begin, size_t end, int thread) {
  if (spans_ == nullptr) return task(begin, end, thread);
  const uint64_t begin_ns = NowNs();
  task(begin, end, thread);
  spans_->Add(static_cast<size_t>(thread),
              {.name = spans_->stage(), .begin_ns = begin_ns, .end_ns = NowNs(), .id = begin});
}

void ThreadPool::RunClaimed(uint32_t share, int thread) {
  const size_t size = share_size_.load(std::memory_order_relaxed);
  const size_t begin = share * size;
  const size_t end = std::min(begin + size, n_.load(std::memory_order_relaxed));
  RunTask(*task_.load(std::memory_order_relaxed), begin, end, thread);
  if (n_unfinished_.fetch_sub(1) == 1 && caller_parked_.load()) FutexWake(n_unfinished_);
}

void ThreadPool::RunShares(int thread) {
  uint32_t share;
  while (Claim(&share)) RunClaimed(share, thread);
}

void ThreadPool::Run(size_t n, size_t grain, Task fn) {
  if (n == 0) return;
  if (workers_.empty() || n <= grain) {
    RunTask(fn, 0, n, 0);
    return;
  }
  const size_t units = (n + grain - 1) / grain;
  const size_t wanted = std::min(kSharesPerThread * (workers_.size() + 1), kMaxShares);
  const size_t share_size = (units + wanted - 1) / wanted * grain;
  const size_t n_shares = (n + share_size - 1) / share_size;
  task_.store(&fn, std::memory_order_relaxed);
  n_.store(n, std::memory_order_relaxed);
  share_size_.store(share_size, std::memory_order_relaxed);
  n_unfinished_.store(static_cast<uint32_t>(n_shares), std::memory_order_relaxed);
  const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  ticket_.store(uint64_t{generation} << 32 | n_shares << 16, std::memory_order_release);
  generation_.store(generation);
  for (uint32_t parked = n_parked_.load(); parked > 0; --parked) FutexWake(generation_);
  RunShares(0);
  Spinner spinner(spin_ns_);
  while (n_unfinished_.load(std::memory_order_acquire) != 0) {
    if (spinner.Spin()) continue;
    caller_parked_.store(true);
    const uint32_t left = n_unfinished_.load();
    if (left != 0) FutexWait(n_unfinished_, left);
    caller_parked_.store(false);
  }
}

void ThreadPool::WorkerLoop(int thread) {
  uint32_t seen = 0;
  for (;;) {
    Spinner spinner(spin_ns_);
    while (generation_.load(std::memory_order_acquire) == seen) {
      if (spinner.Spin()) continue;
      n_parked_.fetch_add(1);
      FutexWait(generation_, seen);
      n_parked_.fetch_sub(1);
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    RunShares(thread);
  }
}

}  // namespace sluice
