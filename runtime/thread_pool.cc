#include "runtime/thread_pool.h"

#include <algorithm>

namespace sluice {
namespace {

inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int n_threads, int spin) : spin_(spin) {
  for (int t = 1; t < n_threads; ++t) {
    workers_.emplace_back([this, t] { WorkerLoop(t); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& w : workers_) w.join();
}

void ThreadPool::RunShare(int thread) const {
  const size_t n_threads = workers_.size() + 1;
  const size_t units = (n_ + grain_ - 1) / grain_;
  const size_t begin = units * static_cast<size_t>(thread) / n_threads * grain_;
  const size_t end = std::min(units * (static_cast<size_t>(thread) + 1) / n_threads * grain_, n_);
  if (begin < end) (*task_)(begin, end, thread);
}

void ThreadPool::Run(size_t n, size_t grain, Task fn) {
  if (n == 0) return;
  if (workers_.empty() || n <= grain) {
    fn(0, n, 0);
    return;
  }
  task_ = &fn;
  n_ = n;
  grain_ = grain;
  running_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  RunShare(0);
  uint32_t left;
  for (int i = 0; (left = running_.load(std::memory_order_acquire)) != 0; ++i) {
    if (i < spin_) {
      CpuRelax();
    } else {
      running_.wait(left, std::memory_order_acquire);
    }
  }
}

void ThreadPool::WorkerLoop(int thread) {
  uint32_t seen = 0;
  for (;;) {
    for (int i = 0; generation_.load(std::memory_order_acquire) == seen; ++i) {
      if (i < spin_) {
        CpuRelax();
      } else {
        generation_.wait(seen, std::memory_order_acquire);
      }
    }
    ++seen;  // the caller waits for every worker, so generations are never skipped
    if (stop_.load(std::memory_order_relaxed)) return;
    RunShare(thread);
    if (running_.fetch_sub(1, std::memory_order_release) == 1) running_.notify_all();
  }
}

}  // namespace sluice
