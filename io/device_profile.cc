#include "io/device_profile.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "io/json_fields.h"
#include "io/status.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint32_t kSmallRead = 4096;

const char* PatternName(bool random) { return random ? "random" : "sequential"; }

}  // namespace

absl::StatusOr<DeviceProfile> DeviceProfile::Parse(std::string_view text,
                                                   const std::string& source) {
  SLUICE_ASSIGN_OR_RETURN(DeviceModel model, DeviceModel::Parse(text, source));
  DeviceProfile profile(std::move(model));
  const nlohmann::json document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  JsonFields top(document, source);
  if (top.Has("device")) profile.device_ = top.Text("device");
  top.Each("fits", [&](JsonFields& entry) {
    CostFit fit;
    fit.range = static_cast<uint64_t>(entry.Number("range", 4096, 1e18));
    fit.depth = static_cast<uint32_t>(entry.Number("depth", 1, 65536));
    fit.operation_ns = entry.Number("operation_ns", 0, 1e12);
    fit.ns_per_byte = entry.Number("ns_per_byte", 0, 1e9);
    fit.worst_residual = entry.Number("worst_residual", 0, 1e9);
    entry.Each("reads", [&](JsonFields& read) {
      fit.reads.push_back(
          {static_cast<uint32_t>(read.Number("block", 512, 1 << 30)), read.Number("ns", 1, 1e12)});
    });
    const auto is_below = [](const MeasuredRead& a, const MeasuredRead& b) {
      return a.block < b.block;
    };
    std::sort(fit.reads.begin(), fit.reads.end(), is_below);
    profile.fits_.push_back(std::move(fit));
  });
  SLUICE_RETURN_IF_ERROR(top.status());
  return profile;
}

absl::StatusOr<DeviceProfile> DeviceProfile::Load(const std::string& path) {
  constexpr size_t kLargest = 1 << 20;
  std::error_code ignored;
  const auto type = std::filesystem::status(path, ignored).type();
  // Looked at before it is opened: a FIFO would wait for a writer.
  if (type == std::filesystem::file_type::directory) {
    return absl::InvalidArgumentError(path + ": is a directory, not a device profile");
  }
  std::ifstream in;
  if (type == std::filesystem::file_type::regular) in.open(path, std::ios::binary);
  if (!in.is_open()) return absl::NotFoundError(path + ": the device profile cannot be opened");
  std::string text(kLargest + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kLargest) {
    return absl::InvalidArgumentError(path + ": is too large for a device profile");
  }
  return Parse(text, path);
}

std::string DeviceProfile::ToJson() const {
  Json points = Json::array(), bounds = Json::array(), fits = Json::array();
  for (const DeviceModel::Point& p : model_.points()) {
    points.push_back({{"pattern", PatternName(p.random)},
                      {"block", p.block},
                      {"range", p.range ? Json(*p.range) : Json(nullptr)},
                      {"core", CoreClassName(p.core)},
                      {"value", p.megabytes_per_second}});
  }
  for (const DeviceModel::Bound& b : model_.bounds()) {
    bounds.push_back({{"pattern", PatternName(b.random)},
                      {"block_max", b.block_max},
                      {"value", b.megabytes_per_second}});
  }
  for (const CostFit& f : fits_) {
    Json reads = Json::array();
    for (const MeasuredRead& r : f.reads) reads.push_back({{"block", r.block}, {"ns", r.ns}});
    fits.push_back({{"range", f.range},
                    {"depth", f.depth},
                    {"operation_ns", f.operation_ns},
                    {"ns_per_byte", f.ns_per_byte},
                    {"worst_residual", f.worst_residual},
                    {"reads", std::move(reads)}});
  }
  const Json document = {{"name", model_.name()},
                         {"device", device_},
                         {"queue_entries", model_.queue_entries()},
                         {"read_MBps", std::move(points)},
                         {"upper_bounds_MBps", std::move(bounds)},
                         {"multi_core_issue_penalty", {{"max_loss", model_.max_loss()}}},
                         {"fits", std::move(fits)}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

double CostFit::ReadNs(uint32_t bytes) const {
  if (reads.empty()) return TimeNs(1, bytes);
  const auto above = std::find_if(reads.begin(), reads.end(),
                                  [&](const MeasuredRead& r) { return r.block >= bytes; });
  if (above == reads.begin()) return above->ns;
  const MeasuredRead& below = *std::prev(above);
  if (above == reads.end()) return below.ns * bytes / below.block;
  const double at = static_cast<double>(bytes - below.block) / (above->block - below.block);
  return std::lerp(below.ns, above->ns, at);
}

double DeviceProfile::ReadNs(uint32_t bytes, uint64_t range, uint32_t depth) const {
  if (fits_.empty()) return model_.ServiceNs(true, bytes, range, CoreClass::kBig);
  const auto distance = [&](const CostFit& f) {
    return std::abs(
        std::log(static_cast<double>(f.range) / static_cast<double>(std::max<uint64_t>(range, 1))));
  };
  const uint64_t nearest =
      std::min_element(fits_.begin(), fits_.end(), [&](const CostFit& a, const CostFit& b) {
        return distance(a) < distance(b);
      })->range;
  const CostFit *shallow = nullptr, *deep = nullptr;  // on either side of `depth`
  for (const CostFit& f : fits_) {
    if (f.range != nearest) continue;
    if (f.depth <= depth && (shallow == nullptr || f.depth > shallow->depth)) shallow = &f;
    if (f.depth >= depth && (deep == nullptr || f.depth < deep->depth)) deep = &f;
  }
  if (shallow == nullptr) return deep->ReadNs(bytes);
  if (deep == nullptr || deep->depth == shallow->depth) return shallow->ReadNs(bytes);
  const double at = std::log(static_cast<double>(depth) / shallow->depth) /
                    std::log(static_cast<double>(deep->depth) / shallow->depth);
  const auto log_ns = [&](const CostFit& f) { return std::log(std::max(f.ReadNs(bytes), 1.0)); };
  return std::exp(std::lerp(log_ns(*shallow), log_ns(*deep), at));
}

uint32_t DeviceProfile::BestDepth() const {
  if (fits_.empty()) return model_.queue_entries();
  const auto small = [](const CostFit& f) { return f.ReadNs(kSmallRead); };
  double best = small(fits_.front());
  for (const CostFit& f : fits_) best = std::min(best, small(f));
  uint32_t depth = UINT32_MAX;
  for (const CostFit& f : fits_) {
    if (small(f) <= 1.05 * best) depth = std::min(depth, f.depth);
  }
  return depth;
}

}  // namespace sluice
