#include "io/device_model.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>

#include "absl/strings/str_cat.h"
#include "io/json_fields.h"
#include "io/status.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

// Beyond so many times the largest range of the table, reads go all over the file.
constexpr double kWideFactor = 2;

// y at x on the straight line through two points of log-log paper.
double LogInterpolate(double x0, double y0, double x1, double y1, double x) {
  if (x1 <= x0) return y0;
  const double t = std::log(x / x0) / std::log(x1 / x0);
  return y0 * std::pow(y1 / y0, std::clamp(t, 0.0, 1.0));
}

bool IsRandom(JsonFields& entry) {
  const std::string pattern = entry.Text("pattern");
  if (pattern != "random" && pattern != "sequential") {
    entry.Fail("\"pattern\" is neither random nor sequential");
  }
  return pattern == "random";
}

CoreClass CoreOf(JsonFields& entry) {
  const std::string name = entry.Text("core");
  for (const CoreClass c : {CoreClass::kBig, CoreClass::kMiddle, CoreClass::kLittle}) {
    if (name == CoreClassName(c)) return c;
  }
  entry.Fail("\"core\" is none of big, middle, little");
  return CoreClass::kBig;
}

constexpr double kLargestBlock = 1 << 30;
constexpr double kLargestRange = 1e18;
constexpr double kFastest = 1e6;  // MB/s

}  // namespace

std::string_view CoreClassName(CoreClass core) {
  switch (core) {
    case CoreClass::kBig:
      return "big";
    case CoreClass::kMiddle:
      return "middle";
    case CoreClass::kLittle:
      return "little";
  }
  return "?";
}

absl::StatusOr<DeviceModel> DeviceModel::Parse(std::string_view text, const std::string& source) {
  const Json document = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) {
    return absl::InvalidArgumentError(source + ": is not valid JSON, as a device profile is");
  }
  JsonFields top(document, source);
  DeviceModel model;
  model.name_ = top.Text("name");
  if (top.Has("queue_entries")) {
    model.queue_entries_ = static_cast<uint32_t>(top.Number("queue_entries", 1, 65536));
  }
  if (top.Has("multi_core_issue_penalty")) {
    JsonFields penalty(document["multi_core_issue_penalty"], source + ": multi_core_issue_penalty");
    model.max_loss_ = penalty.Number("max_loss", 0, 0.99);
    SLUICE_RETURN_IF_ERROR(penalty.status());
  }
  top.Each("read_MBps", [&](JsonFields& entry) {
    Point p;
    p.random = IsRandom(entry);
    p.block = static_cast<uint32_t>(entry.Number("block", 512, kLargestBlock));
    if (entry.Has("range")) {
      p.range = static_cast<uint64_t>(entry.Number("range", 4096, kLargestRange));
    }
    p.core = CoreOf(entry);
    p.megabytes_per_second = entry.Number("value", 1e-3, kFastest);
    model.points_.push_back(p);
  });
  top.Each("upper_bounds_MBps", [&](JsonFields& entry) {
    Bound b;
    b.random = IsRandom(entry);
    b.block_max = static_cast<uint32_t>(entry.Number("block_max", 512, kLargestBlock));
    b.megabytes_per_second = entry.Number("value", 1e-3, kFastest);
    model.bounds_.push_back(b);
  });
  SLUICE_RETURN_IF_ERROR(top.status());
  if (!model.HasStart()) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": read_MBps has no random reads of a big core to start from"));
  }
  return model;
}

absl::StatusOr<DeviceModel> DeviceModel::FromPoints(std::string name, std::vector<Point> points) {
  DeviceModel model;
  model.name_ = std::move(name);
  model.points_ = std::move(points);
  if (!model.HasStart()) {
    return absl::FailedPreconditionError(
        "no random reads of a big core, past the page cache, were measured: a device profile needs "
        "them");
  }
  return model;
}

bool DeviceModel::HasStart() const {
  return std::any_of(points_.begin(), points_.end(),
                     [](const Point& p) { return p.random && p.core == CoreClass::kBig; });
}

// Points of a big core with this pattern and block, by range; one without a range lies beyond all.
double DeviceModel::InRange(bool random, uint32_t block, uint64_t range) const {
  std::map<double, double> by_range;
  std::optional<double> wide;
  for (const Point& p : points_) {
    if (p.random != random || p.block != block || p.core != CoreClass::kBig) continue;
    if (p.range) {
      by_range[static_cast<double>(*p.range)] = p.megabytes_per_second;
    } else {
      wide = p.megabytes_per_second;
    }
  }
  if (by_range.empty()) return wide.value_or(0);
  if (wide) by_range[by_range.rbegin()->first * kWideFactor] = *wide;
  const auto x = static_cast<double>(range);
  const auto above = by_range.lower_bound(x);
  if (above == by_range.begin()) return above->second;
  if (above == by_range.end()) return by_range.rbegin()->second;
  const auto below = std::prev(above);
  return LogInterpolate(below->first, below->second, above->first, above->second, x);
}

double DeviceModel::MegabytesPerSecond(bool random, uint32_t block, uint64_t range,
                                       CoreClass core) const {
  return block / ServiceNs(random, block, range, core) * 1e3;
}

double DeviceModel::ServiceNs(bool random, uint32_t block, uint64_t range, CoreClass core) const {
  std::map<double, double> by_block;
  for (const Point& p : points_) {
    if (p.random == random && p.core == CoreClass::kBig) {
      by_block[p.block] = InRange(random, p.block, range);
    }
  }
  double rate = 0;
  if (by_block.empty() || (by_block.size() == 1 && !random)) {
    // The shape of random reads, raised to the one point that is known.
    const double shape = block / ServiceNs(true, block, UINT64_MAX, CoreClass::kBig) * 1e3;
    rate = shape;
    if (!by_block.empty()) {
      const auto known = static_cast<uint32_t>(by_block.begin()->first);
      rate *= by_block.begin()->second * ServiceNs(true, known, UINT64_MAX, CoreClass::kBig) /
              (known * 1e3);
    }
  } else {
    const auto above = by_block.lower_bound(block);
    if (above == by_block.begin()) {
      rate = above->second * block / above->first;  // smaller reads take as long
    } else if (above == by_block.end()) {
      rate = by_block.rbegin()->second;
    } else {
      const auto below = std::prev(above);
      rate = LogInterpolate(below->first, below->second, above->first, above->second, block);
    }
  }
  for (const Bound& b : bounds_) {
    if (b.random == random && block <= b.block_max) rate = std::min(rate, b.megabytes_per_second);
  }
  return block * 1e3 / rate + ExtraNs(core);
}

// What a slower core adds to each read: from points that differ in nothing but the core.
double DeviceModel::ExtraNs(CoreClass core) const {
  if (core == CoreClass::kBig) return 0;
  double sum = 0;
  int n = 0;
  for (const Point& slow : points_) {
    if (slow.core != core) continue;
    for (const Point& fast : points_) {
      if (fast.core != CoreClass::kBig || fast.random != slow.random || fast.block != slow.block ||
          fast.range != slow.range) {
        continue;
      }
      sum += slow.block * 1e3 * (1 / slow.megabytes_per_second - 1 / fast.megabytes_per_second);
      ++n;
    }
  }
  return n > 0 ? std::max(sum / n, 0.0) : 0;
}

double DeviceModel::ContentionFactor(int n_submitters) const {
  if (n_submitters <= 1) return 1;
  return 1 / (1 - max_loss_ * (1 - 1.0 / n_submitters));
}

}  // namespace sluice
