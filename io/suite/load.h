// One cell of the storage suite: reads of one kind, as many at a time as the depth says, by one or
// several threads, for a while. The while is cut into a warm-up and windows of equal length; each
// window is a sample.
#ifndef SLUICE_IO_SUITE_LOAD_H_
#define SLUICE_IO_SUITE_LOAD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "io/device_model.h"
#include "io/read_engine.h"
#include "io/storage_file.h"
#include "io/suite/latency_histogram.h"

namespace sluice {

enum class LoadEngine { kUring, kPread, kMmap };
std::string_view LoadEngineName(LoadEngine engine);  // "io_uring", "pread", "mmap"

struct LoadSpec {
  bool random = true;
  LoadEngine engine = LoadEngine::kUring;
  bool direct = true;     // what was asked for; what holds is in the result
  uint32_t block = 4096;  // bytes
  uint64_t offset = 0;    // of the range in the file
  uint64_t range = 0;     // bytes; the rest of the last block is left out
  uint32_t depth = 1;     // reads in flight of each job
  int n_jobs = 1;         // submitting threads
  int core = -1;          // that all jobs are pinned to; -1: none
  uint64_t seed = 1;      // of the order of random reads
  // If set, the file is read through an emulation of this device, from a core of that class.
  std::shared_ptr<const DeviceModel> emulated;
  CoreClass emulated_core = CoreClass::kBig;
  // If set, makes of each job's engine the one that it reads through. Tests bring a bad device.
  std::function<std::unique_ptr<ReadEngine>(std::unique_ptr<ReadEngine>)> wrap_engine;
  double warm_up_s = 0.25;
  double window_s = 1;
  int n_windows = 3;
};

// A sample.
struct LoadWindow {
  uint64_t ns = 0;
  uint64_t operations = 0;
  uint64_t cpu_ns = 0;  // of the whole process, user and system
  LatencyHistogram latency;
};

struct LoadResult {
  std::vector<LoadWindow> windows;
  std::string engine_note;    // "io_uring (registered file and buffers)"
  std::string affinity_note;  // of the first job; empty if none was asked for
  bool pinned = false;        // all jobs got the core
  bool direct = false;        // verified by a probe
  std::string direct_note;
  bool ran_out = false;     // every block had been read before the time was over: the windows are
                            // shorter, perhaps fewer; none if the warm-up read them all
  double cached_share = 0;  // of the range's pages, in the page cache before a read through it
  double hole_share = 0;    // of the range, that no block of the device holds
  // Of the reads through an emulated device, which the real one gave later than the model says by
  // over 5 % of its time: with more than a few, figures are not the model's.
  double late_share = 0;
};

// How many blocks a range must have for a window after the warm-up, where none is read twice.
uint64_t LeastBlocks(const LoadSpec& spec);

// Reads until the windows are over, all blocks of a random cell have been read, or *stop is not 0
// (Cancelled). Random offsets never repeat within a cell, nor do reads through the page cache;
// sequential reads that are direct or emulated begin again at the end of the range. Errors name
// file and offset: a read that fails or ends early ends the cell. Uses the process's CPU clock: one
// cell at a time.
absl::StatusOr<LoadResult> RunLoad(const std::string& path, const LoadSpec& spec,
                                   const std::atomic<int>* stop);

}  // namespace sluice

#endif  // SLUICE_IO_SUITE_LOAD_H_
