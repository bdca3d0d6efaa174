// How reads reach the device: one interface, several engines. An engine may be made on any thread;
// then one thread (the I/O thread) drives and destroys it, since a ring may be bound to the thread
// that uses it first. Only Wake, description and depth may be called from others. An engine neither
// retries nor interprets results.
#ifndef SLUICE_IO_READ_ENGINE_H_
#define SLUICE_IO_READ_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "io/storage_file.h"

namespace sluice {

struct ReadOp {
  int fd = -1;
  uint64_t offset = 0;
  uint32_t length = 0;  // at most 1 GiB
  std::byte* dst = nullptr;
  uint64_t user = 0;  // comes back in the result; any value but UINT64_MAX
};

struct ReadResult {
  uint64_t user = 0;
  int32_t result = 0;  // bytes read, or -errno
};

class ReadEngine {
 public:
  // The destructor waits until nothing is in flight: the kernel must not write into freed memory.
  virtual ~ReadEngine() = default;

  // For the log: "io_uring (registered file and buffers)", "pread with 4 threads".
  virtual const std::string& description() const = 0;
  // Most operations that may be in flight.
  virtual uint32_t depth() const = 0;
  // Takes as many of `ops` as fit and returns how many; they complete in any order. They are
  // started by the next Reap at the latest, so that one system call can do both.
  virtual absl::StatusOr<uint32_t> Submit(std::span<const ReadOp> ops) = 0;
  // Stores up to results.size() completions; with `wait`, blocks until there is at least one, or
  // until Wake is called, unless nothing is in flight. May return 0 for no reason.
  virtual absl::StatusOr<uint32_t> Reap(std::span<ReadResult> results, bool wait) = 0;
  // Makes the Reap that waits, or else the next one that is told to, return without waiting.
  // Thread-safe.
  virtual void Wake() = 0;
};

enum class EngineKind { kAuto, kUring, kPread };

struct EngineOptions {
  EngineKind kind = EngineKind::kAuto;
  uint32_t depth = 32;
  // Memory that reads will land in; registered with the kernel where that is allowed.
  std::span<const std::span<std::byte>> buffers = {};
};

// kAuto takes io_uring if a probe in a child process says that it works (a seccomp filter may kill
// instead of returning an error), else pread threads. A kind asked for by name that does not work
// is Unimplemented with the reason. `note` receives one clause that says what was chosen and why.
absl::StatusOr<std::unique_ptr<ReadEngine>> MakeReadEngine(const StorageFile& file,
                                                           const EngineOptions& options,
                                                           std::string* note);

}  // namespace sluice

#endif  // SLUICE_IO_READ_ENGINE_H_
