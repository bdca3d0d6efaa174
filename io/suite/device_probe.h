// A device profile without a run of the suite: a short measurement on a file that is there anyway,
// the model's own, kept beside it.
#ifndef SLUICE_IO_SUITE_DEVICE_PROBE_H_
#define SLUICE_IO_SUITE_DEVICE_PROBE_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "io/device_profile.h"

namespace sluice {

struct ProbedDevice {
  DeviceProfile profile;
  // One clause: "measured in 1.4 s, kept in m.sluice.device.json", "from ..., measured before".
  std::string note;
};

// The file beside `path` in which its device profile is kept.
std::string ProbeCachePath(const std::string& path);

// What the device under the file at `path` costs for random reads within `range` bytes: from the
// file kept beside it if that was measured on this file and kernel with as much memory, else
// measured now, in less than two seconds of reading, with io_uring where it works, and kept if the
// folder allows it (the note says if not). Large reads are measured as deep as `memory` bytes of
// buffers allow; 2 MiB are taken in any case, and never more than 16 MiB. FailedPrecondition if the
// file cannot be read past the page cache or is too small; Cancelled once *stop is not 0.
absl::StatusOr<ProbedDevice> ProbeDevice(const std::string& path, uint64_t range, uint64_t memory,
                                         const std::atomic<int>* stop);

}  // namespace sluice

#endif  // SLUICE_IO_SUITE_DEVICE_PROBE_H_
