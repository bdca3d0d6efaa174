#include "io/uring_setup.h"

#include <liburing.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace sluice {

int SetUpRing(uint32_t entries, struct io_uring* ring) {
  constexpr unsigned kSetups[] = {
      // Linux 6.1. Disabled at first, because the thread that enables it becomes the only one that
      // may drive it.
      IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_R_DISABLED,
      IORING_SETUP_COOP_TASKRUN,  // Linux 5.19
      0,
  };
  int result = -EINVAL;
  for (const unsigned flags : kSetups) {
    result = io_uring_queue_init(entries, ring, flags);
    if (result != -EINVAL) break;  // EINVAL: the kernel does not know a flag
  }
  return result;
}

int EnableRing(struct io_uring* ring) {
  if ((ring->flags & IORING_SETUP_R_DISABLED) == 0) return 0;
  // liburing 2.3 declares io_uring_enable_rings, but its shared library does not export it.
  const long result =
      syscall(SYS_io_uring_register, ring->ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
  return result < 0 ? -errno : 0;
}

}  // namespace sluice
