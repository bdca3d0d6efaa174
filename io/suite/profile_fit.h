// Makes a device profile from cells of the storage suite.
#ifndef SLUICE_IO_SUITE_PROFILE_FIT_H_
#define SLUICE_IO_SUITE_PROFILE_FIT_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "io/cpu_topology.h"
#include "io/device_profile.h"
#include "io/suite/suite.h"

namespace sluice {

// The class of each core by its speed: the fastest are big, the slowest little, any between middle.
// Cores of one speed are all big. A core that is not in the map counts as big.
std::map<int, CoreClass> ClassifyCores(std::span<const CpuCore> cores);

// FailedPrecondition if no profile can come of such cells, whatever they measure.
absl::Status CheckCellsFit(std::span<const LoadSpec> specs);

// Uses cells of one job that read past the page cache, with at most a quarter of the range in holes
// (which count as no reads). Of several depths, the table takes the
// fastest; a range of the whole file (`file_bytes`) counts as none. Ranges and depths at which
// random reads of two sizes or more were measured get a fit, by least squares of relative errors.
// FailedPrecondition if there is no such random cell.
absl::StatusOr<DeviceProfile> FitProfile(const std::string& name, std::span<const CellResult> cells,
                                         const std::map<int, CoreClass>& classes,
                                         uint64_t file_bytes);

}  // namespace sluice

#endif  // SLUICE_IO_SUITE_PROFILE_FIT_H_
