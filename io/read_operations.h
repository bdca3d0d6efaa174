// The requests that are being read: turns runs of them into operations of an engine and decides
// what follows from every result. This is where retries live; see OnResult.
//
// Thread-compatible: the I/O thread owns it. Allocates only in the constructor.
#ifndef SLUICE_IO_READ_OPERATIONS_H_
#define SLUICE_IO_READ_OPERATIONS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "io/io_request.h"
#include "io/read_engine.h"
#include "io/storage_file.h"

namespace sluice {

class ReadOperations {
 public:
  // At most `depth` runs at a time, each of at most `max_run` requests. A run of more than one is
  // read into a part of `bounce` and copied from there: one read of memory that is
  // registered costs the kernel less than one that is spread over many places, and what lies
  // between two requests has a place too. While there is none the run waits; one that is longer
  // than all of it is read request by request. `file` must outlive this object.
  ReadOperations(const StorageFile& file, uint32_t depth, uint32_t max_run,
                 std::span<std::byte> bounce);
  // DRAM that it takes, without `bounce`.
  static size_t Bytes(uint32_t depth, uint32_t max_run);

  bool full() const { return free_.empty(); }
  // Runs added and not yet complete.
  size_t active() const { return slots_.size() - free_.size(); }
  // Operations that TakeReady gave out and that did not come back.
  size_t in_engine() const { return in_engine_; }

  // Not when full(). Not empty, lengths > 0, in rising order without overlap: one operation reads
  // all of them and what lies between.
  void Add(std::span<const IoRequest> run);

  // Stores the operations that may start at time `now_ns`, at most out.size(), retries first. Each
  // one must come back through PutBack or OnResult.
  size_t TakeReady(uint64_t now_ns, std::span<ReadOp> out);
  // The engine did not take it.
  void PutBack(const ReadOp& op);

  // The completions of the requests that are complete by that; valid until the next call.
  // - all bytes are there: error 0; the file ended before: ENODATA;
  // - a short read continues with the rest;
  // - EINTR and EAGAIN start it again, the latter after a pause, a bounded number of times;
  // - EIO starts it again up to three times;
  // - EINVAL or EOPNOTSUPP from the direct descriptor starts it again on the buffered one, which
  //   every later operation uses too;
  // - any other error is final.
  // If a run meets anything but EINTR, EAGAIN or success, its requests go on one by one, so that
  // each gets what the storage has for it. A result of no operation that is out is ignored.
  std::span<const IoCompletion> OnResult(const ReadResult& result, uint64_t now_ns);

  // Gives up all active requests, with EIO. For when the engine is gone.
  std::span<const IoCompletion> Abandon();

  // When the earliest pause ends; only while operations wait for one.
  uint64_t NextDue() const;

  // The error with which direct reads ended, 0 while they work, and where in the file.
  int direct_error() const { return direct_error_; }
  uint64_t direct_error_offset() const { return direct_error_offset_; }
  uint64_t retries() const { return retries_; }
  uint64_t bytes() const { return bytes_; }

 private:
  // A run. Its requests are requests_[slot * max_run_ ...], complete up to `first`.
  struct Slot {
    uint32_t first = 0, count = 0;
    bool together = false;    // the next operation reads all that is left, else only the first
    uint64_t due_ns = 0;      // not to be started before
    uint32_t done = 0;        // bytes of the first that are there; 0 if together
    uint32_t generation = 0;  // grows when the slot is given back
    uint16_t busy_tries = 0;  // EINTR and EAGAIN since the last progress
    uint16_t eio_tries = 0;   // EIO since the last progress
    bool active = false;
    bool in_engine = false;
    bool direct = false;  // the operation in the engine uses the direct descriptor
    uint64_t units = 0;   // of bounce_, that the operation in the engine reads into
    std::byte* bounce = nullptr;
  };

  bool MakeOp(uint32_t index, ReadOp* op);
  bool TakeBounce(uint64_t bytes, Slot* slot);
  void TakeBack(uint32_t index);
  void OnError(uint32_t index, int error, uint64_t now_ns);
  void OnBytes(uint32_t index, uint32_t got);
  void CopyOut(uint32_t index, uint64_t got);
  void Again(uint32_t index);
  void AgainOneByOne(uint32_t index);
  void FinishFirst(uint32_t index, int error);
  void Release(uint32_t index);
  std::span<const IoRequest> Left(uint32_t index) const;
  static uint64_t SpanBytes(std::span<const IoRequest> run) {
    return run.back().offset + run.back().length - run.front().offset;
  }

  const StorageFile& file_;
  const uint32_t max_run_;
  const std::span<std::byte> bounce_;
  const size_t unit_bytes_;  // bounce_ is given out in 64 units
  uint64_t used_units_ = 0;  // one bit each
  std::vector<Slot> slots_;
  std::vector<IoRequest> requests_;      // [slot x max_run]
  std::vector<IoCompletion> completed_;  // by the last call
  std::vector<uint32_t> free_;
  std::vector<uint32_t> ready_;  // slots to start, in order; of which some may wait for units
  size_t in_engine_ = 0;
  int direct_error_ = 0;
  uint64_t direct_error_offset_ = 0;
  uint64_t retries_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_IO_READ_OPERATIONS_H_
