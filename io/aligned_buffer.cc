#include "io/aligned_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/status.h"

namespace sluice {

absl::StatusOr<AlignedBuffer> AlignedBuffer::Allocate(size_t size) {
  AlignedBuffer buffer;
  if (size == 0) return buffer;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (size > SIZE_MAX - (page - 1)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate ", size, " bytes: more than the address space"));
  }
  const size_t rounded = (size + page - 1) / page * page;
  void* memory = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("cannot allocate ", rounded, " bytes"));
  }
  // Scattered rows touch many pages; large ones save most of the address translation. Advice only.
  constexpr size_t kLargePages = 4 << 20;
  if (rounded >= kLargePages) madvise(memory, rounded, MADV_HUGEPAGE);
  buffer.data_ = static_cast<std::byte*>(memory);
  buffer.size_ = rounded;
  return buffer;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) munmap(data_, size_);
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  // The old memory leaves with `other`, whose destructor gives it back.
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace sluice
