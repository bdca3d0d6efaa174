// A file that is either complete under its final name or not there: written under a temporary name
// in the same folder, fsynced, renamed. Dropped without Commit, it removes the temporary file.
#ifndef SLUICE_IO_ATOMIC_FILE_H_
#define SLUICE_IO_ATOMIC_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace sluice {

class AtomicFile {
 public:
  struct Options {
    bool overwrite = false;        // else AlreadyExists if `path` exists
    uint64_t expected_bytes = 0;   // checked against the free space of the file system first
  };
  // Fails before anything is written: no permission, target is a directory, no space (says how much
  // is needed and how much is free). A stale temporary file of a killed run is replaced.
  static absl::StatusOr<std::unique_ptr<AtomicFile>> Create(const std::string& path,
                                                            const Options& options);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends or overwrites. Errors name the final path and say what to do for ENOSPC and EFBIG.
  absl::Status WriteAt(uint64_t offset, std::span<const std::byte> bytes);
  // Starts write-back of what was written so far and drops it from the page cache once clean, so
  // that a long write does not fill memory.
  void FlushBehind();
  // fsync, close, rename, fsync of the folder.
  absl::Status Commit();
  const std::string& path() const { return path_; }

 private:
  AtomicFile() = default;

  std::string path_;
  std::string temp_path_;
  int fd_ = -1;
};

// True if both names lead to one file (same device and inode), whatever links are in between. False
// if either does not exist.
bool SameFile(const std::string& a, const std::string& b);

}  // namespace sluice

#endif  // SLUICE_IO_ATOMIC_FILE_H_
