// How reads reach the device: one interface, several engines. An engine is driven by one thread
// (the I/O thread) and is not thread-safe; it neither retries nor interprets results.
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
  uint32_t length = 0;
  std::byte* dst = nullptr;
  uint64_t user = 0;  // comes back in the result
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
  // Starts as many of `ops` as fit and returns how many; they complete in any order.
  virtual absl::StatusOr<uint32_t> Submit(std::span<const ReadOp> ops) = 0;
  // Stores up to results.size() completions; with `wait`, blocks until there is at least one unless
  // nothing is in flight.
  virtual absl::StatusOr<uint32_t> Reap(std::span<ReadResult> results, bool wait) = 0;
};

enum class EngineKind { kAuto, kUring, kPread };

struct EngineOptions {
  EngineKind kind = EngineKind::kAuto;
  uint32_t depth = 32;
  // Memory that reads will land in; registered with the kernel where that is allowed.
  std::span<const std::span<std::byte>> buffers;
};

// kAuto takes io_uring if a probe in a child process says that it works (a seccomp filter may kill
// instead of returning an error), else pread threads. A kind asked for by name that does not work is
// Unimplemented with the reason. `note` receives one clause that says what was chosen and why.
absl::StatusOr<std::unique_ptr<ReadEngine>> MakeReadEngine(const StorageFile& file,
                                                           const EngineOptions& options,
                                                           std::string* note);

}  // namespace sluice

#endif  // SLUICE_IO_READ_ENGINE_H_
