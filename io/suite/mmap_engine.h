// Reads by copying out of a mapping: what a program does that leaves reading to the kernel. For
// comparison in the storage suite only; one read at a time, and a file that becomes shorter ends
// the process (SIGBUS).
#ifndef SLUICE_IO_SUITE_MMAP_ENGINE_H_
#define SLUICE_IO_SUITE_MMAP_ENGINE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "io/read_engine.h"

namespace sluice {

class MmapEngine final : public ReadEngine {
 public:
  // Maps `file` whole. Operations must lie inside it.
  static absl::StatusOr<std::unique_ptr<MmapEngine>> Create(const StorageFile& file);
  ~MmapEngine() override;

  const std::string& description() const override { return description_; }
  uint32_t depth() const override { return 1; }
  absl::StatusOr<uint32_t> Submit(std::span<const ReadOp> ops) override;
  absl::StatusOr<uint32_t> Reap(std::span<ReadResult> results, bool wait) override;
  void Wake() override {}  // Reap never waits for anything but its own copy

 private:
  MmapEngine() = default;

  const std::string description_ = "mmap (page cache, one copy at a time)";
  const std::byte* map_ = nullptr;
  uint64_t size_ = 0;
  ReadOp op_;
  bool has_op_ = false;
};

}  // namespace sluice

#endif  // SLUICE_IO_SUITE_MMAP_ENGINE_H_
