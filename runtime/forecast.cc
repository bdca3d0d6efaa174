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

constexpr uint32_t kLoadRead = 1 << 20, kLeastPiece = 512;

// Time of reading so many bytes in order, in reads of this size.
double StreamNs(const DeviceProfile& profile, double bytes, uint32_t read_bytes) {
  const double ns = profile.model().ServiceNs(false, read_bytes, UINT64_MAX, CoreClass::kBig);
  return bytes / read_bytes * ns;
}

TokenStage MatrixStage(const SluiceFile& file, const MemoryPlan& plan, MatrixRole role,
                       uint32_t layer) {
  const uint32_t i = file.MatrixIndex(role, layer);
  const auto bytes = static_cast<double>(file.matrix(i).n_bytes());
  return plan.resident[i] ? TokenStage{.kept_bytes = bytes} : TokenStage{.stream_bytes = bytes};
}

// In order of use, with the FFN of a layer empty; of the embedding only a tile is looked up, which
// does not count.
constexpr MatrixRole kLayerMatrices[] = {MatrixRole::kQ, MatrixRole::kK, MatrixRole::kV,
                                         MatrixRole::kO, MatrixRole::kGate};
std::vector<TokenStage> Stages(const SluiceFile& file, const MemoryPlan& plan) {
  std::vector<TokenStage> stages;
  for (uint32_t l = 0; l < file.config().n_layers; ++l) {
    for (const MatrixRole role : kLayerMatrices) {
      stages.push_back(MatrixStage(file, plan, role, l));
    }
    stages.push_back({});
  }
  stages.push_back(MatrixStage(file, plan, MatrixRole::kHead, 0));
  return stages;
}
TokenStage& FfnStage(std::vector<TokenStage>& stages, uint32_t layer) {
  constexpr size_t kPerLayer = std::size(kLayerMatrices) + 1;
  return stages[(layer + 1) * kPerLayer - 1];
}

double ResidentBytes(const SluiceFile& file, const MemoryPlan& plan) {
  double bytes = 0;
  for (uint32_t i = 0; i < plan.resident.size(); ++i) {
    if (plan.resident[i]) bytes += static_cast<double>(file.matrix(i).n_bytes());
  }
  return bytes;
}

// What passes through the ring; the FFNs are left empty.
TokenWork MatrixWork(const SluiceFile& file, const MemoryPlan& plan, const DeviceProfile& profile) {
  TokenWork work;
  work.stages = Stages(file, plan);
  work.piece_bytes = std::max(kLeastPiece, plan.piece_bytes);
  work.n_buffers = plan.n_buffers;
  work.piece_ns = StreamNs(profile, work.piece_bytes, work.piece_bytes);
  return work;
}

// All bundles of every layer, of which this share is in the cache.
void AddBundles(const SluiceFile& file, double kept, TokenWork& work) {
  const auto bytes = static_cast<double>(file.bundles().layer_bytes());
  for (uint32_t l = 0; l < file.config().n_layers; ++l) {
    FfnStage(work.stages, l) = {.kept_bytes = kept * bytes, .stream_bytes = (1 - kept) * bytes};
  }
}

// The tokens of a chunk use a matrix together, and go through an FFN one by one.
void RepeatFfns(const SluiceFile& file, uint32_t n_tokens, TokenWork& work) {
  for (uint32_t l = 0; l < file.config().n_layers; ++l) {
    TokenStage& stage = FfnStage(work.stages, l);
    stage = {.kept_bytes = stage.kept_bytes * n_tokens,
             .miss_bytes = stage.miss_bytes * n_tokens,
             .miss_ns = stage.miss_ns * n_tokens};
  }
}

// What a cache of few slots cannot hold at once is asked for in turn.
MergedBatch MergeWaves(ReadMerger& merger, std::span<const IoRequest> reads, uint32_t n_slots) {
  MergedBatch all;
  while (!reads.empty()) {
    const auto wave = reads.first(std::min<size_t>(reads.size(), std::max(n_slots, 1u)));
    const MergedBatch merged = MergeAll(merger, wave);
    all.operations += merged.operations;
    all.bytes += merged.bytes;
    all.ns += merged.ns;
    reads = reads.subspan(wave.size());
  }
  return all;
}

