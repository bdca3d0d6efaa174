#include "io/suite/suite.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "io/clock.h"
#include "io/status.h"

namespace sluice {
namespace {

// Of the bytes of a range, from which on a cell is flagged.
constexpr double kCachedShare = 0.01;
constexpr double kHoleShare = 0.01;

double Seconds(uint64_t ns) { return static_cast<double>(ns) / 1e9; }

bool IsStopped(const SuiteOptions& options) {
  return options.stop != nullptr && options.stop->load() != 0;
}

bool IsLikeEntry(const SystemState& now, const SystemState& entry, const SuiteOptions& options) {
  const bool cool = !now.temperature_c || !entry.temperature_c ||
                    *now.temperature_c <= *entry.temperature_c + options.gate_degrees;
  const bool roomy = static_cast<double>(now.available_memory) >=
                     options.gate_memory_share * static_cast<double>(entry.available_memory);
  return cool && roomy;
}

// Waits at the gate; notes in `cell` how long, and whether for nothing.
void PassGate(const SystemState& entry, const SuiteOptions& options, CellResult& cell) {
  const uint64_t begin_ns = NowNs();
  while (true) {
    cell.before = ReadSystemState(cell.spec.core);
    cell.waited_s = Seconds(NowNs() - begin_ns);
    if (IsLikeEntry(cell.before, entry, options) || IsStopped(options)) return;
    if (cell.waited_s >= options.gate_limit_s) {
      cell.gate_gave_up = true;
      return;
    }
    const struct timespec pause = {0, 200'000'000};
    nanosleep(&pause, nullptr);
  }
}

double SecondsOf(const LoadSpec& s) { return s.warm_up_s + s.n_windows * s.window_s; }

}  // namespace

Spread SpreadOf(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double q) {
    const double rank = q * static_cast<double>(samples.size() - 1);
    const auto below = static_cast<size_t>(rank);
    const size_t above = std::min(below + 1, samples.size() - 1);
    return std::lerp(samples[below], samples[above], rank - static_cast<double>(below));
  };
  return {at(0.5), at(0.05), at(0.95)};
}

double CellResult::megabytes_per_second(const LoadWindow& window) const {
  return window.ns > 0
             ? static_cast<double>(window.operations * spec.block) / 1e6 / Seconds(window.ns)
             : 0;
}

Spread CellResult::megabytes_per_second() const {
  std::vector<double> rates;
  for (const LoadWindow& w : load.windows) rates.push_back(megabytes_per_second(w));
  return SpreadOf(std::move(rates));
}

Spread CellResult::operations_per_second() const {
  Spread s = megabytes_per_second();
  const double to_operations = 1e6 / spec.block;
  return {s.median * to_operations, s.p5 * to_operations, s.p95 * to_operations};
}

double CellResult::cpu_us_per_operation() const {
  uint64_t cpu_ns = 0, operations = 0;
  for (const LoadWindow& w : load.windows) {
    cpu_ns += w.cpu_ns;
    operations += w.operations;
  }
  return operations > 0 ? static_cast<double>(cpu_ns) / 1e3 / static_cast<double>(operations) : 0;
}

LatencyHistogram CellResult::latency() const {
  LatencyHistogram all;
  for (const LoadWindow& w : load.windows) all.Merge(w.latency);
  return all;
}

bool CellResult::reads_cache() const {
  return spec.emulated == nullptr && !load.direct && load.cached_share > kCachedShare;
}

bool CellResult::reads_holes() const {
  return spec.emulated == nullptr && load.hole_share > kHoleShare;
}

absl::Status RunSuite(const std::string& path, std::span<const LoadSpec> specs,
                      const SuiteOptions& options, std::vector<CellResult>* results) {
  results->clear();
  results->reserve(specs.size());
  const SystemState entry = ReadSystemState(-1);
  double left = 0;
  for (const LoadSpec& s : specs) left += SecondsOf(s);
  for (const LoadSpec& spec : specs) {
    if (options.progress) options.progress(results->size(), specs.size(), left);
    CellResult cell;
    cell.spec = spec;
    PassGate(entry, options, cell);
    if (IsStopped(options)) return absl::CancelledError("stopped on request");
    auto load = RunLoad(path, spec, options.stop);
    // What fails while it is being stopped may have failed by that.
    if (!load.ok() && IsStopped(options)) return absl::CancelledError("stopped on request");
    if (!load.ok()) return load.status();
    cell.load = *std::move(load);
    cell.after = ReadSystemState(spec.core);
    results->push_back(std::move(cell));
    left -= SecondsOf(spec);
  }
  if (options.progress) options.progress(results->size(), specs.size(), 0);
  return absl::OkStatus();
}

}  // namespace sluice
