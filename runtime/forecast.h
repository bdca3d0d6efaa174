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

namespace sluice {

// Of a decoded token, on average.
struct FlashDemand {
  double hit_rate = 0;  // of the bundles that it needs
  double stream_bytes = 0, stream_operations = 0;
  double miss_bytes = 0, miss_operations = 0;
  double stream_ns = 0;  // the device reads ahead: this time may pass while something is computed
  double miss_ns = 0;    // asked for when they are needed: nothing else is done meanwhile

  double bytes() const { return stream_bytes + miss_bytes; }
};

// `trace` goes through an empty cache of the plan's size, in the way of MissReplay; null where
// every neuron is needed (dense mode, activations without zeros).
absl::StatusOr<FlashDemand> ForecastDemand(const SluiceFile& file, const MemoryPlan& plan,
                                           const DeviceProfile& profile,
                                           const ActivationTrace* trace);

// What a few measured runs with different budgets say of this machine; what lies between them is
// interpolated by the bytes that come from flash.
struct MeasuredCost {
  struct Run {
    double flash_bytes = 0;  // of a token
    // Computing it: what is read must be checked, and is not in the CPU's caches.
    double compute_ns = 0;
    // By how much reading took longer than the profile says. The I/O thread and the compute threads
    // share cores, and the device is left idle at times.
    double io_factor = 1;
  };
  std::vector<Run> runs;  // at least one, in rising order of flash_bytes

  void Add(const Run& run);
  Run At(double flash_bytes) const;
};

// The factor that explains the measured time of a token, from 0.25 to 8; 1 if reading is modelled
// to take less than a fiftieth of it.
double IoFactor(const FlashDemand& demand, double compute_ns, double token_ns);

// The time of a token, and of a prompt.
struct Forecast {
  FlashDemand demand;
  MeasuredCost::Run cost;
  double token_ns = 0;
  double load_ns = 0;     // reading what is resident
  double prefill_ns = 0;  // of the prompt, after that

  double tokens_per_second() const { return 1e9 / token_ns; }
};

struct PrefillCost {
  double ns_per_token = 0;  // compute
  uint32_t n_tokens = 0;
};

absl::StatusOr<Forecast> ForecastRun(const SluiceFile& file, const MemoryPlan& plan,
                                     const DeviceProfile& profile, const ActivationTrace* trace,
                                     const MeasuredCost& cost, const PrefillCost& prefill);

// The time of a token if computing, or the device, were so many times as fast.
double TokenNs(const FlashDemand& demand, const MeasuredCost::Run& cost, double compute_speed = 1,
               double flash_speed = 1);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_FORECAST_H_
