// Makes a ring the way the engine wants it. Apart from the engine, because the probe does the same
// in a forked child, where only system calls are allowed.
#ifndef SLUICE_IO_URING_SETUP_H_
#define SLUICE_IO_URING_SETUP_H_

#include <cstdint>

struct io_uring;

namespace sluice {

// Tries the kindest set-up that the kernel knows: completions are handled when the driving thread
// asks for them instead of interrupting it. Never IOPOLL or SQPOLL, which hang or fail each read on
// many devices. Returns 0 or -errno. The ring may be disabled: files and buffers can be registered
// from any thread, then the thread that will drive it calls EnableRing.
int SetUpRing(uint32_t entries, struct io_uring* ring);
int EnableRing(struct io_uring* ring);

}  // namespace sluice

#endif  // SLUICE_IO_URING_SETUP_H_
