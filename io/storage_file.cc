#include "io/storage_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "io/direct_probe.h"
#include "io/status.h"

namespace sluice {
namespace {

absl::StatusOr<uint64_t> SizeOf(int fd, const struct stat& info, const std::string& path) {
  if (S_ISREG(info.st_mode)) return static_cast<uint64_t>(info.st_size);
  if (S_ISBLK(info.st_mode)) {
    uint64_t size = 0;
    if (ioctl(fd, BLKGETSIZE64, &size) != 0) {
      return ErrnoStatus(errno, absl::StrCat(path, ": size of the block device unknown"));
    }
    return size;
  }
  const char* const kind = S_ISDIR(info.st_mode) ? "a directory" : "not a regular file";
  return absl::InvalidArgumentError(absl::StrCat(path, ": is ", kind, "; give a file to read"));
}

// Opens the file a second time with O_DIRECT. -1 with errno set where that is refused, or where the
// name leads to another file by now (ESTALE).
int OpenDirect(const std::string& path, const struct stat& expected) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
  if (fd < 0) return -1;
  struct stat info;
  if (fstat(fd, &info) == 0 && info.st_dev == expected.st_dev && info.st_ino == expected.st_ino) {
    return fd;
  }
  close(fd);
  errno = ESTALE;
  return -1;
}

// O_NONBLOCK keeps open() from waiting on a FIFO, but would make io_uring reads of a block device
// fail with EAGAIN instead of waiting.
void ClearNonBlock(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0) fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
}

}  // namespace

absl::StatusOr<std::unique_ptr<StorageFile>> StorageFile::Open(const std::string& path,
                                                               DirectMode mode, uint32_t block) {
  if (!std::has_single_bit(block) || block < 512 || block > 1024 * 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": block size ", block, " is not a power of two from 512 to 1048576"));
  }
  std::unique_ptr<StorageFile> file(new StorageFile);
  file->path_ = path;
  file->block_ = block;
  file->buffered_fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->buffered_fd_ < 0) return ErrnoStatus(errno, absl::StrCat(path, ": cannot be opened"));
  struct stat info;
  if (fstat(file->buffered_fd_, &info) != 0) {
    return ErrnoStatus(errno, absl::StrCat(path, ": cannot be examined"));
  }
  SLUICE_ASSIGN_OR_RETURN(file->size_, SizeOf(file->buffered_fd_, info, path));
  if (file->size_ == 0) return absl::DataLossError(absl::StrCat(path, ": is empty"));
  ClearNonBlock(file->buffered_fd_);
  // Neurons are read in no order: read-ahead would only fetch what nobody asked for.
  posix_fadvise(file->buffered_fd_, 0, 0, POSIX_FADV_RANDOM);

  if (mode == DirectMode::kOff) {
    file->mode_note_ = "buffered, as asked";
    return file;
  }
  std::string reason;
  file->direct_fd_ = OpenDirect(path, info);
  if (file->direct_fd_ < 0) {
    reason = absl::StrCat("O_DIRECT is refused: ", strerror(errno));
  } else {
    ClearNonBlock(file->direct_fd_);
    auto probe = ProbeDirectIo(file->direct_fd_, file->buffered_fd_, file->size_, block);
    if (!probe.ok()) return Annotate(probe.status(), path);
    file->direct_ = probe->works;
    reason = probe->note;
  }
  if (!file->direct_ && mode == DirectMode::kOn) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": direct I/O does not work: ", reason,
                                                      "; use --direct auto or --direct off"));
  }
  file->mode_note_ = file->direct_ ? reason : absl::StrCat("buffered: ", reason);
  return file;
}

StorageFile::~StorageFile() {
  if (direct_fd_ >= 0) close(direct_fd_);
  if (buffered_fd_ >= 0) close(buffered_fd_);
}

absl::Status StorageFile::ReadExactly(uint64_t offset, std::span<std::byte> dst) const {
  uint64_t position = offset;
  while (!dst.empty()) {
    const ssize_t got = pread(buffered_fd_, dst.data(), dst.size(), static_cast<off_t>(position));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return ErrnoStatus(errno, absl::StrCat(path_, ": cannot read at byte ", position));
    }
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(path_, ": ends at byte ", position, ", but ",
                                              dst.size(), " more are needed; it is truncated"));
    }
    position += static_cast<uint64_t>(got);
    dst = dst.subspan(static_cast<size_t>(got));
  }
  return absl::OkStatus();
}

}  // namespace sluice
