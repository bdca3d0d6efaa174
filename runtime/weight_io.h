// The decode thread's side of the I/O thread: reads for slots of the neuron cache, for buffers of
// the stream ring and of tiles of the embedding go out through one queue, and their completions are
// sorted back here. Those of slots may be on their way while any of the others are waited for.
//
// Confined to the decode thread. Allocates nothing after Create.
#ifndef SLUICE_RUNTIME_WEIGHT_IO_H_
#define SLUICE_RUNTIME_WEIGHT_IO_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "io/io_thread.h"
#include "io/span_log.h"
#include "io/storage_file.h"

namespace sluice {

constexpr uint32_t kMostInFlight = 32;  // operations at the device: UFS takes 32 commands

class WeightIo {
 public:
  // Borrows all. `capacity` is the I/O thread's; `n_stream_buffers` sizes the table of the ring;
  // `spans` (null: none) gets the times of waiting.
  WeightIo(IoThread& io, const StorageFile& file, uint32_t capacity, uint32_t n_stream_buffers,
           SpanLog* spans = nullptr);

  static size_t Bytes(uint32_t capacity, uint32_t n_stream_buffers);

  // How many more reads may be submitted now.
  uint32_t room() const { return capacity_ - static_cast<uint32_t>(io_.in_flight()); }

  // The tag of a read is its slot, or its buffer. The caller keeps the batch within room().
  void SubmitSlots(std::span<const IoRequest> reads, IoPriority priority = IoPriority::kDemand) {
    Submit(reads, priority);
  }
  void SubmitStream(IoRequest read);
  // Waits for room. All of them have landed when n_tiles_landed() is their number; no two batches
  // at a time. Sets the tags.
  absl::Status SubmitTiles(std::span<IoRequest> reads);

  // Takes what has completed; never blocks. Statuses name file and offset.
  absl::Status Pump();
  // Blocks until something more has completed, then Pump. The time counts as stall.
  absl::Status WaitAndPump();
  // Until nothing is in flight; results are dropped.
  void Drain();

  // Slots that have landed since ClearLanded, in order of arrival.
  std::span<const uint32_t> landed() const { return landed_; }
  void ClearLanded() { landed_.clear(); }
  bool stream_landed(uint32_t buffer) const { return stream_landed_[buffer]; }
  size_t n_tiles_landed() const { return n_tiles_landed_; }

  const StorageFile& file() const { return file_; }
  uint64_t stall_ns() const { return stall_ns_; }  // the decode thread waited for reads
  IoStats io_stats() const { return io_.stats(); }

 private:
  void Submit(std::span<const IoRequest> reads, IoPriority priority);
  absl::Status FailedRead(const IoCompletion& completion) const;

  IoThread& io_;
  const StorageFile& file_;
  const uint32_t capacity_;
  SpanLog* const spans_;
  std::vector<IoCompletion> completions_;  // scratch of Pump
  std::vector<uint32_t> landed_;
  std::vector<uint8_t> stream_landed_;
  size_t n_tiles_landed_ = 0;
  bool overfull_ = false;  // a batch was larger than room(): it is lost, which the next Pump tells
  uint64_t stall_ns_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_WEIGHT_IO_H_
