#include "io/read_merger.h"

#include <algorithm>
#include <limits>

namespace sluice {
namespace {

// Depths that costs are kept for; a profile knows few, and between them little changes.
constexpr uint32_t kDepths[] = {32, 16, 8, 4, 2, 1};

}  // namespace

double ReadMerger::MarginFor(const DeviceProfile& profile) {
  constexpr double kMeasured = 0.35, kMost = 0.5;
  double margin = profile.fits().empty() ? 0 : kMeasured;
  for (const CostFit& fit : profile.fits()) {
    if (fit.reads.empty()) margin = std::max(margin, fit.worst_residual);
  }
  return std::min(margin, kMost);
}

ReadMerger::ReadMerger(const DeviceProfile& profile, uint64_t range, const Limits& limits,
                       double margin)
    : most_bytes_(std::min(limits.bounce_bytes / 4, kMostBytes)), margin_(margin) {
  for (const uint32_t d : kDepths) {
    if (d > limits.depth && d != 1) continue;
    Level level{.depth = d, .cost_ns = std::vector<float>(kSizes)};
    for (size_t i = 0; i < kSizes; ++i) {
      const auto bytes = static_cast<uint32_t>((i + 1) * kUnit);
      level.cost_ns[i] = static_cast<float>(profile.ReadNs(bytes, range, d));
    }
    levels_.push_back(std::move(level));
    if (!profile.depends_on_depth()) break;
  }
  best_.resize(kMostBatch + 1);
  run_.resize(kMostBatch);
  chosen_.reserve(kMostBatch);
  trial_.reserve(kMostBatch);
}

size_t ReadMerger::Bytes() {
  return std::size(kDepths) * kSizes * sizeof(float) + (kMostBatch + 1) * sizeof(float) +
         3 * kMostBatch * sizeof(uint32_t);
}

double ReadMerger::Level::Cost(uint64_t bytes) const {
  const uint64_t units = std::max<uint64_t>((bytes + kUnit - 1) / kUnit, 1);
  if (units <= kSizes) return cost_ns[units - 1];
  return static_cast<double>(cost_ns.back()) * static_cast<double>(units) / kSizes;
}

const ReadMerger::Level& ReadMerger::LevelFor(size_t operations) const {
  for (const Level& level : levels_) {
    if (level.depth <= operations) return level;
  }
  return levels_.back();
}

double ReadMerger::TimeNs(std::span<const uint64_t> operation_bytes) const {
  const Level& level = LevelFor(operation_bytes.size());
  double ns = 0;
  for (const uint64_t bytes : operation_bytes) ns += level.Cost(bytes);
  return ns;
}

std::span<const uint32_t> ReadMerger::Split(std::span<const IoRequest> batch) {
  modelled_ns_ = std::numeric_limits<double>::infinity();
  for (const Level& level : levels_) {
    SplitFor(level, batch);
    if (trial_ns_ < modelled_ns_) {
      modelled_ns_ = trial_ns_;
      chosen_.swap(trial_);
    }
    // The queue is full: with fewer operations it would not be, and nothing would be cheaper.
    if (chosen_.size() >= levels_.front().depth) break;
  }
  double single_ns = 0;
  const Level& level = LevelFor(batch.size());
  for (const IoRequest& r : batch) single_ns += level.Cost(r.length);
  if (modelled_ns_ > (1 - margin_) * single_ns) {
    modelled_ns_ = single_ns;
    chosen_.assign(batch.size(), 1);
  }
  return chosen_;
}

// The split that would be best if every operation cost what it costs at this level; its time then
// counts at the depth that so many operations reach.
void ReadMerger::SplitFor(const Level& level, std::span<const IoRequest> batch) {
  best_[batch.size()] = 0;
  for (size_t i = batch.size(); i-- > 0;) {
    const uint64_t begin = batch[i].offset;
    const size_t most = std::min(batch.size(), i + kMostRequests);
    uint64_t end = begin + batch[i].length;
    best_[i] = static_cast<float>(level.Cost(batch[i].length)) + best_[i + 1];
    run_[i] = 1;
    if (batch[i].length > kLongest) continue;
    for (size_t j = i + 1; j < most; ++j) {  // the operation ends with request j
      const IoRequest& r = batch[j];
      if (r.length > kLongest) break;
      if (r.offset < end || r.offset - end > kMostGap || r.length == 0) break;
      end = r.offset + r.length;
      if (end - begin > most_bytes_) break;
      const float time = static_cast<float>(level.Cost(end - begin)) + best_[j + 1];
      if (time < best_[i]) {
        best_[i] = time;
        run_[i] = static_cast<uint32_t>(j - i + 1);
      }
    }
  }
  trial_.clear();
  for (size_t i = 0; i < batch.size(); i += run_[i]) trial_.push_back(run_[i]);
  const Level& reached = LevelFor(trial_.size());
  trial_ns_ = 0;
  for (size_t i = 0; i < batch.size(); i += run_[i]) {
    const IoRequest& last = batch[i + run_[i] - 1];
    trial_ns_ += reached.Cost(last.offset + last.length - batch[i].offset);
  }
}

MergedBatch MergeAll(ReadMerger& merger, std::span<const IoRequest> batch) {
  MergedBatch all;
  while (!batch.empty()) {
    const auto part = batch.first(std::min(batch.size(), ReadMerger::kMostBatch));
    size_t i = 0;
    for (const uint32_t run : merger.Split(part)) {
      const IoRequest& last = part[i + run - 1];
      all.bytes += static_cast<double>(last.offset + last.length - part[i].offset);
      all.operations += 1;
      i += run;
    }
    all.ns += merger.modelled_ns();
    batch = batch.subspan(part.size());
  }
  return all;
}

}  // namespace sluice
