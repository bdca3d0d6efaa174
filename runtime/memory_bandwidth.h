// What DRAM gives to threads that only read: the roof for everything that goes through weights.
#ifndef SLUICE_RUNTIME_MEMORY_BANDWIDTH_H_
#define SLUICE_RUNTIME_MEMORY_BANDWIDTH_H_

#include <cstddef>

#include "absl/status/statusor.h"

namespace sluice {

// Bytes per second of `n_threads` threads that read a buffer of so many bytes, which should be
// several times the last cache; the best of a few passes. The buffer is of the kind that weights
// are kept in, and is given back. ResourceExhausted if there is no memory or no thread for it.
absl::StatusOr<double> MeasureMemoryBandwidth(int n_threads, size_t buffer_bytes);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_MEMORY_BANDWIDTH_H_
