// A read that somebody wants: what the I/O thread takes.
#ifndef SLUICE_IO_IO_REQUEST_H_
#define SLUICE_IO_IO_REQUEST_H_

#include <cstddef>
#include <cstdint>

namespace sluice {

struct IoRequest {
  // Offset, length and dst are aligned to the file's block; what is not is read through the page
  // cache.
  uint64_t offset = 0;
  uint32_t length = 0;
  std::byte* dst = nullptr;  // must live until the completion or the end of the IoThread
  uint32_t tag = 0;          // comes back in the completion
};

struct IoCompletion {
  uint32_t tag = 0;
  int error = 0;        // 0, or the errno that remained after the retries; ENODATA: the file ended
  uint64_t offset = 0;  // of the request
};

}  // namespace sluice

#endif  // SLUICE_IO_IO_REQUEST_H_
