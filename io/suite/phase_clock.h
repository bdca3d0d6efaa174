// Cuts the reads of a cell into a warm-up and windows. A phase ends with the first completion after
// its time, or when the phase has had its share of the blocks; whichever job brings that completion
// closes it. So every window holds whole operations, at least one, and the time that they took,
// however late a thread that watched the clock would have been.
#ifndef SLUICE_IO_SUITE_PHASE_CLOCK_H_
#define SLUICE_IO_SUITE_PHASE_CLOCK_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace sluice {

class PhaseClock {
 public:
  struct Plan {
    double warm_up_s = 0, window_s = 0;
    int n_windows = 0;
    // Blocks of which none may be read twice: each phase has its share. 0: no such bound.
    uint64_t n_blocks = 0;
  };
  // What a window is made of.
  struct Window {
    uint64_t ns = 0, cpu_ns = 0;  // CPU of the whole process
    uint64_t operations = 0;
  };

  // The warm-up begins.
  explicit PhaseClock(const Plan& plan);

  // Counts `n` operations that completed at `now_ns` and returns the phase that they belong to: 0
  // for the warm-up. Thread-safe.
  uint32_t Count(uint64_t n, uint64_t now_ns);
  // All windows are full, or Stop was called. Thread-safe.
  bool over() const { return over_.load(std::memory_order_relaxed); }
  void Stop() { over_.store(true, std::memory_order_relaxed); }

  // Once no job counts any more: the windows, the last one perhaps shorter.
  std::vector<Window> TakeWindows();
  // Whether a window ended for want of blocks, and not of time.
  bool ran_out() const { return ran_out_; }

 private:
  struct Snapshot {
    uint64_t ns = 0, cpu_ns = 0, operations = 0;
  };
  Snapshot Take(uint64_t now_ns) const;
  void BeginPhase(const Snapshot& now);
  void EndPhase(const Snapshot& now, bool in_time);

  const Plan plan_;
  std::atomic<uint64_t> operations_{0};
  std::atomic<uint32_t> phase_{0};
  std::atomic<uint64_t> end_ns_{0}, end_operations_{0};
  std::atomic<bool> over_{false};
  std::mutex mutex_;  // guards what follows
  Snapshot begin_;    // of the phase
  std::vector<Window> windows_;
  bool ran_out_ = false;
};

}  // namespace sluice

#endif  // SLUICE_IO_SUITE_PHASE_CLOCK_H_
