#include "io/suite/range_state.h"

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/status.h"

namespace sluice {
namespace {

// 64 GiB are looked at whole.
constexpr uint64_t kPieceBytes = 64 << 20;
constexpr uint64_t kMostPieces = 1024;

// Scattered small extents can be many; this many say enough.
constexpr int kMostExtents = 100'000;

// Counts the pages of [begin, begin + length) that are in the cache; `begin` is a page's.
absl::StatusOr<uint64_t> CountCached(const StorageFile& file, uint64_t begin, uint64_t length,
                                     std::vector<unsigned char>& resident) {
  void* const map =
      mmap(nullptr, length, PROT_READ, MAP_SHARED, file.buffered_fd(), static_cast<off_t>(begin));
  if (map == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat(file.path(), ": cannot be mapped"));
  const int result = mincore(map, length, resident.data());
  const int error = errno;
  munmap(map, length);
  if (result != 0) return ErrnoStatus(error, absl::StrCat(file.path(), ": mincore"));
  return static_cast<uint64_t>(std::count_if(resident.begin(), resident.end(),
                                             [](unsigned char r) { return (r & 1) != 0; }));
}

}  // namespace

absl::Status ReadThrough(const StorageFile& file, uint64_t offset, uint64_t length,
                         const std::atomic<int>* stop) {
  std::vector<char> buffer(size_t{1} << 20);
  for (uint64_t at = offset; at < offset + length;) {
    if (stop != nullptr && stop->load(std::memory_order_relaxed) != 0) {
      return absl::CancelledError("stopped on request");
    }
    const size_t wanted = std::min<uint64_t>(buffer.size(), offset + length - at);
    const ssize_t got = pread(file.buffered_fd(), buffer.data(), wanted, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return ErrnoStatus(got < 0 ? errno : ENODATA,
                         absl::StrCat(file.path(), ": reading at byte ", at));
    }
    at += static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

absl::StatusOr<double> CachedShare(const StorageFile& file, uint64_t offset, uint64_t length) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t begin = offset / page * page, end = offset + length;
  const uint64_t n_pieces = (end - begin + kPieceBytes - 1) / kPieceBytes;
  const uint64_t stride = std::max<uint64_t>(n_pieces / kMostPieces, 1);
  uint64_t cached = 0, seen = 0;
  std::vector<unsigned char> resident;
  for (uint64_t piece = 0; piece < n_pieces; piece += stride) {
    const uint64_t at = begin + piece * kPieceBytes;
    const uint64_t bytes = std::min(kPieceBytes, end - at);
    resident.assign((bytes + page - 1) / page, 0);
    SLUICE_ASSIGN_OR_RETURN(const uint64_t here, CountCached(file, at, bytes, resident));
    cached += here;
    seen += resident.size();
  }
  return static_cast<double>(cached) / static_cast<double>(seen);
}

double HoleShare(const StorageFile& file, uint64_t offset, uint64_t length) {
  const auto begin = static_cast<off_t>(offset), end = static_cast<off_t>(offset + length);
  off_t at = begin, holes = 0;
  for (int extent = 0; at < end && extent < kMostExtents; ++extent) {
    off_t data = lseek(file.buffered_fd(), at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) data = end;  // nothing but a hole from here on
    if (data < 0) return 0;
    holes += std::min(data, end) - at;
    at = data < end ? lseek(file.buffered_fd(), data, SEEK_HOLE) : end;
    if (at < 0) return 0;
  }
  return static_cast<double>(holes) / static_cast<double>(std::min(at, end) - begin);
}

bool IsInMemory(const StorageFile& file) {
  struct statfs fs;
  if (fstatfs(file.buffered_fd(), &fs) != 0) return false;
  return fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC;
}

}  // namespace sluice
