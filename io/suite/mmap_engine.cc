#include "io/suite/mmap_engine.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "io/status.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<MmapEngine>> MmapEngine::Create(const StorageFile& file) {
  std::unique_ptr<MmapEngine> engine(new MmapEngine);
  // A descriptor of its own: that of the file has read-ahead turned off.
  const int fd = open(file.path().c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat(file.path(), ": cannot be opened"));
  void* const map = mmap(nullptr, file.size(), PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  close(fd);
  if (map == MAP_FAILED) return ErrnoStatus(error, absl::StrCat(file.path(), ": cannot be mapped"));
  engine->map_ = static_cast<const std::byte*>(map);
  engine->size_ = file.size();
  return engine;
}

MmapEngine::~MmapEngine() {
  if (map_ != nullptr) munmap(const_cast<std::byte*>(map_), size_);
}

absl::StatusOr<uint32_t> MmapEngine::Submit(std::span<const ReadOp> ops) {
  if (ops.empty() || has_op_) return 0;
  if (ops[0].offset > size_ || ops[0].length > size_ - ops[0].offset) {
    return absl::OutOfRangeError(absl::StrCat("a read at ", ops[0].offset, " leaves the mapping"));
  }
  op_ = ops[0];
  has_op_ = true;
  return 1;
}

absl::StatusOr<uint32_t> MmapEngine::Reap(std::span<ReadResult> results, bool /*wait*/) {
  if (!has_op_ || results.empty()) return 0;
  std::memcpy(op_.dst, map_ + op_.offset, op_.length);
  has_op_ = false;
  results[0] = {op_.user, static_cast<int32_t>(op_.length)};
  return 1;
}

}  // namespace sluice
