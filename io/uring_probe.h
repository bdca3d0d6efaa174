// Finds out whether io_uring works here, without risking this process.
#ifndef SLUICE_IO_URING_PROBE_H_
#define SLUICE_IO_URING_PROBE_H_

#include <string>

#include "absl/status/status.h"
#include "io/storage_file.h"

namespace sluice {

// Forks a child that sets up a ring and reads the start of `file` through it, since a seccomp
// filter may answer io_uring's system calls with SIGSYS instead of an error. OK if the right bytes
// came back within two seconds; otherwise Unimplemented, and the message is the reason alone, such
// as "io_uring_setup: Operation not permitted".
absl::Status ProbeUring(const StorageFile& file);

}  // namespace sluice

#endif  // SLUICE_IO_URING_PROBE_H_
