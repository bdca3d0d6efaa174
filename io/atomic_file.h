// A file that is either complete under its final name or not there: written under a temporary name
// in the same folder, fsynced, renamed. Dropped without Commit, it removes the temporary file.
//
// The temporary name is ".<name>.partial". It is locked (flock) while it is written, so that two
// writers of one target cannot mix their bytes, and what a killed run left behind is replaced.
// Thread-compatible.
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
    bool overwrite = false;       // else AlreadyExists if `path` exists
    uint64_t expected_bytes = 0;  // checked against the free space of the file system first
  };
  // Fails before anything is written: no permission, target is a directory or not a regular file,
  // no space (says how much is needed and how much is free), another process is writing the same
  // target. A target that is a symbolic link is replaced itself, not what it leads to.
  static absl::StatusOr<std::unique_ptr<AtomicFile>> Create(const std::string& path,
                                                            const Options& options);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends or overwrites. Errors name the final path and say what to do for ENOSPC and EFBIG. The
  // process must ignore SIGXFSZ to see EFBIG.
  absl::Status WriteAt(uint64_t offset, std::span<const std::byte> bytes);
  // Starts write-back of what was written so far and drops from the page cache what the call before
  // started, so that a long write does not fill memory. Call it every few MiB.
  void FlushBehind();
  // fsync, rename, fsync of the folder. After an error nothing is under the final name but what was
  // there before, unless the message says that only the folder could not be flushed. Call once.
  absl::Status Commit();
  const std::string& path() const { return path_; }

 private:
  AtomicFile() = default;

  absl::Status OpenLocked();
  absl::Status CheckSpace(uint64_t expected_bytes) const;
  absl::Status Rename();
  absl::Status SyncFolder() const;

  std::string path_;
  std::string temp_path_;
  std::string folder_;
  bool overwrite_ = false;
  int fd_ = -1;                  // -1 after Commit
  uint64_t end_ = 0;             // one past the last byte written
  uint64_t write_back_end_ = 0;  // FlushBehind has started write-back up to here ...
  uint64_t dropped_end_ = 0;     // ... and dropped the cache up to here
  int write_back_error_ = 0;     // errno that FlushBehind saw; fsync would not report it again
};

// True if both names lead to one file (same device and inode), whatever links are in between. False
// if either does not exist.
bool SameFile(const std::string& a, const std::string& b);

}  // namespace sluice

#endif  // SLUICE_IO_ATOMIC_FILE_H_
