// How long a storage device takes for a read, from a table of measured or published throughputs. A
// table and not a formula: published figures of UFS do not fit one (two 4 KiB reads beat one of
// 8 KiB), and what lies between them is interpolated and says so.
#ifndef SLUICE_IO_DEVICE_MODEL_H_
#define SLUICE_IO_DEVICE_MODEL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice {

enum class CoreClass { kBig, kMiddle, kLittle };
std::string_view CoreClassName(CoreClass core);  // "big", "middle", "little"

// Immutable; thread-safe.
class DeviceModel {
 public:
  // A point of the table.
  struct Point {
    bool random = true;
    uint32_t block = 0;             // bytes
    std::optional<uint64_t> range;  // bytes; absent: reads all over a file of any size
    CoreClass core = CoreClass::kBig;
    double megabytes_per_second = 0;
  };
  struct Bound {
    bool random = true;
    uint32_t block_max = 0;  // for blocks up to this
    double megabytes_per_second = 0;
  };

  // A JSON document with "name", "read_MBps": [{pattern, block, range, core, value}], and
  // optionally "queue_entries", "upper_bounds_MBps": [{pattern, block_max, value}] and
  // "multi_core_issue_penalty": {"max_loss"}. `source` names it in errors, which say which field is
  // missing or wrong (InvalidArgument).
  static absl::StatusOr<DeviceModel> Parse(std::string_view json, const std::string& source);

  // FailedPrecondition if there is no random read of a big core among them.
  static absl::StatusOr<DeviceModel> FromPoints(std::string name, std::vector<Point> points);

  const std::string& name() const { return name_; }
  uint32_t queue_entries() const { return queue_entries_; }
  const std::vector<Point>& points() const { return points_; }
  const std::vector<Bound>& bounds() const { return bounds_; }
  double max_loss() const { return max_loss_; }

  // What the device gives with its queue kept full, in 10^6 bytes a second. At a point of the table
  // its value; else between points, logarithmically in block and range; never above a bound.
  double MegabytesPerSecond(bool random, uint32_t block, uint64_t range, CoreClass core) const;
  // The time of one read of that kind in the device, in nanoseconds.
  double ServiceNs(bool random, uint32_t block, uint64_t range, CoreClass core) const;
  // By how much service slows down where several cores issue reads: at most 1 / (1 - max_loss).
  double ContentionFactor(int n_submitters) const;

 private:
  DeviceModel() = default;
  bool HasStart() const;

  // Of a big core, at a block size of the table.
  double InRange(bool random, uint32_t block, uint64_t range) const;
  double ExtraNs(CoreClass core) const;

  std::string name_;
  uint32_t queue_entries_ = 32;
  double max_loss_ = 0;
  std::vector<Point> points_;
  std::vector<Bound> bounds_;
};

}  // namespace sluice

#endif  // SLUICE_IO_DEVICE_MODEL_H_
