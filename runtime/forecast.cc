#include "runtime/forecast.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>

#include "io/read_merger.h"
#include "io/status.h"
#include "runtime/miss_replay.h"
#include "runtime/weight_io.h"

namespace sluice {
namespace {

constexpr uint32_t kLoadRead = 1 << 20;

// Time of reading so many bytes in order, in reads of this size.
double StreamNs(const DeviceProfile& profile, double bytes, uint32_t read_bytes) {
  const double ns = profile.model().ServiceNs(false, read_bytes, UINT64_MAX, CoreClass::kBig);
  return bytes / read_bytes * ns;
}

// Bytes of the matrices that every token streams.
double StreamedMatrixBytes(const SluiceFile& file, const MemoryPlan& plan) {
  double bytes = 0;
  for (size_t i = 0; i < plan.resident.size(); ++i) {
    const MatrixEntry& m = file.matrix(static_cast<uint32_t>(i));
    const bool head = file.MatrixIndex(MatrixRole::kHead, 0) == i;
    const bool looked_up = m.role == MatrixRole::kEmbedding && !head;  // a tile, not all
    if (!plan.resident[i]) bytes += static_cast<double>(looked_up ? m.tile_stride : m.n_bytes());
  }
  return bytes;
}

double AllBundleBytes(const SluiceFile& file) {
  return static_cast<double>(file.bundles().layer_bytes()) * file.config().n_layers;
}

// The first quarter of the trace warms the cache and is not counted.
absl::Status AddMisses(const SluiceFile& file, const MemoryPlan& plan, const DeviceProfile& profile,
                       const ActivationTrace& trace, FlashDemand& demand) {
  const uint32_t depth = std::min(kMostInFlight, profile.BestDepth());
  ReadMerger merger(profile, file.bundles().layer_bytes(), depth, ReadMerger::MarginFor(profile));
  SLUICE_ASSIGN_OR_RETURN(const auto replay, MissReplay::Create(file, trace, plan.n_slots));
  const uint32_t warm = trace.n_tokens() / 4;
  uint64_t hits = 0, misses = 0;
  for (uint32_t t = 0; t < trace.n_tokens(); ++t) {
    if (t == warm) {
      hits = replay->hits();
      misses = replay->misses();
    }
    for (uint32_t l = 0; l < trace.n_layers(); ++l) {
      const std::span<const IoRequest> reads = replay->Next(t, l);
      if (t < warm) continue;
      const MergedBatch batch = MergeAll(merger, reads);
      demand.miss_bytes += batch.bytes;
      demand.miss_operations += batch.operations;
      demand.miss_ns += batch.ns;
    }
  }
  const double n = trace.n_tokens() - warm;
  for (double* sum : {&demand.miss_bytes, &demand.miss_operations, &demand.miss_ns}) *sum /= n;
  hits = replay->hits() - hits;
  misses = replay->misses() - misses;
  demand.hit_rate =
      static_cast<double>(hits) / static_cast<double>(std::max<uint64_t>(1, hits + misses));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FlashDemand> ForecastDemand(const SluiceFile& file, const MemoryPlan& plan,
                                           const DeviceProfile& profile,
                                           const ActivationTrace* trace) {
  FlashDemand demand;
  demand.stream_bytes = StreamedMatrixBytes(file, plan);
  const double all = static_cast<double>(file.config().d_ff) * file.config().n_layers;
  if (trace == nullptr) {
    demand.hit_rate = plan.n_slots / all;
    demand.stream_bytes += (1 - demand.hit_rate) * AllBundleBytes(file);
  } else if (plan.holds_all_bundles) {
    demand.hit_rate = 1;
  } else if (trace->n_tokens() > 0) {
    SLUICE_RETURN_IF_ERROR(AddMisses(file, plan, profile, *trace, demand));
  }
  demand.stream_operations = demand.stream_bytes / std::max(1u, plan.piece_bytes);
  demand.stream_ns = StreamNs(profile, demand.stream_bytes, std::max(512u, plan.piece_bytes));
  return demand;
}

void MeasuredCost::Add(const Run& run) {
  const auto after = std::find_if(runs.begin(), runs.end(),
                                  [&](const Run& r) { return r.flash_bytes > run.flash_bytes; });
  runs.insert(after, run);
}

MeasuredCost::Run MeasuredCost::At(double flash_bytes) const {
  const auto above = std::find_if(runs.begin(), runs.end(),
                                  [&](const Run& r) { return r.flash_bytes > flash_bytes; });
  if (above == runs.begin()) return runs.front();
  if (above == runs.end()) return runs.back();
  const Run &few = *std::prev(above), &many = *above;
  const double at = (flash_bytes - few.flash_bytes) / (many.flash_bytes - few.flash_bytes);
  return {flash_bytes, std::lerp(few.compute_ns, many.compute_ns, at),
          std::lerp(few.io_factor, many.io_factor, at)};
}

double IoFactor(const FlashDemand& demand, double compute_ns, double token_ns) {
  constexpr double kLeast = 0.25, kMost = 8, kNoticeable = 0.02;
  if (demand.stream_ns + demand.miss_ns < kNoticeable * token_ns) return 1;
  // Streaming hides behind computing, unless it takes longer.
  double factor = token_ns / (demand.stream_ns + demand.miss_ns);
  if (factor * demand.stream_ns < compute_ns) {
    factor = demand.miss_ns > 0 ? (token_ns - compute_ns) / demand.miss_ns : 1;
  }
  return std::clamp(factor, kLeast, kMost);
}

double TokenNs(const FlashDemand& demand, const MeasuredCost::Run& cost, double compute_speed,
               double flash_speed) {
  const double flash = cost.io_factor / flash_speed;
  return std::max(cost.compute_ns / compute_speed, demand.stream_ns * flash) +
         demand.miss_ns * flash;
}

absl::StatusOr<Forecast> ForecastRun(const SluiceFile& file, const MemoryPlan& plan,
                                     const DeviceProfile& profile, const ActivationTrace* trace,
                                     const MeasuredCost& cost, const PrefillCost& prefill) {
  Forecast f;
  SLUICE_ASSIGN_OR_RETURN(f.demand, ForecastDemand(file, plan, profile, trace));
  f.cost = cost.At(f.demand.bytes());
  f.token_ns = TokenNs(f.demand, f.cost);
  double resident = 0;
  for (size_t i = 0; i < plan.resident.size(); ++i) {
    if (plan.resident[i]) {
      resident += static_cast<double>(file.matrix(static_cast<uint32_t>(i)).n_bytes());
    }
  }
  f.load_ns = StreamNs(profile, resident, kLoadRead);
  // Every chunk passes through all layers; nothing is cached before the first one.
  double left = prefill.n_tokens, first = 1;
  while (left > 0) {
    const double n = std::min<double>(left, plan.chunk);
    const double kept = plan.holds_all_bundles && first == 0 ? 0 : AllBundleBytes(file);
    const double bytes = StreamedMatrixBytes(file, plan) + kept;
    f.prefill_ns += std::max(n * prefill.ns_per_token,
                             StreamNs(profile, bytes, std::max(512u, plan.piece_bytes)));
    left -= n;
    first = 0;
  }
  return f;
}

}  // namespace sluice
