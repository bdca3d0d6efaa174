// The axes of the storage suite and how a command line spells them: lists and ranges, sizes with
// the suffixes that fio users write (4k, 64K, 1M: KiB, MiB).
#ifndef SLUICE_IO_SUITE_AXES_H_
#define SLUICE_IO_SUITE_AXES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "io/suite/load.h"

namespace sluice {

// "4096", "4k", "512K", "32M", "2G", "1T". InvalidArgument for anything else, zero, and what does
// not fit 63 bits.
absl::StatusOr<uint64_t> ParseSize(std::string_view text);

// "4k,64k" or "4k-1M*4" (4k, 16k, 64k, 256k, 1M; the factor is 2 if it is left out) or both mixed.
absl::StatusOr<std::vector<uint64_t>> ParseSizes(std::string_view text);
// The same for plain numbers: "1,2,8" or "1-32*2".
absl::StatusOr<std::vector<uint64_t>> ParseNumbers(std::string_view text);

// The shortest spelling: "4k", "1M", "1000".
std::string FormatSize(uint64_t bytes);
// The same, but what would take more than six characters is rounded to three digits: "8.56M".
std::string ShortSize(uint64_t bytes);

// Every combination is a cell. No axis may be empty.
struct Axes {
  std::vector<bool> random = {false, true};
  std::vector<LoadEngine> engines = {LoadEngine::kUring};
  std::vector<bool> direct = {true};
  std::vector<uint64_t> blocks = {4096};
  std::vector<uint64_t> ranges = {0};  // 0: the whole file
  std::vector<uint64_t> depths = {1};
  std::vector<int> cores = {-1};
  std::vector<uint64_t> jobs = {1};

  // The matrix of the storage section of PowerInfer-2 (arXiv 2406.06282): block x pattern, then
  // small random reads by range, then by core, then by number of submitting threads.
  static std::vector<Axes> Phone(const std::vector<int>& cores);
};

// How many cells the axes would have, at most UINT64_MAX: lists multiply.
uint64_t CountCells(const Axes& axes);

// The cells, in an order in which neighbours differ in few things. A range is cut to the file; a
// cell with fewer blocks than it needs (LeastBlocks) is left out, and counted in *n_left_out.
std::vector<LoadSpec> ExpandAxes(const Axes& axes, uint64_t file_bytes, const LoadSpec& base,
                                 size_t* n_left_out = nullptr);

// Without cells that are there before: from values that were given twice, or ranges that the end of
// the file made equal.
std::vector<LoadSpec> WithoutRepeats(const std::vector<LoadSpec>& cells);

}  // namespace sluice

#endif  // SLUICE_IO_SUITE_AXES_H_
