// The requests that are being read: turns each into one or more operations of an engine and decides
// what follows from every result. This is where retries live; see OnResult.
//
// Thread-compatible: the I/O thread owns it. Allocates only in the constructor.
#ifndef SLUICE_IO_READ_OPERATIONS_H_
#define SLUICE_IO_READ_OPERATIONS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "io/io_thread.h"
#include "io/read_engine.h"
#include "io/storage_file.h"

namespace sluice {

class ReadOperations {
 public:
  // At most `depth` requests at a time. `file` must outlive this object.
  ReadOperations(const StorageFile& file, uint32_t depth);

  bool full() const { return free_.empty(); }
  // Requests added and not yet complete.
  size_t active() const { return slots_.size() - free_.size(); }
  // Operations that TakeReady gave out and that did not come back.
  size_t in_engine() const { return in_engine_; }

  // Not when full(). `request.length` > 0.
  void Add(const IoRequest& request);

  // Stores the operations that may start at time `now_ns`, at most out.size(), retries first. Each
  // one must come back through PutBack or OnResult.
  size_t TakeReady(uint64_t now_ns, std::span<ReadOp> out);
  // The engine did not take it.
  void PutBack(const ReadOp& op);

  // The completion, if the request is complete by that:
  // - all bytes are there: error 0; the file ended before: ENODATA;
  // - a short read continues with the rest;
  // - EINTR and EAGAIN start it again, the latter after a pause, a bounded number of times;
  // - EIO starts it again up to three times;
  // - EINVAL or EOPNOTSUPP from the direct descriptor starts it again on the buffered one, which
  //   every later operation uses too;
  // - any other error is final.
  // A result that belongs to no operation that is out is ignored.
  std::optional<IoCompletion> OnResult(const ReadResult& result, uint64_t now_ns);

  // Gives up one active request, with EIO; nullopt if there is none. For when the engine is gone.
  std::optional<IoCompletion> Abandon();

  // When the earliest pause ends; only while operations wait for one.
  uint64_t NextDue() const;

  // The error with which direct reads ended, 0 while they work, and where in the file.
  int direct_error() const { return direct_error_; }
  uint64_t direct_error_offset() const { return direct_error_offset_; }
  uint64_t retries() const { return retries_; }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Slot {
    IoRequest request;
    uint64_t due_ns = 0;      // not to be started before
    uint32_t done = 0;        // bytes that are there
    uint32_t generation = 0;  // grows when the slot is given back
    uint16_t busy_tries = 0;  // EINTR and EAGAIN since the last progress
    uint16_t eio_tries = 0;   // EIO since the last progress
    bool active = false;
    bool in_engine = false;
    bool direct = false;  // the operation in the engine uses the direct descriptor
  };

  ReadOp MakeOp(uint32_t index);
  void TakeBack(uint32_t index);
  std::optional<IoCompletion> OnError(uint32_t index, int error, uint64_t now_ns);
  std::optional<IoCompletion> Again(uint32_t index);
  IoCompletion Finish(uint32_t index, int error);

  const StorageFile& file_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  std::vector<uint32_t> ready_;  // slots to start, in order
  size_t in_engine_ = 0;
  int direct_error_ = 0;
  uint64_t direct_error_offset_ = 0;
  uint64_t retries_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_IO_READ_OPERATIONS_H_
