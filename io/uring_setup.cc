#include "io/uring_setup.h"

#include <liburing.h>

#include <cerrno>

namespace sluice {

int SetUpRing(uint32_t entries, struct io_uring* ring) {
  const int result = io_uring_queue_init(entries, ring, IORING_SETUP_COOP_TASKRUN);
  if (result != -EINVAL) return result;
  return io_uring_queue_init(entries, ring, 0);  // before Linux 5.19
}

}  // namespace sluice
