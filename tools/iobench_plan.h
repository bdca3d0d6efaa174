// The flags of `sluice iobench`, and the cells that they ask for.
#ifndef SLUICE_TOOLS_IOBENCH_PLAN_H_
#define SLUICE_TOOLS_IOBENCH_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "io/suite/load.h"

namespace sluice {

struct IobenchFlags {
  std::string file, create, suite, csv, html, profile, emulate, emulate_core = "big";
  std::string rw = "read,randread", bs = "4k,64k,512k", size, offset = "0", iodepth = "1,32";
  std::string ioengine = "io_uring", direct = "1", numjobs = "1", cpus = "any";
  double runtime = 1, ramp_time = 0.25, gate = 30;
  int repeats = 3;
  bool json = false;
};

// The cells for a file of so many bytes. InvalidArgument names the flag that is wrong. Says on
// stderr how many cells were left out because their ranges hold too few blocks.
absl::StatusOr<std::vector<LoadSpec>> PlanCells(const IobenchFlags& flags, uint64_t file_bytes);

}  // namespace sluice

#endif  // SLUICE_TOOLS_IOBENCH_PLAN_H_
