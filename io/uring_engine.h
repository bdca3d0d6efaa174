// Reads through io_uring: one system call starts a group of reads, or the last of them and waits
// for completions.
#ifndef SLUICE_IO_URING_ENGINE_H_
#define SLUICE_IO_URING_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/read_engine.h"

struct io_uring;

namespace sluice {

class UringEngine final : public ReadEngine {
 public:
  // The descriptors of `file` and the buffers are registered where the kernel allows; description()
  // says what was. Fails where there is no io_uring, or kills the process where a seccomp filter
  // does that: ask ProbeUring first.
  static absl::StatusOr<std::unique_ptr<UringEngine>> Create(
      const StorageFile& file, uint32_t depth, std::span<const std::span<std::byte>> buffers);
  ~UringEngine() override;

  const std::string& description() const override { return description_; }
  uint32_t depth() const override { return depth_; }
  absl::StatusOr<uint32_t> Submit(std::span<const ReadOp> ops) override;
  absl::StatusOr<uint32_t> Reap(std::span<ReadResult> results, bool wait) override;
  void Wake() override;

 private:
  // A registered buffer; its position in regions_ is its index in the kernel.
  struct Region {
    std::byte* begin;
    size_t size;
  };

  UringEngine(const StorageFile& file, uint32_t depth);

  void Drain();
  void RegisterFiles();
  void RegisterBuffers(std::span<const std::span<std::byte>> buffers);
  int FindRegion(const ReadOp& op) const;
  int FindFile(int fd) const;
  bool ArmWake();
  absl::Status Enter(bool wait);
  absl::StatusOr<uint32_t> Collect(std::span<ReadResult> results);

  const uint32_t depth_;
  const int fds_[2];  // in the order in which they are registered
  std::string description_;
  std::unique_ptr<struct io_uring> ring_;  // null until it is set up
  std::vector<Region> regions_;            // by address; empty: not registered
  bool files_registered_ = false;

  // A read of this eventfd is always in the ring, so that Wake ends a wait by completing it.
  int wake_fd_ = -1;
  uint64_t wake_value_ = 0;

  // Of the driving thread.
  bool wake_armed_ = false;
  bool woken_ = false;  // a wake-up was collected and not yet honoured
  uint32_t in_flight_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_IO_URING_ENGINE_H_
