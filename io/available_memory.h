// How much memory this process may still take without pushing others, or itself, out.
#ifndef SLUICE_IO_AVAILABLE_MEMORY_H_
#define SLUICE_IO_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <string>

namespace sluice {

// MemAvailable of the system, or what is left in a memory cgroup (v1 or v2) that the process is in,
// if that is less; file pages that the kernel would drop count as free. 0 if unknown. Reads /proc
// and /sys below `root`.
uint64_t AvailableMemory(const std::string& root = "");

}  // namespace sluice

#endif  // SLUICE_IO_AVAILABLE_MEMORY_H_