// The first quarter of the trace warms the cache and is not counted.
absl::Status AddMisses(const SluiceFile& file, const MemoryPlan& plan, const DeviceProfile& profile,
                       const ActivationTrace& trace, FlashDemand& demand) {
  const uint32_t depth = std::min(kMostInFlight, profile.BestDepth());
  ReadMerger merger(profile, file.bundles().layer_bytes(), {depth, plan.merge_bytes},
                    ReadMerger::MarginFor(profile));
  SLUICE_ASSIGN_OR_RETURN(const auto replay, MissReplay::Create(file, trace, plan.n_slots));
  const uint32_t warm = trace.n_tokens() / 4;
  const double n = trace.n_tokens() - warm, stride = file.bundles().stride;
  uint64_t hits = 0, misses = 0;
  for (uint32_t t = 0; t < trace.n_tokens(); ++t) {
    if (t == warm) {
      hits = replay->hits();
      misses = replay->misses();
    }
    for (uint32_t l = 0; l < trace.n_layers(); ++l) {
      const uint64_t hits_before = replay->hits();
      const std::span<const IoRequest> reads = replay->Next(t, l);
      if (t < warm) continue;
      const MergedBatch batch = MergeWaves(merger, reads, plan.n_slots);
      demand.miss_bytes += batch.bytes / n;
      demand.miss_operations += batch.operations / n;
      demand.miss_ns += batch.ns / n;
      TokenStage& stage = FfnStage(demand.work.stages, l);
      stage.kept_bytes += static_cast<double>(replay->hits() - hits_before) * stride / n;
      stage.miss_bytes += static_cast<double>(reads.size()) * stride / n;
      stage.miss_ns += batch.ns / n;
    }
  }
  hits = replay->hits() - hits;
  misses = replay->misses() - misses;
  demand.hit_rate =
      static_cast<double>(hits) / static_cast<double>(std::max<uint64_t>(1, hits + misses));
  return absl::OkStatus();
}

// By how much longer computing with a byte takes if it was just read: two runs with the same work,
// of which more was read in one.
double FlashWeight(const MeasuredRun& least, const MeasuredRun& most) {
  constexpr double kMost = 16;
  double bytes = 0, flash = 0, more = 0;
  for (const TokenStage& s : least.demand.work.stages) {
    flash += s.stream_bytes + s.miss_bytes;
    bytes += s.kept_bytes + s.stream_bytes + s.miss_bytes;
  }
  for (const TokenStage& s : most.demand.work.stages) more += s.stream_bytes + s.miss_bytes;
  if (more - flash < 0.1 * bytes) return 1;
  const double extra_ns = (most.compute_ns - least.compute_ns) / (more - flash);
  const double kept_ns = (least.compute_ns - flash * extra_ns) / bytes;
  return kept_ns > 0 ? std::clamp(1 + extra_ns / kept_ns, 1.0, kMost) : kMost;
}

// The factor that explains the measured time of a token; 1 if reading is modelled to take less than
// a fiftieth of it.
double IoFactor(const MeasuredRun& run, TokenCost cost) {
  constexpr double kNoticeable = 0.02, kSteps = 40;
  if (run.demand.stream_ns + run.demand.miss_ns < kNoticeable * run.token_ns) return 1;
  double least = 0.25, most = 8;  // more reading never makes a token faster
  for (int i = 0; i < kSteps; ++i) {
    cost.io_factor = std::sqrt(least * most);
    (TokenNs(run.demand.work, cost) < run.token_ns ? least : most) = cost.io_factor;
  }
  return cost.io_factor;
}

}  // namespace

absl::StatusOr<FlashDemand> ForecastDemand(const SluiceFile& file, const MemoryPlan& plan,
                                           const DeviceProfile& profile,
                                           const ActivationTrace* trace) {
  FlashDemand demand;
  demand.work = MatrixWork(file, plan, profile);
  if (trace == nullptr) {
    const double all = static_cast<double>(file.config().d_ff) * file.config().n_layers;
    demand.hit_rate = plan.n_slots / all;
    AddBundles(file, demand.hit_rate, demand.work);
  } else if (trace->n_tokens() > 0) {
    SLUICE_RETURN_IF_ERROR(AddMisses(file, plan, profile, *trace, demand));
  }
  if (plan.holds_all_bundles) {  // what the replay had to fetch first, loading fetches
    demand.hit_rate = 1;
    demand.miss_bytes = demand.miss_operations = demand.miss_ns = 0;
    for (uint32_t l = 0; l < file.config().n_layers; ++l) {
      TokenStage& stage = FfnStage(demand.work.stages, l);
      stage = {.kept_bytes = stage.kept_bytes + stage.stream_bytes + stage.miss_bytes};
    }
  }
  for (const TokenStage& s : demand.work.stages) demand.stream_bytes += s.stream_bytes;
  demand.stream_operations = demand.stream_bytes / demand.work.piece_bytes;
  demand.stream_ns = demand.stream_operations * demand.work.piece_ns;
  return demand;
}

