#include "io/suite/profile_fit.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "io/status.h"

namespace sluice {
namespace {

// Files of models have holes, between blobs. What lies in one costs the device nothing, so that the
// other reads took all the time.
constexpr double kMostHoles = 0.25;

bool IsUsable(const CellResult& c) {
  return c.load.direct && !c.reads_cache() && c.load.hole_share <= kMostHoles &&
         c.spec.n_jobs == 1 && c.megabytes_per_second().median > 0;
}

CoreClass ClassOf(const std::map<int, CoreClass>& classes, int core) {
  const auto found = classes.find(core);
  return found == classes.end() ? CoreClass::kBig : found->second;
}

// Minimises the sum of ((a + b * bytes) / ns - 1)^2; neither a nor b below 0.
CostFit FitLine(const std::vector<MeasuredRead>& reads) {
  double s1 = 0, sx = 0, sxx = 0, sy = 0, sxy = 0;
  for (const MeasuredRead& r : reads) {
    const double one = 1 / r.ns, x = r.block / r.ns;
    s1 += one * one;
    sx += one * x;
    sxx += x * x;
    sy += one;
    sxy += x;
  }
  CostFit fit;
  const double determinant = s1 * sxx - sx * sx;
  fit.operation_ns = determinant > 0 ? (sy * sxx - sxy * sx) / determinant : 0;
  fit.ns_per_byte = determinant > 0 ? (s1 * sxy - sx * sy) / determinant : 0;
  if (fit.operation_ns < 0 || determinant <= 0) {
    fit.operation_ns = 0;
    fit.ns_per_byte = sxy / sxx;
  } else if (fit.ns_per_byte < 0) {
    fit.ns_per_byte = 0;
    fit.operation_ns = sy / s1;
  }
  for (const MeasuredRead& r : reads) {
    fit.worst_residual = std::max(fit.worst_residual, std::abs(fit.TimeNs(1, r.block) / r.ns - 1));
  }
  fit.reads = reads;
  return fit;
}

}  // namespace

std::map<int, CoreClass> ClassifyCores(std::span<const CpuCore> cores) {
  std::set<uint32_t> speeds;
  for (const CpuCore& c : cores) speeds.insert(c.speed);
  std::map<int, CoreClass> classes;
  for (const CpuCore& c : cores) {
    classes[c.id] = c.speed == *speeds.rbegin()  ? CoreClass::kBig
                    : c.speed == *speeds.begin() ? CoreClass::kLittle
                                                 : CoreClass::kMiddle;
  }
  return classes;
}

absl::Status CheckCellsFit(std::span<const LoadSpec> specs) {
  const auto fits = [](const LoadSpec& s) {
    return s.random && s.direct && s.engine != LoadEngine::kMmap && s.n_jobs == 1;
  };
  if (std::any_of(specs.begin(), specs.end(), fits)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "a device profile is made from random direct reads of one job, and no cell is of these: give "
      "--rw randread --direct 1 --numjobs 1 among others, and no --ioengine mmap alone");
}

absl::StatusOr<DeviceProfile> FitProfile(const std::string& name, std::span<const CellResult> cells,
                                         const std::map<int, CoreClass>& classes,
                                         uint64_t file_bytes) {
  std::map<std::tuple<bool, uint32_t, uint64_t, CoreClass>, double> best;
  std::map<std::pair<uint64_t, uint32_t>, std::map<uint32_t, double>> reads;  // ns by block
  for (const CellResult& c : cells) {
    if (!IsUsable(c)) continue;
    const CoreClass core = ClassOf(classes, c.spec.core);
    double& rate = best[{c.spec.random, c.spec.block, c.spec.range, core}];
    const double on_device = 1 - c.load.hole_share;
    rate = std::max(rate, c.megabytes_per_second().median * on_device);
    if (c.spec.random && core == CoreClass::kBig) {
      const double ns = 1e9 / (c.operations_per_second().median * on_device);
      const auto [place, is_new] =
          reads[{c.spec.range, c.spec.depth}].try_emplace(c.spec.block, ns);
      if (!is_new) place->second = std::min(place->second, ns);
    }
  }
  std::vector<DeviceModel::Point> points;
  for (const auto& [key, rate] : best) {
    DeviceModel::Point p;
    uint64_t range = 0;
    std::tie(p.random, p.block, range, p.core) = key;
    if (range < file_bytes) p.range = range;
    p.megabytes_per_second = rate;
    points.push_back(p);
  }
  SLUICE_ASSIGN_OR_RETURN(DeviceModel model, DeviceModel::FromPoints(name, std::move(points)));
  DeviceProfile profile(std::move(model));
  for (const auto& [place, by_block] : reads) {
    if (by_block.size() < 2) continue;
    std::vector<MeasuredRead> of_place;
    for (const auto& [block, ns] : by_block) of_place.push_back({block, ns});
    CostFit fit = FitLine(of_place);
    std::tie(fit.range, fit.depth) = place;
    profile.AddFit(std::move(fit));
  }
  return profile;
}

}  // namespace sluice
