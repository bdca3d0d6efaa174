// Which reads of a batch are done as one operation.
//
// Reads that lie near each other may go to the device together, with the bytes between them, which
// nobody looks at. What that is worth depends on the device: a run of reads from i to j takes as
// long as one read of all bytes from the first to the last. The split with the least total time
// comes from dynamic programming over the batch, best[i] = min over j of cost(i..j) + best[j].
// Where an operation costs a constant and each byte another this is the rule "read a gap that takes
// less time than an operation"; measured devices bend, and two short reads may beat one of both.
//
// Few large operations keep a device less busy than many small ones, so costs are by queue depth:
// the split is made for the deepest queue, and if that leaves fewer operations than the queue
// holds, also for the shallower ones; the least time wins.
#ifndef SLUICE_IO_READ_MERGER_H_
#define SLUICE_IO_READ_MERGER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "io/device_profile.h"
#include "io/io_request.h"

namespace sluice {

// One thread at a time. Allocates only in the constructor.
class ReadMerger {
 public:
  static constexpr uint32_t kMostRequests = 64;    // in an operation
  static constexpr uint32_t kMostBytes = 1 << 20;  // in an operation
  static constexpr uint32_t kMostGap = 64 << 10;
  // A longer request is an operation of its own: a piece of a stream, which has nothing to gain.
  static constexpr uint32_t kLongest = 128 << 10;
  static constexpr size_t kMostBatch = 1024;

  struct Limits {
    uint32_t depth = 1;  // operations in flight, at most
    // Of the buffer that operations for several requests share. One takes at most a quarter of it,
    // so that there is always more than one on its way.
    uint32_t bounce_bytes = 4 * kMostBytes;
  };
  // Costs of random reads within `range` bytes. A split that is modelled to save less than the
  // share `margin` of what single reads take is not made.
  ReadMerger(const DeviceProfile& profile, uint64_t range, const Limits& limits, double margin);
  // The margin that a profile calls for. A line that was fitted is off by as much as its residual;
  // and what any measurement of reads leaves out speaks for single ones, which need not be copied
  // and bring nothing into the CPU's caches that nobody wants.
  static double MarginFor(const DeviceProfile& profile);
  // DRAM that it takes, at most.
  static size_t Bytes();

  // The numbers of requests of the operations, in order; valid till the next call. `batch` has at
  // most kMostBatch requests; only those in rising order of offset are merged.
  std::span<const uint32_t> Split(std::span<const IoRequest> batch);
  // What the last split takes by the profile, from its first operation to its last.
  double modelled_ns() const { return modelled_ns_; }
  // The time of operations of these sizes, all handed over at once.
  double TimeNs(std::span<const uint64_t> operation_bytes) const;

 private:
  static constexpr uint32_t kUnit = 4096;
  static constexpr size_t kSizes = kMostBytes / kUnit;

  // At a queue depth: what a read of so many units costs.
  struct Level {
    uint32_t depth = 1;
    std::vector<float> cost_ns;
    double Cost(uint64_t bytes) const;
  };
  // The level whose depth `operations` in flight fill.
  const Level& LevelFor(size_t operations) const;
  void SplitFor(const Level& level, std::span<const IoRequest> batch);

  const uint32_t most_bytes_;
  const double margin_;
  std::vector<Level> levels_;  // the deepest first
  std::vector<float> best_;    // by request: the least time from it to the end
  std::vector<uint32_t> run_;  // by request: of how many the operation is that begins there
  std::vector<uint32_t> chosen_, trial_;
  double modelled_ns_ = 0, trial_ns_ = 0;
};

// What a batch of any size comes to.
struct MergedBatch {
  double operations = 0, bytes = 0, ns = 0;  // modelled
};
MergedBatch MergeAll(ReadMerger& merger, std::span<const IoRequest> batch);

}  // namespace sluice

#endif  // SLUICE_IO_READ_MERGER_H_
