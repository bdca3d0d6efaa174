// What decoding will cost before it is tried: a memory plan, a device profile and a trace of
// activations give hit rate, flash bytes and flash time of a token; what computing it takes, and
// how well reading goes beside that, is measured in a few short runs. Everything that comes out is
// modelled, and is to be labelled so.
#ifndef SLUICE_RUNTIME_FORECAST_H_
#define SLUICE_RUNTIME_FORECAST_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "io/device_profile.h"
#include "layout/sluice_file.h"
#include "predictor/activation_trace.h"
#include "runtime/memory_plan.h"
#include "runtime/token_timeline.h"

namespace sluice {

// Of a decoded token, on average. Times are the device's, by its profile.
struct FlashDemand {
  double hit_rate = 0;                                            // of the bundles that it needs
  double stream_bytes = 0, stream_operations = 0, stream_ns = 0;  // read ahead
  double miss_bytes = 0, miss_operations = 0, miss_ns = 0;        // asked for when needed
  TokenWork work;

  double bytes() const { return stream_bytes + miss_bytes; }
};

// `trace` goes through an empty cache of the plan's size, in the way of MissReplay; null where
// every neuron is needed (dense mode, activations without zeros).
absl::StatusOr<FlashDemand> ForecastDemand(const SluiceFile& file, const MemoryPlan& plan,
                                           const DeviceProfile& profile,
                                           const ActivationTrace* trace);

// A short run.
struct MeasuredRun {
  // Of a token, on average.
  FlashDemand demand;
  double compute_ns = 0;  // all but the waiting for reads
  double token_ns = 0;
  // Of a prompt token, all but the waiting for reads.
  double prefill_compute_ns = 0;
  // Before the prompt: touching, reading and checking what is planned.
  double planned_bytes = 0;
  double load_ns = 0;
};

// What runs with different budgets say of this machine; what lies between them is interpolated by
// the bytes that come from flash.
class MeasuredCost {
 public:
  MeasuredCost() = default;
  // At least one run. What is read must be checked and is not in the CPU's caches, so computing
  // with it takes longer. Reading may take longer than the profile says, since the I/O thread and
  // the compute threads share cores: by how much explains the time of a token; unless the runs did
  // not read from the profile's device.
  MeasuredCost(const std::vector<MeasuredRun>& runs, bool of_the_device);

  struct Cost {
    TokenCost token;
    double prefill_compute_ns = 0;  // of a prompt token
  };
  Cost At(double flash_bytes) const;
  // 0 if the runs did not read from the profile's device.
  double LoadNs(double planned_bytes) const;

 private:
  void FitLoad(const MeasuredRun& small, const MeasuredRun& large);

  struct Point {
    double flash_bytes = 0, io_ns = 0;  // of a token, by the profile
    Cost cost;
  };
  std::vector<Point> points_;  // in rising order of flash_bytes
  double load_ns_ = 0, load_ns_per_byte_ = 0;
};

// The time of a token, and of a prompt.
struct Forecast {
  FlashDemand demand;
  TokenCost cost;
  double token_ns = 0;
  double load_ns = 0;
  double prefill_ns = 0;  // of the prompt, after that

  double tokens_per_second() const { return 1e9 / token_ns; }
};

absl::StatusOr<Forecast> ForecastRun(const SluiceFile& file, const MemoryPlan& plan,
                                     const DeviceProfile& profile, const ActivationTrace* trace,
                                     const MeasuredCost& cost, uint32_t prompt_tokens);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_FORECAST_H_
