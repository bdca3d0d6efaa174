// What is known of a storage device, kept as JSON: a table of throughputs (DeviceModel), and fits
// of what a batch of random reads costs. A run of `sluice iobench --profile` writes one; the read
// merger, the choice of queue depth and the planner load it.
#ifndef SLUICE_IO_DEVICE_PROFILE_H_
#define SLUICE_IO_DEVICE_PROFILE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "io/device_model.h"

namespace sluice {

// The measured time of a random read of this size, for the device as a whole.
struct MeasuredRead {
  uint32_t block = 0;  // bytes
  double ns = 0;
};

// Random reads within a range, so many in flight: time = operations * operation_ns + bytes *
// ns_per_byte, for the device as a whole. That is a line through what was measured, which bends.
struct CostFit {
  uint64_t range = 0;  // bytes
  uint32_t depth = 0;
  double operation_ns = 0;
  double ns_per_byte = 0;
  double worst_residual = 0;             // the largest |predicted / measured - 1| of `reads`
  std::vector<MeasuredRead> reads = {};  // in rising block; empty if only the line is known

  double TimeNs(uint64_t operations, uint64_t bytes) const {
    return static_cast<double>(operations) * operation_ns +
           static_cast<double>(bytes) * ns_per_byte;
  }
  // Of one read: interpolated between those that were measured, or by the line.
  double ReadNs(uint32_t bytes) const;
};

// Immutable but for what a maker sets; thread-safe after that.
class DeviceProfile {
 public:
  // Fits may be missing, as in a table of published figures; then costs come from the table.
  // InvalidArgument says which field is wrong.
  static absl::StatusOr<DeviceProfile> Parse(std::string_view json, const std::string& source);
  static absl::StatusOr<DeviceProfile> Load(const std::string& path);
  explicit DeviceProfile(DeviceModel model) : model_(std::move(model)) {}

  std::string ToJson() const;

  // What was measured, as DeviceIdentity() of io/suite names it; empty: not said, as of published
  // figures and of emulations.
  const std::string& device() const { return device_; }
  void SetDevice(std::string device) { device_ = std::move(device); }

  const DeviceModel& model() const { return model_; }
  const std::vector<CostFit>& fits() const { return fits_; }
  void AddFit(CostFit fit) { fits_.push_back(std::move(fit)); }

  // The time of one random read of so many bytes, where `depth` are kept in flight: from the fits
  // of the nearest range, interpolated between depths (on logarithmic scales), or, if there are
  // none, from the table.
  double ReadNs(uint32_t bytes, uint64_t range, uint32_t depth) const;
  // Whether what a read costs is known by depth.
  bool depends_on_depth() const { return !fits_.empty(); }
  // The smallest depth whose operations cost at most 5 % more than those of the best one.
  uint32_t BestDepth() const;

 private:
  DeviceModel model_;
  std::string device_;
  std::vector<CostFit> fits_;
};

}  // namespace sluice

#endif  // SLUICE_IO_DEVICE_PROFILE_H_
