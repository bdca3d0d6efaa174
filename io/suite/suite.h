// Runs the cells of the storage suite one after another, with a gate between them, and says of each
// what came out and under which circumstances.
#ifndef SLUICE_IO_SUITE_SUITE_H_
#define SLUICE_IO_SUITE_SUITE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "io/suite/load.h"
#include "io/suite/system_state.h"

namespace sluice {

// Of the windows of a cell; percentiles by linear interpolation between ranks.
struct Spread {
  double median = 0, p5 = 0, p95 = 0;
};
Spread SpreadOf(std::vector<double> samples);

struct CellResult {
  LoadSpec spec;
  LoadResult load;
  SystemState before, after;
  double waited_s = 0;        // at the gate before the cell
  bool gate_gave_up = false;  // the machine had not come back to its state at entry

  double megabytes_per_second(const LoadWindow& window) const;
  Spread megabytes_per_second() const;  // 10^6 bytes
  Spread operations_per_second() const;
  double cpu_us_per_operation() const;
  LatencyHistogram latency() const;  // of all windows
  // Bytes came from the page cache, not from the device: this is not a figure of the storage. An
  // emulated device does not mind.
  bool reads_cache() const;
  // Bytes were in holes of the file: the file system made them up.
  bool reads_holes() const;
  // Neither; only such cells are compared, and make profiles.
  bool reads_device() const { return !reads_cache() && !reads_holes(); }
};

struct SuiteOptions {
  // The gate: before a cell, wait until the hottest zone is at most so much hotter than at entry
  // and this share of the memory that was available at entry is available, but no longer than so.
  double gate_degrees = 3;
  double gate_memory_share = 0.8;
  double gate_limit_s = 30;
  const std::atomic<int>* stop = nullptr;
  std::function<void(size_t done, size_t total, double seconds_left)> progress;
};

// Cells that were measured before an error or a stop are in *results all the same.
absl::Status RunSuite(const std::string& path, std::span<const LoadSpec> specs,
                      const SuiteOptions& options, std::vector<CellResult>* results);

}  // namespace sluice

#endif  // SLUICE_IO_SUITE_SUITE_H_
