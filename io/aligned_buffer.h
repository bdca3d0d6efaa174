// Page-aligned memory for direct I/O and for everything sized from the memory budget: taken with
// mmap, zeroed, in large pages where the system has them, given back whole, never grown.
#ifndef SLUICE_IO_ALIGNED_BUFFER_H_
#define SLUICE_IO_ALIGNED_BUFFER_H_

#include <cstddef>
#include <span>

#include "absl/status/statusor.h"

namespace sluice {

class AlignedBuffer {
 public:
  // `size` is rounded up to whole pages; 0 gives an empty buffer. ResourceExhausted if the system
  // has no memory.
  static absl::StatusOr<AlignedBuffer> Allocate(size_t size);

  AlignedBuffer() = default;
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<std::byte> span() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_IO_ALIGNED_BUFFER_H_