MeasuredCost::MeasuredCost(const std::vector<MeasuredRun>& runs, bool of_the_device) {
  const auto by_flash = [](const MeasuredRun& a, const MeasuredRun& b) {
    return a.demand.bytes() < b.demand.bytes();
  };
  const auto [least, most] = std::minmax_element(runs.begin(), runs.end(), by_flash);
  const double weight = FlashWeight(*least, *most);
  const auto by_budget = [](const MeasuredRun& a, const MeasuredRun& b) {
    return a.planned_bytes < b.planned_bytes;
  };
  const auto [small, large] = std::minmax_element(runs.begin(), runs.end(), by_budget);
  if (of_the_device) FitLoad(*small, *large);
  for (const MeasuredRun& run : runs) {
    TokenCost cost = {run.compute_ns, weight, 1};
    if (of_the_device) cost.io_factor = IoFactor(run, cost);
    points_.push_back({run.demand.bytes(), run.demand.stream_ns + run.demand.miss_ns,
                       Cost{cost, run.prefill_compute_ns}});
  }
  std::sort(points_.begin(), points_.end(),
            [](const Point& a, const Point& b) { return a.flash_bytes < b.flash_bytes; });
}

void MeasuredCost::FitLoad(const MeasuredRun& small, const MeasuredRun& large) {
  load_ns_per_byte_ = large.load_ns / large.planned_bytes;
  if (large.load_ns <= small.load_ns || large.planned_bytes <= small.planned_bytes) return;
  load_ns_per_byte_ = (large.load_ns - small.load_ns) / (large.planned_bytes - small.planned_bytes);
  load_ns_ = large.load_ns - large.planned_bytes * load_ns_per_byte_;
}

MeasuredCost::Cost MeasuredCost::At(double flash_bytes) const {
  const auto above = std::find_if(points_.begin(), points_.end(),
                                  [&](const Point& p) { return p.flash_bytes > flash_bytes; });
  if (above == points_.begin()) return points_.front().cost;
  if (above == points_.end()) return points_.back().cost;
  const Point &few = *std::prev(above), &many = *above;
  const double at = (flash_bytes - few.flash_bytes) / (many.flash_bytes - few.flash_bytes);
  // Of the time that reading takes, so that what little a run read counts little.
  const double io_ns = std::lerp(few.io_ns, many.io_ns, at);
  const TokenCost &a = few.cost.token, &b = many.cost.token;
  const double took_ns = std::lerp(few.io_ns * a.io_factor, many.io_ns * b.io_factor, at);
  const TokenCost token = {std::lerp(a.compute_ns, b.compute_ns, at), a.flash_weight,
                           io_ns > 0 ? took_ns / io_ns : 1};
  return {token, std::lerp(few.cost.prefill_compute_ns, many.cost.prefill_compute_ns, at)};
}

double MeasuredCost::LoadNs(double planned_bytes) const {
  return load_ns_ + planned_bytes * load_ns_per_byte_;
}

absl::StatusOr<Forecast> ForecastRun(const SluiceFile& file, const MemoryPlan& plan,
                                     const DeviceProfile& profile, const ActivationTrace* trace,
                                     const MeasuredCost& cost, uint32_t prompt_tokens) {
  Forecast f;
  SLUICE_ASSIGN_OR_RETURN(f.demand, ForecastDemand(file, plan, profile, trace));
  const MeasuredCost::Cost found = cost.At(f.demand.bytes());
  f.cost = found.token;
  f.token_ns = TokenNs(f.demand.work, f.cost);
  f.load_ns = std::max(StreamNs(profile, ResidentBytes(file, plan), kLoadRead),
                       cost.LoadNs(static_cast<double>(plan.total)));
  const bool fills_cache = plan.holds_all_bundles;  // with the first chunk
  const TokenWork matrices = MatrixWork(file, plan, profile);
  const auto chunk_ns = [&](uint32_t n, bool first) {
    TokenCost of_chunk = f.cost;
    const bool one_by_one = trace != nullptr && n < kStreamTokens && !(fills_cache && first);
    TokenWork work = one_by_one ? f.demand.work : matrices;
    if (one_by_one) {
      of_chunk.compute_ns *= n;
      RepeatFfns(file, n, work);
    } else {  // all of them pass
      of_chunk.compute_ns = n * found.prefill_compute_ns;
      AddBundles(file, fills_cache && !first ? 1 : 0, work);
    }
    return TokenNs(work, of_chunk);
  };
  const uint32_t n_whole = prompt_tokens / plan.chunk, rest = prompt_tokens % plan.chunk;
  if (n_whole > 0) f.prefill_ns = chunk_ns(plan.chunk, true);
  if (n_whole > 1) f.prefill_ns += (n_whole - 1) * chunk_ns(plan.chunk, false);
  if (rest > 0) f.prefill_ns += chunk_ns(rest, n_whole == 0);
  return f;
}

}  // namespace sluice
