// The one thread that submits reads to the device.
//
// The decode thread hands over batches of reads through a lock-free single-producer queue and takes
// completions from another; neither side allocates or locks. Demand reads go before look-ahead
// reads, and those of one kind that lie near each other are done together if a merger says so.
// The I/O thread completes short reads, retries EINTR and EAGAIN, retries EIO a bounded
// number of times, and after EINVAL on a direct descriptor turns to the buffered one for good,
// which mode_change_note() tells. With nothing to do it sleeps. While a deep queue is full it tells
// of completions in groups of half a queue.
#ifndef SLUICE_IO_IO_THREAD_H_
#define SLUICE_IO_IO_THREAD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "io/io_request.h"
#include "io/read_engine.h"
#include "io/read_merger.h"
#include "io/storage_file.h"

namespace sluice {

enum class IoPriority { kDemand, kLookAhead };

struct IoThreadOptions {
  uint32_t capacity = 4096;            // most requests accepted and not yet taken back by Poll
  int core = -1;                       // -1: the fastest allowed core, see io/cpu_topology.h
  std::unique_ptr<ReadMerger> merger;  // null: every request is an operation
  // For what the merger puts together, as large as it was told; see ReadOperations. To be
  // registered with the engine; must outlive the thread.
  std::span<std::byte> bounce = {};
};

// Totals since Start; read from the producer thread.
struct IoStats {
  uint64_t operations = 0;  // reads that the engine completed, with success or without
  uint64_t bytes = 0;
  uint64_t retries = 0;  // operations started again, for the rest of a short read too
  uint64_t busy_ns = 0;  // time with at least one read in flight
};

class IoThread {
 public:
  // DRAM that a thread of this capacity, with a merger, takes for an engine of this depth; without
  // the bounce buffer.
  static size_t Bytes(uint32_t capacity, uint32_t depth);

  // `file` must outlive the thread. Takes the engine, drives it and destroys it on that thread.
  static absl::StatusOr<std::unique_ptr<IoThread>> Start(const StorageFile& file,
                                                         std::unique_ptr<ReadEngine> engine,
                                                         IoThreadOptions options);
  // Drops what was not started, waits until nothing is in flight, joins.
  virtual ~IoThread() = default;

  // The methods below are for one thread, the producer.

  // All or nothing: false if the batch does not fit the capacity that is left.
  virtual bool Submit(std::span<const IoRequest> batch, IoPriority priority) = 0;
  // Takes up to out.size() completions; never blocks.
  virtual size_t Poll(std::span<IoCompletion> out) = 0;
  // Blocks (spins, then parks) until Poll would give something; returns at once if nothing is in
  // flight.
  virtual void WaitForCompletion() = 0;
  virtual size_t in_flight() const = 0;
  virtual IoStats stats() const = 0;
  // For the log: "core 7 of 0-7, granted", "not pinned: sched_setaffinity: ...".
  virtual const std::string& affinity_note() const = 0;
  // Empty, or one sentence about what changed since Start: direct reads were given up, or the
  // engine failed (then every request completes with EIO). Thread-safe; takes a lock.
  virtual std::string mode_change_note() const = 0;
};

}  // namespace sluice

#endif  // SLUICE_IO_IO_THREAD_H_
