#include "io/atomic_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "io/status.h"

namespace sluice {
namespace {

bool SameInode(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

absl::Status ExistsError(const std::string& path) {
  return absl::AlreadyExistsError(
      absl::StrCat(path, ": exists already; use --force to replace it"));
}

// Whether `path` may be (re)placed by a new file.
absl::Status CheckTarget(const std::string& path, bool overwrite) {
  struct stat followed;
  if (stat(path.c_str(), &followed) == 0 && S_ISDIR(followed.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is a directory; give the name of the file to write"));
  }
  struct stat entry;  // of the name itself, so that a dangling link counts as existing
  if (lstat(path.c_str(), &entry) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return ErrnoStatus(errno, absl::StrCat(path, ": cannot be written"));
  }
  if (!S_ISREG(entry.st_mode) && !S_ISLNK(entry.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is not a regular file; give another name"));
  }
  return overwrite ? absl::OkStatus() : ExistsError(path);
}

absl::Status WriteError(int err, const std::string& path, uint64_t offset) {
  const std::string context = absl::StrCat(path, ": cannot write at byte ", offset);
  switch (err) {
    case ENOSPC:
      return absl::ResourceExhaustedError(
          absl::StrCat(context, ": the disk is full; free some space or choose another folder"));
    case EDQUOT:
      return absl::ResourceExhaustedError(absl::StrCat(
          context, ": the disk quota is used up; free some space or choose another folder"));
    case EFBIG:
      return absl::ResourceExhaustedError(
          absl::StrCat(context,
                       ": larger than a file may be here; raise the limit (ulimit -f) or choose a "
                       "file system that holds large files"));
    default:
      return ErrnoStatus(err, context);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<AtomicFile>> AtomicFile::Create(const std::string& path,
                                                               const Options& options) {
  const size_t slash = path.rfind('/');
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  if (name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "': names no file; give the name of the file to write"));
  }
  SLUICE_RETURN_IF_ERROR(CheckTarget(path, options.overwrite));

  std::unique_ptr<AtomicFile> file(new AtomicFile);
  file->path_ = path;
  file->folder_ = slash == std::string::npos ? "./" : path.substr(0, slash + 1);
  file->temp_path_ = absl::StrCat(file->folder_, ".", name, ".partial");
  file->overwrite_ = options.overwrite;
  SLUICE_RETURN_IF_ERROR(file->OpenLocked());
  // Only now, since a leftover of a killed run held space until it was truncated.
  SLUICE_RETURN_IF_ERROR(file->CheckSpace(options.expected_bytes));
  return file;
}

// Opens the temporary file, locks it and empties it.
absl::Status AtomicFile::OpenLocked() {
  // The writer that held the lock may rename or remove the file between our open and our lock; then
  // what we locked is no longer what the name leads to, and we start again.
  constexpr int kAttempts = 16;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    // No O_EXCL: the leftover of a killed run is to be replaced.
    const int fd =
        open(temp_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (fd < 0) {
      if (errno == ENOENT) {
        return absl::NotFoundError(
            absl::StrCat(path_, ": the folder ", folder_, " does not exist; make it first"));
      }
      return ErrnoStatus(
          errno, absl::StrCat(path_, ": cannot be written (creating ", temp_path_, " beside it)"));
    }
    // Where the file system has no locks (ENOLCK, EOPNOTSUPP) the writers are not told apart.
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      close(fd);
      return absl::FailedPreconditionError(
          absl::StrCat("another process is writing ", path_, "; wait for it to end"));
    }
    struct stat opened;
    struct stat named;
    const bool current = fstat(fd, &opened) == 0 && lstat(temp_path_.c_str(), &named) == 0 &&
                         SameInode(opened, named);
    if (!current) {
      close(fd);
      continue;
    }
    if (!S_ISREG(opened.st_mode)) {
      close(fd);
      return absl::InvalidArgumentError(absl::StrCat(path_, ": cannot be written: ", temp_path_,
                                                     " is not a regular file; remove it"));
    }
    fd_ = fd;
    if (ftruncate(fd, 0) != 0) return WriteError(errno, path_, 0);
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("other processes keep writing ", path_, "; wait for them to end"));
}

absl::Status AtomicFile::CheckSpace(uint64_t expected_bytes) const {
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < expected_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(path_, ": needs ", expected_bytes,
                                                     " bytes, but the file size limit is ",
                                                     limit.rlim_cur, "; raise it (ulimit -f)"));
  }
  struct statvfs fs;
  // An unknown amount of free space is no reason to refuse: writing will tell.
  if (fstatvfs(fd_, &fs) != 0 || fs.f_blocks == 0) return absl::OkStatus();
  const uint64_t free_bytes = fs.f_bavail * (fs.f_frsize != 0 ? fs.f_frsize : fs.f_bsize);
  if (expected_bytes > free_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path_, ": needs ", expected_bytes, " bytes, but only ", free_bytes,
                     " are free on the disk; free some space or choose another folder"));
  }
  return absl::OkStatus();
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  // The name goes before the lock does, so that it can only be ours.
  unlink(temp_path_.c_str());
  close(fd_);
}

