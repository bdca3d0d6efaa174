#include "io/direct_probe.h"

#include <fcntl.h>
#include <linux/stat.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>

#include "absl/strings/str_cat.h"
#include "io/aligned_buffer.h"
#include "io/status.h"

namespace sluice {
namespace {

// Where the probe looks, and how much a read there must return.
struct Place {
  uint64_t offset;
  uint32_t length;
};

std::array<Place, 3> PlacesOf(uint64_t size, uint32_t block) {
  const auto at = [&](uint64_t index) {
    const uint64_t offset = index * block;
    return Place{offset, static_cast<uint32_t>(std::min<uint64_t>(block, size - offset))};
  };
  const uint64_t last_full = size >= block ? size / block - 1 : 0;
  return {at(0), at(last_full / 2), at(last_full)};
}

// Whether the page at `offset` is in the page cache; nullopt where the kernel does not say.
std::optional<bool> IsCached(int fd, uint64_t offset) {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  void* map =
      mmap(nullptr, page, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset / page * page));
  if (map == MAP_FAILED) return std::nullopt;
  unsigned char resident = 0;
  const bool known = mincore(map, page, &resident) == 0;
  munmap(map, page);
  if (!known) return std::nullopt;
  return (resident & 1) != 0;
}

// The alignment that the file system states for direct I/O; 0 where it states none.
uint32_t StatedAlignment(int fd) {
#ifdef STATX_DIOALIGN
  struct statx info;
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0) {
    return std::max(info.stx_dio_offset_align, info.stx_dio_mem_align);
  }
#else
  static_cast<void>(fd);
#endif
  return 0;
}

class Prober {
 public:
  Prober(const DirectReader& direct_read, int buffered_fd, uint64_t size, AlignedBuffer memory)
      : direct_read_(direct_read),
        buffered_fd_(buffered_fd),
        size_(size),
        memory_(std::move(memory)) {}

  // How much memory probing at `block` takes.
  static size_t MemoryFor(uint32_t block) { return 4 * static_cast<size_t>(block); }

  // An empty string if direct reads of `block` bytes work, else the reason why not. A failed
  // buffered read is the error of the status.
  absl::StatusOr<std::string> TryBlock(uint32_t block) {
    // An odd multiple of `block`: aligned to it and to nothing larger.
    std::byte* const target = memory_.data() + block;
    std::byte* const first = memory_.data() + 2 * static_cast<size_t>(block);
    std::byte* const expected = memory_.data() + 3 * static_cast<size_t>(block);
    int judged = 0;
    int through_cache = 0;
    for (const Place& place : PlacesOf(size_, block)) {
      // Before anything reads the place buffered, and so brings it into the cache itself.
      posix_fadvise(buffered_fd_, static_cast<off_t>(place.offset), block, POSIX_FADV_DONTNEED);
      const std::optional<bool> cached_before = IsCached(buffered_fd_, place.offset);
      // A buffer left untouched keeps its poison. Two poisons that differ in every bit cannot both
      // be what the file holds.
      std::string problem = ReadPoisoned(place, block, std::byte{0xa5}, target);
      if (!problem.empty()) return problem;
      const std::optional<bool> cached_after = IsCached(buffered_fd_, place.offset);
      memcpy(first, target, place.length);
      problem = ReadPoisoned(place, block, std::byte{0x5a}, target);
      if (!problem.empty()) return problem;
      if (cached_before == false && cached_after.has_value()) {
        ++judged;
        if (*cached_after) ++through_cache;
      }
      SLUICE_RETURN_IF_ERROR(ReadBuffered(place, expected));
      if (memcmp(first, expected, place.length) != 0 ||
          memcmp(target, expected, place.length) != 0) {
        return absl::StrCat("O_DIRECT reads reported success but gave wrong bytes at offset ",
                            place.offset);
      }
    }
    // Somebody else may be reading the file just now: one place outside the cache is enough.
    if (judged > 0 && through_cache == judged) {
      return std::string("O_DIRECT reads go through the page cache here");
    }
    return std::string();
  }

 private:
  std::string ReadPoisoned(const Place& place, uint32_t block, std::byte poison,
                           std::byte* target) const {
    std::fill_n(target, block, poison);
    ssize_t got;
    do {
      got = direct_read_(target, block, place.offset);
    } while (got < 0 && errno == EINTR);
    const std::string where = absl::StrCat(block, " B at offset ", place.offset);
    if (got < 0) return absl::StrCat("O_DIRECT read of ", where, " failed: ", strerror(errno));
    if (got != static_cast<ssize_t>(place.length)) {
      return absl::StrCat("O_DIRECT read of ", where, " returned ", got, " bytes");
    }
    return std::string();
  }

  absl::Status ReadBuffered(const Place& place, std::byte* out) const {
    uint32_t done = 0;
    while (done < place.length) {
      const ssize_t got = pread(buffered_fd_, out + done, place.length - done,
                                static_cast<off_t>(place.offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ErrnoStatus(errno, absl::StrCat("cannot read at byte ", place.offset));
      if (got == 0) {
        return absl::DataLossError(absl::StrCat("ends at byte ", place.offset + done, ", ", size_,
                                                " expected: it changed while it was opened"));
      }
      done += static_cast<uint32_t>(got);
    }
    return absl::OkStatus();
  }

  const DirectReader& direct_read_;
  int buffered_fd_;
  uint64_t size_;
  AlignedBuffer memory_;
};

}  // namespace

absl::StatusOr<DirectProbeResult> ProbeDirectIo(int direct_fd, int buffered_fd, uint64_t size,
                                                uint32_t block) {
  const auto direct_read = [direct_fd](std::byte* dst, size_t length, uint64_t offset) {
    return pread(direct_fd, dst, length, static_cast<off_t>(offset));
  };
  return ProbeDirectReads(direct_read, StatedAlignment(direct_fd), buffered_fd, size, block);
}

absl::StatusOr<DirectProbeResult> ProbeDirectReads(const DirectReader& direct_read,
                                                   uint32_t stated_alignment, int buffered_fd,
                                                   uint64_t size, uint32_t block) {
  // The largest alignment that file systems and encrypted devices ask for in practice.
  constexpr uint32_t kMostAlignment = 64 * 1024;
  SLUICE_ASSIGN_OR_RETURN(
      AlignedBuffer memory,
      AlignedBuffer::Allocate(Prober::MemoryFor(std::max(block, kMostAlignment))));
  Prober prober(direct_read, buffered_fd, size, std::move(memory));

  DirectProbeResult result;
  if (stated_alignment > block) {
    // Such reads may still succeed, through the page cache, so the statement decides.
    result.note =
        absl::StrCat("O_DIRECT needs ", stated_alignment, " B alignment here, reads have ", block);
    return result;
  }
  SLUICE_ASSIGN_OR_RETURN(result.note, prober.TryBlock(block));
  if (result.note.empty()) {
    result.works = true;
    result.note = absl::StrCat("O_DIRECT verified at ", block, " B");
    return result;
  }
  for (uint32_t larger = block * 2; larger <= kMostAlignment; larger *= 2) {
    SLUICE_ASSIGN_OR_RETURN(const std::string problem, prober.TryBlock(larger));
    if (problem.empty()) {
      absl::StrAppend(&result.note, " (it works at ", larger, " B alignment)");
      break;
    }
  }
  return result;
}

}  // namespace sluice
