// A submitting thread of a cell: keeps as many reads in flight as its engine takes.
#ifndef SLUICE_IO_SUITE_LOAD_JOB_H_
#define SLUICE_IO_SUITE_LOAD_JOB_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "io/aligned_buffer.h"
#include "io/read_engine.h"
#include "io/storage_file.h"
#include "io/suite/latency_histogram.h"
#include "io/suite/load.h"
#include "io/suite/offset_sequence.h"
#include "io/suite/phase_clock.h"

namespace sluice {

// Whether a sequential cell may begin its range again: not if the second time it would find it in
// the page cache, unless how fast that is does not matter.
inline bool MayReadAgain(const StorageFile& file, const LoadSpec& spec) {
  return file.direct() || spec.emulated != nullptr;
}

class LoadJob {
 public:
  // Borrows the file and the spec. `index` is the job's, from 0.
  LoadJob(const StorageFile& file, const LoadSpec& spec, int index,
          std::unique_ptr<ReadEngine> engine, AlignedBuffer memory);

  // Runs until the clock is over or there is nothing more to read. `running` counts the jobs that
  // have not ended. Both must outlive Join.
  absl::Status Start(PhaseClock& clock, std::atomic<int>& running);
  void Join();

  // After Join.
  const absl::Status& status() const { return status_; }
  const std::string& affinity_note() const { return affinity_note_; }
  bool pinned() const { return pinned_; }
  const LatencyHistogram& latency(size_t window) const { return latency_[window]; }

 private:
  absl::Status Drive();
  // Adds an operation for every free slot, unless the cell is over.
  void FillOps(std::vector<ReadOp>& ops);
  absl::Status CheckResult(const ReadResult& r) const;

  struct Slot {
    uint64_t offset = 0;
    uint64_t started_ns = 0;
  };

  const StorageFile& file_;
  const LoadSpec& spec_;
  PhaseClock* clock_ = nullptr;
  OffsetSequence sequence_;
  std::unique_ptr<ReadEngine> engine_;
  AlignedBuffer memory_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  std::vector<LatencyHistogram> latency_;  // by window
  absl::Status status_;
  std::string affinity_note_;
  bool pinned_ = false;
  std::thread thread_;
};

}  // namespace sluice

#endif  // SLUICE_IO_SUITE_LOAD_JOB_H_
