// How threads of the process wait for one another: CpuRelax in a short spin, then sleeping on a
// word until another thread changes it. std::atomic::wait does the latter too but gives the
// processor away several times before it sleeps, which costs a loaded machine more than the sleep,
// and knows no time limit.
#ifndef SLUICE_IO_FUTEX_H_
#define SLUICE_IO_FUTEX_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace sluice {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
              std::atomic<uint32_t>::is_always_lock_free);

inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns at once unless `word` is `expected`. May return early for no reason; look again.
// `limit_ns` < 1 s; 0: no limit.
inline void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t limit_ns = 0) {
  const struct timespec limit = {0, static_cast<long>(limit_ns)};
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, limit_ns == 0 ? nullptr : &limit, nullptr,
          0);
}

// Wakes one thread that sleeps on `word`, after it was changed.
inline void FutexWake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

}  // namespace sluice

#endif  // SLUICE_IO_FUTEX_H_
