// Makes a ring the way the engine wants it. Apart from the engine, because the probe does the same
// in a forked child, where only system calls are allowed.
#ifndef SLUICE_IO_URING_SETUP_H_
#define SLUICE_IO_URING_SETUP_H_

#include <cstdint>

struct io_uring;

namespace sluice {

// Completions are handled when the driving thread enters the kernel instead of interrupting it,
// where the kernel knows how. Never IOPOLL or SQPOLL, which hang or fail each read on many devices,
// nor DEFER_TASKRUN, which costs 0.2 to 0.4 us more for each read. Returns 0 or -errno.
int SetUpRing(uint32_t entries, struct io_uring* ring);

}  // namespace sluice

#endif  // SLUICE_IO_URING_SETUP_H_
