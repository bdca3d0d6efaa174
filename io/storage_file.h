// A file open for reading, with what was found out about direct I/O on it.
//
// O_DIRECT is verified, not assumed: file systems accept the flag and then fail the first read,
// read through the page cache all the same, or report success and leave the buffer untouched. The
// probe reads into a poisoned buffer at the real block size, in several places of the file, and
// compares with a buffered read.
//
// Thread-compatible; the descriptors may be used from any thread while the object lives.
#ifndef SLUICE_IO_STORAGE_FILE_H_
#define SLUICE_IO_STORAGE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace sluice {

enum class DirectMode {
  kAuto,  // direct if the probe passes, else buffered, and the reason is kept
  kOn,    // direct, or FailedPrecondition with the reason
  kOff,   // buffered
};

class StorageFile {
 public:
  // `block` is the granularity of the reads that will follow (offset, length and address); direct
  // I/O that needs a larger one counts as not working. A power of two, 512 .. 1 MiB. Refuses what
  // is neither a regular file nor a block device, and what is empty.
  static absl::StatusOr<std::unique_ptr<StorageFile>> Open(const std::string& path, DirectMode mode,
                                                           uint32_t block);
  ~StorageFile();
  StorageFile(const StorageFile&) = delete;
  StorageFile& operator=(const StorageFile&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  // The alignment of offset, length and address with which direct reads were verified.
  uint32_t block() const { return block_; }
  // The descriptor to read through: the direct one if direct().
  int fd() const { return direct_ ? direct_fd_ : buffered_fd_; }
  int buffered_fd() const { return buffered_fd_; }
  bool direct() const { return direct_; }
  // One clause for the log: "O_DIRECT verified at 512 B" or "buffered: O_DIRECT read failed (...)".
  const std::string& mode_note() const { return mode_note_; }

  // A plain buffered read of exactly dst.size() bytes, for headers and directories. DataLoss naming
  // the file if it ends before. Thread-safe.
  absl::Status ReadExactly(uint64_t offset, std::span<std::byte> dst) const;

 private:
  StorageFile() = default;

  std::string path_;
  std::string mode_note_;
  uint64_t size_ = 0;
  uint32_t block_ = 0;
  int direct_fd_ = -1;
  int buffered_fd_ = -1;
  bool direct_ = false;
};

}  // namespace sluice

#endif  // SLUICE_IO_STORAGE_FILE_H_
