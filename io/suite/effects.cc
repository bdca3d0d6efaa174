#include "io/suite/effects.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>

#include "absl/strings/str_cat.h"
#include "io/suite/axes.h"

namespace sluice {
namespace {

// A cell's place on every axis, as text.
using Place = std::array<std::string, 8>;
constexpr std::array<std::string_view, 8> kAxes = {"rw",   "ioengine", "direct",  "bs",
                                                   "size", "iodepth",  "numjobs", "cpus"};

Place PlaceOf(const LoadSpec& s) {
  return {s.random ? "randread" : "read",
          std::string(LoadEngineName(s.engine)),
          s.direct ? "1" : "0",
          FormatSize(s.block),
          FormatSize(s.range),
          absl::StrCat(s.depth),
          absl::StrCat(s.n_jobs),
          s.core < 0 ? "any" : absl::StrCat(s.core)};
}

// The place on all axes but one.
Place Comparable(Place place, size_t axis) {
  place[axis].clear();
  return place;
}

// The 97.5 % quantile of Student's t distribution with `n` degrees of freedom.
double StudentT(size_t n) {
  constexpr double kTable[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                               2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131};
  if (n == 0) return INFINITY;
  if (n <= std::size(kTable)) return kTable[n - 1];
  return 1.960 + 2.5 / static_cast<double>(n);  // within 0.5 % from 16 on
}

void AppendLogRatios(const CellResult& from, const CellResult& to, std::vector<double>& out) {
  const size_t n = std::min(from.load.windows.size(), to.load.windows.size());
  for (size_t w = 0; w < n; ++w) {
    const double a = from.megabytes_per_second(from.load.windows[w]);
    const double b = to.megabytes_per_second(to.load.windows[w]);
    if (a > 0 && b > 0) out.push_back(std::log(b / a));
  }
}

void Judge(const std::vector<double>& logs, AxisEffect& effect) {
  const auto n = static_cast<double>(logs.size());
  double mean = 0, squares = 0;
  for (const double l : logs) mean += l / n;
  for (const double l : logs) squares += (l - mean) * (l - mean);
  effect.n_pairs = logs.size();
  effect.ratio = std::exp(mean);
  const double error = logs.size() > 1 ? std::sqrt(squares / (n - 1) / n) : INFINITY;
  const double half = StudentT(logs.size() - 1) * error;
  effect.low = std::exp(mean - half);
  effect.high = std::exp(mean + half);
  if (effect.low > 0.95 && effect.high < 1.05) {
    effect.verdict = EffectVerdict::kNone;
  } else if (effect.low > 1 || effect.high < 1) {
    effect.verdict = EffectVerdict::kEffect;
  }
}

}  // namespace

std::string_view EffectVerdictName(EffectVerdict verdict) {
  switch (verdict) {
    case EffectVerdict::kEffect:
      return "effect";
    case EffectVerdict::kNone:
      return "no effect on this device";
    case EffectVerdict::kUndecided:
      return "undecided";
  }
  return "?";
}

std::vector<AxisEffect> AxisEffects(std::span<const CellResult> cells) {
  std::vector<AxisEffect> effects;
  for (size_t axis = 0; axis < kAxes.size(); ++axis) {
    std::vector<std::string> values;  // in the order of measurement
    std::map<Place, std::map<std::string, const CellResult*>> groups;
    for (const CellResult& cell : cells) {
      if (!cell.reads_device()) continue;
      const Place place = PlaceOf(cell.spec);
      if (std::find(values.begin(), values.end(), place[axis]) == values.end()) {
        values.push_back(place[axis]);
      }
      groups[Comparable(place, axis)][place[axis]] = &cell;
    }
    for (size_t v = 1; v < values.size(); ++v) {
      std::vector<double> logs;
      for (const auto& [others, by_value] : groups) {
        const auto from = by_value.find(values[0]), to = by_value.find(values[v]);
        if (from == by_value.end() || to == by_value.end()) continue;
        AppendLogRatios(*from->second, *to->second, logs);
      }
      if (logs.empty()) continue;
      AxisEffect& effect = effects.emplace_back();
      effect.axis = kAxes[axis];
      effect.from = values[0];
      effect.to = values[v];
      Judge(logs, effect);
    }
  }
  return effects;
}

}  // namespace sluice
