// What keeps reads of a range away from a device: bytes that are in the page cache, holes, and file
// systems that have no device.
#ifndef SLUICE_IO_SUITE_RANGE_STATE_H_
#define SLUICE_IO_SUITE_RANGE_STATE_H_

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"
#include "io/storage_file.h"

namespace sluice {

// The share of the pages of [offset, offset + length) that are in the page cache. Of long ranges,
// pieces that lie evenly in them are looked at.
absl::StatusOr<double> CachedShare(const StorageFile& file, uint64_t offset, uint64_t length);

// Reads [offset, offset + length) once through the page cache. Cancelled once *stop is not 0 (null:
// never).
absl::Status ReadThrough(const StorageFile& file, uint64_t offset, uint64_t length,
                         const std::atomic<int>* stop);

// The share of [offset, offset + length) that no block of the device holds: the file system makes
// up its zeros. 0 where it does not say.
double HoleShare(const StorageFile& file, uint64_t offset, uint64_t length);

// True if the file system is memory (tmpfs, ramfs). Some take O_DIRECT all the same.
bool IsInMemory(const StorageFile& file);

}  // namespace sluice

#endif  // SLUICE_IO_SUITE_RANGE_STATE_H_
