// Fixed compute workers. Run() is a fork-join over [0, n): the range is cut into shares that depend
// only on n, the grain and the number of threads; threads claim shares one after another, and the
// caller takes part as thread 0. A worker that the system does not let run claims nothing, so it
// delays nothing but the share that it may be in.
//
// Workers spin for a short while, then park, so that a decode step pays no wake-up and an idle
// process no CPU. Run allocates nothing and takes no lock. One caller at a time; a task must not
// call Run itself.
#ifndef SLUICE_RUNTIME_THREAD_POOL_H_
#define SLUICE_RUNTIME_THREAD_POOL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "io/span_log.h"

namespace sluice {

class ThreadPool {
 public:
  // `n_threads` counts the caller; at least 1. A thread looks `spin_ns` for work, or for the end of
  // the others' work, before it parks (0 where there are more threads than cores).
  // `spans` (null: none) gets every share, on the lane of its thread, by the name of the stage.
  // ResourceExhausted if the system gives no more threads.
  static absl::StatusOr<std::unique_ptr<ThreadPool>> Create(int n_threads, uint64_t spin_ns,
                                                            SpanLog* spans = nullptr);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(begin, end, thread) for shares that cover [0, n). Shares are multiples of `grain`,
  // except for the last; with n <= grain the caller does it all in one call.
  using Task = absl::FunctionRef<void(size_t begin, size_t end, int thread)>;
  void Run(size_t n, size_t grain, Task fn);

 private:
  ThreadPool(uint64_t spin_ns, SpanLog* spans) : spin_ns_(spin_ns), spans_(spans) {}

  void WorkerLoop(int thread);
  // Claims a share of the task that is current; false if none is left.
  bool Claim(uint32_t* share);
  void RunClaimed(uint32_t share, int thread);
  void RunTask(const Task& task, size_t begin, size_t end, int thread);
  void RunShares(int thread);

  std::vector<std::thread> workers_;
  const uint64_t spin_ns_;
  SpanLog* const spans_;
  // Generation (32 bits), number of shares (16), next share to claim (16) of the current task. The
  // fields below belong to that generation: they are written before it is published, and do not
  // change while a claimed share is not finished.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<const Task*> task_{nullptr};
  std::atomic<size_t> n_{0};
  std::atomic<size_t> share_size_{0};
  std::atomic<uint32_t> n_unfinished_{0};
  std::atomic<uint32_t> generation_{0};  // what parked workers sleep on
  std::atomic<uint32_t> n_parked_{0};
  std::atomic<bool> caller_parked_{false};
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
