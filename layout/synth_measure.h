// Measures what a written generated model achieves: greedy tokens go through a plain float forward
// pass of the file, and what its neurons did is compared with the plan.
#ifndef SLUICE_LAYOUT_SYNTH_MEASURE_H_
#define SLUICE_LAYOUT_SYNTH_MEASURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/synth_plan.h"

namespace sluice {

struct SynthMeasurement {
  uint32_t n_tokens = 0;   // measured, after ...
  uint32_t n_warm_up = 0;  // ... these, over which the context fills

  // Shares of d_ff, averaged over tokens; the mean, least and most active layer.
  double active_mean = 0;
  double active_min = 0;
  double active_max = 0;
  // The smallest share of neurons, hottest first as planned, that gives 80 % of all firings.
  double neurons_for_80_percent = 0;
  // Share of a token's active neurons that were active for the token before: of all, and of the
  // cold ones (see kColdShare).
  double overlap = 0;
  double cold_overlap = 0;
  // Of the cold neurons: how likely one is active, given that another of its group is and that
  // another of the same layer but not of its group is. 0 without groups.
  double coactivation_within = 0;
  double coactivation_across = 0;

  // The greedy walk from the beginning-of-text token, that token first, and by what the least
  // certain choice led.
  std::vector<uint32_t> walk;
  float least_margin = 0;
};

constexpr uint32_t kMaxMeasuredTokens = 512;

// Decodes `n_tokens` (1 .. kMaxMeasuredTokens) greedy tokens after the warm-up. DataLoss if greedy
// decoding leaves the planted walk.
absl::StatusOr<SynthMeasurement> MeasureSynthModel(const SynthPlan& plan, const std::string& path,
                                                   uint32_t n_tokens, uint32_t n_threads);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_SYNTH_MEASURE_H_
