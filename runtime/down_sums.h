// The sum of a layer's down columns, made in sections of consecutive positions: each section is
// summed by itself in rising position, and the output adds the sections in their order. So threads
// work on sections from gate to down without waiting for each other, and the result does not depend
// on which thread took what, on their number, or on what arrived when.
#ifndef SLUICE_RUNTIME_DOWN_SUMS_H_
#define SLUICE_RUNTIME_DOWN_SUMS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/thread_pool.h"

namespace sluice {

// How the positions of a layer are divided; a property of its width alone.
class DownSections {
 public:
  explicit DownSections(uint32_t d_ff) : d_ff_(d_ff) {
    // Fewer rows are not worth a share of a thread. More sections than these balance no better and
    // have more sums to add.
    constexpr uint32_t kLeastRows = 128, kMost = 32, kUnit = 32;
    const uint32_t even = (d_ff + kMost - 1) / kMost;
    rows_ = std::max(kLeastRows, (even + kUnit - 1) / kUnit * kUnit);
  }
  uint32_t count() const { return (d_ff_ + rows_ - 1) / rows_; }
  uint32_t rows() const { return rows_; }  // of a section, unless it is the last
  uint32_t Of(uint32_t position) const { return position / rows_; }
  uint32_t Begin(uint32_t section) const { return section * rows_; }
  uint32_t End(uint32_t section) const { return std::min(d_ff_, (section + 1) * rows_); }

 private:
  uint32_t d_ff_, rows_;
};

// The sums of one token. Sections may be worked on by different threads, each by one at a time; all
// else is confined to the decode thread. Allocates nothing after construction.
class DownSums {
 public:
  DownSums(uint32_t d_ff, uint32_t d_model);

  static size_t Bytes(uint32_t d_ff, uint32_t d_model);

  const DownSections& sections() const { return sections_; }
  // All sums are 0.
  void Begin() { std::fill(used_.begin(), used_.end(), uint8_t{0}); }
  // [d_model], to be added to.
  float* Section(uint32_t section);
  // Adds the sections to y [d_model].
  void AddTo(ThreadPool& pool, float* y) const;

 private:
  const DownSections sections_;
  const uint32_t d_model_;
  std::vector<float> sums_;    // [section x d_model]; of those that are used
  std::vector<uint8_t> used_;  // by section
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_DOWN_SUMS_H_
