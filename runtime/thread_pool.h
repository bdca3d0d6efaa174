// Fixed compute workers. Run() is a fork-join over [0, n): each thread gets one contiguous share,
// always the same for the same n, and the caller takes part as thread 0.
//
// Workers spin for a short while, then park, so that a decode step pays no wake-up and an idle
// process no CPU. Run allocates nothing. One caller at a time.
#ifndef SLUICE_RUNTIME_THREAD_POOL_H_
#define SLUICE_RUNTIME_THREAD_POOL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace sluice {

class ThreadPool {
 public:
  // `n_threads` counts the caller; at least 1. `spin` is how many times a worker looks for work
  // before it parks (0 where there are more threads than cores).
  ThreadPool(int n_threads, int spin);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(begin, end, thread) on every thread whose share of [0, n) is not empty. Shares are
  // multiples of `grain`, except for the last; with n <= grain the caller does it all.
  using Task = absl::FunctionRef<void(size_t begin, size_t end, int thread)>;
  void Run(size_t n, size_t grain, Task fn);

 private:
  void WorkerLoop(int thread);
  void RunShare(int thread) const;

  std::vector<std::thread> workers_;
  const int spin_;
  // The current task; written by the caller before generation_ is raised.
  const Task* task_ = nullptr;
  size_t n_ = 0;
  size_t grain_ = 1;
  std::atomic<uint32_t> generation_{0};
  std::atomic<uint32_t> running_{0};
  std::atomic<bool> stop_{false};
};

// The grain, a multiple of `unit` items, from which on a share is worth waking a thread for, where
// an item touches `bytes` bytes.
constexpr size_t WorthwhileGrain(size_t bytes, size_t unit) {
  constexpr size_t kShareBytes = 16 * 1024;  // about a microsecond, the price of a fork-join
  return (kShareBytes / (bytes * unit) + 1) * unit;
}

}  // namespace sluice

#endif  // SLUICE_RUNTIME_THREAD_POOL_H_
