// The monotonic clock, in nanoseconds.
#ifndef SLUICE_IO_CLOCK_H_
#define SLUICE_IO_CLOCK_H_

#include <time.h>

#include <cstdint>

namespace sluice {

inline uint64_t NowNs() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace sluice

#endif  // SLUICE_IO_CLOCK_H_