absl::Status AtomicFile::WriteAt(uint64_t offset, std::span<const std::byte> bytes) {
  if (fd_ < 0) return absl::FailedPreconditionError(absl::StrCat(path_, ": is closed already"));
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return WriteError(errno, path_, offset);
    if (written == 0) return WriteError(EIO, path_, offset);
    offset += static_cast<uint64_t>(written);
    bytes = bytes.subspan(static_cast<size_t>(written));
    end_ = std::max(end_, offset);
  }
  return absl::OkStatus();
}

void AtomicFile::FlushBehind() {
  if (fd_ < 0) return;
  const auto sync_range = [this](uint64_t begin, uint64_t end, unsigned flags) {
    if (begin >= end) return;
    if (sync_file_range(fd_, static_cast<off_t>(begin), static_cast<off_t>(end - begin), flags) ==
        0) {
      return;
    }
    // Waiting takes the error away from the later fsync, so it is kept. Others mean that the file
    // system has no such call.
    if (errno == EIO || errno == ENOSPC || errno == EDQUOT) write_back_error_ = errno;
  };
  // Two windows: the newest starts to be written while the one before is waited for, so that the
  // disk always has work. Only clean pages can be dropped.
  sync_range(write_back_end_, end_, SYNC_FILE_RANGE_WRITE);
  sync_range(dropped_end_, write_back_end_,
             SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  if (dropped_end_ < write_back_end_) {
    posix_fadvise(fd_, static_cast<off_t>(dropped_end_),
                  static_cast<off_t>(write_back_end_ - dropped_end_), POSIX_FADV_DONTNEED);
  }
  dropped_end_ = write_back_end_;
  write_back_end_ = end_;
}

absl::Status AtomicFile::Commit() {
  if (fd_ < 0) return absl::FailedPreconditionError(absl::StrCat(path_, ": is closed already"));
  int err = write_back_error_;
  while (err == 0 && fsync(fd_) != 0) {
    if (errno != EINTR) err = errno;
  }
  if (err == ENOSPC || err == EDQUOT) return WriteError(err, path_, end_);
  if (err != 0) return ErrnoStatus(err, absl::StrCat(path_, ": cannot be flushed to the disk"));
  // Renamed before it is closed, and so unlocked: until then nobody may take the temporary name.
  SLUICE_RETURN_IF_ERROR(Rename());
  close(fd_);
  fd_ = -1;
  return SyncFolder();
}

absl::Status AtomicFile::Rename() {
  int result;
  if (overwrite_) {
    result = rename(temp_path_.c_str(), path_.c_str());
  } else {
    result = renameat2(AT_FDCWD, temp_path_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE);
    if (result != 0 && (errno == EINVAL || errno == ENOSYS)) {
      // No such rename here: what remains is to look again, which leaves a short gap.
      SLUICE_RETURN_IF_ERROR(CheckTarget(path_, /*overwrite=*/false));
      result = rename(temp_path_.c_str(), path_.c_str());
    }
  }
  if (result == 0) return absl::OkStatus();
  if (errno == EEXIST) return ExistsError(path_);
  return ErrnoStatus(errno, absl::StrCat(path_, ": cannot be put in place of ", temp_path_));
}

absl::Status AtomicFile::SyncFolder() const {
  const int fd = open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return absl::OkStatus();  // a folder that may be written but not read
  const int err = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  // EINVAL: the file system has nothing to flush for folders.
  if (err == 0 || err == EINVAL || err == EOPNOTSUPP) return absl::OkStatus();
  return ErrnoStatus(
      err, absl::StrCat(path_, ": is complete, but its folder could not be flushed to the disk"));
}

bool SameFile(const std::string& a, const std::string& b) {
  struct stat stat_a;
  struct stat stat_b;
  return stat(a.c_str(), &stat_a) == 0 && stat(b.c_str(), &stat_b) == 0 &&
         SameInode(stat_a, stat_b);
}

}  // namespace sluice
