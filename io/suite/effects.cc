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

Place PlaceOf(const CellResult& cell) {
  const LoadSpec& s = cell.spec;
  return {s.random ? "randread" : "read",
          std::string(LoadEngineName(s.engine)),
          cell.load.direct ? "1" : "0",
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

// What is known of two values of an axis.
struct Comparison {
  std::vector<double> pairs;    // logarithms of the ratios of cells' throughputs
  std::vector<double> windows;  // the same of each window of the one cell and of the other
};

void Compare(const CellResult& from, const CellResult& to, Comparison& out) {
  const size_t n = std::min(from.load.windows.size(), to.load.windows.size());
  double sum = 0;
  size_t compared = 0;
  for (size_t w = 0; w < n; ++w) {
    const double a = from.megabytes_per_second(from.load.windows[w]);
    const double b = to.megabytes_per_second(to.load.windows[w]);
    if (!(a > 0 && b > 0)) continue;
    out.windows.push_back(std::log(b / a));
    sum += out.windows.back();
    ++compared;
  }
  if (compared > 0) out.pairs.push_back(sum / static_cast<double>(compared));
}

void SetInterval(const std::vector<double>& logs, AxisEffect& effect) {
  const auto n = static_cast<double>(logs.size());
  double mean = 0, squares = 0;
  for (const double l : logs) mean += l / n;
  for (const double l : logs) squares += (l - mean) * (l - mean);
  effect.ratio = std::exp(mean);
  const double error = logs.size() > 1 ? std::sqrt(squares / (n - 1) / n) : INFINITY;
  const double half = StudentT(logs.size() - 1) * error;
  effect.low = std::exp(mean - half);
  effect.high = std::exp(mean + half);
}

void Judge(const Comparison& comparison, AxisEffect& effect) {
  effect.n_pairs = comparison.pairs.size();
  effect.over_windows = effect.n_pairs < kLeastPairs;
  SetInterval(effect.over_windows ? comparison.windows : comparison.pairs, effect);
  if (effect.over_windows) {
    // What moves from one cell to the next by itself is not in the interval.
    constexpr double kPlain = 1.1;
    const bool plain = effect.low > kPlain || effect.high < 1 / kPlain;
    if (plain) effect.verdict = EffectVerdict::kEffect;
  } else if (effect.low > 0.95 && effect.high < 1.05) {
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
      const Place place = PlaceOf(cell);
      if (std::find(values.begin(), values.end(), place[axis]) == values.end()) {
        values.push_back(place[axis]);
      }
      groups[Comparable(place, axis)][place[axis]] = &cell;
    }
    for (size_t v = 1; v < values.size(); ++v) {
      Comparison comparison;
      for (const auto& [others, by_value] : groups) {
        const auto from = by_value.find(values[0]), to = by_value.find(values[v]);
        if (from == by_value.end() || to == by_value.end()) continue;
        Compare(*from->second, *to->second, comparison);
      }
      if (comparison.pairs.empty()) continue;
      AxisEffect& effect = effects.emplace_back();
      effect.axis = kAxes[axis];
      effect.from = values[0];
      effect.to = values[v];
      Judge(comparison, effect);
    }
  }
  return effects;
}

}  // namespace sluice
