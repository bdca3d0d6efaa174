// Finds out whether O_DIRECT really works on a file, by reading.
#ifndef SLUICE_IO_DIRECT_PROBE_H_
#define SLUICE_IO_DIRECT_PROBE_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace sluice {

struct DirectProbeResult {
  bool works = false;
  std::string note;  // one clause: "O_DIRECT verified at 512 B", or why it does not work
};

// `direct_fd` and `buffered_fd` are two descriptors of one file of `size` > 0 bytes, the first
// opened with O_DIRECT. Reads of `block` bytes at addresses aligned to `block` and no better, at
// the start, in the middle and at the end of the file, must return what buffered reads return, must
// not leave the buffer untouched, and must bypass the page cache as far as the kernel lets us see
// that. An error only if the probe itself cannot run: no memory, or the buffered reads fail.
absl::StatusOr<DirectProbeResult> ProbeDirectIo(int direct_fd, int buffered_fd, uint64_t size,
                                                uint32_t block);

// The same with the direct reads as a function, which behaves like pread, and with the alignment
// that the file system states for them, 0 if it states none. Tests bring readers of their own.
using DirectReader = std::function<ssize_t(std::byte* dst, size_t length, uint64_t offset)>;
absl::StatusOr<DirectProbeResult> ProbeDirectReads(const DirectReader& direct_read,
                                                   uint32_t stated_alignment, int buffered_fd,
                                                   uint64_t size, uint32_t block);

}  // namespace sluice

#endif  // SLUICE_IO_DIRECT_PROBE_H_
