// Which axes of a suite made a difference.
#ifndef SLUICE_IO_SUITE_EFFECTS_H_
#define SLUICE_IO_SUITE_EFFECTS_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/suite/suite.h"

namespace sluice {

enum class EffectVerdict {
  kEffect,     // the interval leaves out 1; over windows: all within 10 % of 1
  kNone,       // it lies within 5 % of 1, over pairs
  kUndecided,  // it is too wide to say, or there are too few pairs
};
std::string_view EffectVerdictName(
    EffectVerdict verdict);  // "effect", "no effect on this device", ...

// With fewer pairs of cells the interval is over the windows of those that there are. Windows of a
// cell are not independent: they share what was different in its minute.
inline constexpr size_t kLeastPairs = 3;

// Two values of an axis, everything else being equal.
struct AxisEffect {
  std::string axis;          // as its flag: "bs", "iodepth", ...
  std::string from, to;      // values
  double ratio = 1;          // of throughput, `to` over `from`: geometric mean over the pairs
  double low = 1, high = 1;  // 95 % confidence interval (Student's t on the logarithms)
  size_t n_pairs = 0;        // of cells
  bool over_windows = false;
  EffectVerdict verdict = EffectVerdict::kUndecided;
};

// For each axis with several values: each value against the first one that was measured. Cells that
// differ in another axis too are never compared (of direct, what was effective counts), nor are
// cells that read the cache or holes.
std::vector<AxisEffect> AxisEffects(std::span<const CellResult> cells);

}  // namespace sluice

#endif  // SLUICE_IO_SUITE_EFFECTS_H_
