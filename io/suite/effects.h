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
  kEffect,     // the interval leaves out 1
  kNone,       // it lies within 5 % of 1
  kUndecided,  // it is too wide to say
};
std::string_view EffectVerdictName(
    EffectVerdict verdict);  // "effect", "no effect on this device", ...

// Two values of an axis, everything else being equal.
struct AxisEffect {
  std::string axis;          // as its flag: "bs", "iodepth", ...
  std::string from, to;      // values
  double ratio = 1;          // of throughput, `to` over `from`: geometric mean over the pairs
  double low = 1, high = 1;  // 95 % confidence interval (Student's t on the logarithms)
  size_t n_pairs = 0;        // windows compared
  EffectVerdict verdict = EffectVerdict::kUndecided;
};

// For each axis with several values: each value against the first one that was measured. Cells that
// differ in another axis too are never compared, nor are cells that read the cache or holes.
std::vector<AxisEffect> AxisEffects(std::span<const CellResult> cells);

}  // namespace sluice

#endif  // SLUICE_IO_SUITE_EFFECTS_H_
