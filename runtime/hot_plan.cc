#include "runtime/hot_plan.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace sluice {
namespace {

uint64_t Total(std::span<const uint32_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

// The largest placement of at most so many bundles; empty if there is none.
std::span<const uint32_t> FindPlacement(const ActivityRecord& activity, double n_hot) {
  std::span<const uint32_t> best;
  for (const std::vector<uint32_t>& placement : activity.placements) {
    const uint64_t total = Total(placement);
    if (static_cast<double>(total) <= n_hot && total >= Total(best)) best = placement;
  }
  return best;
}

}  // namespace

std::vector<bool> PlanHot(const SluiceFile& file, uint32_t n_slots) {
  const ActivityRecord* activity = file.activity();
  if (activity == nullptr) return {};
  const ModelConfig& c = file.config();
  double active = 0;  // bundles that a token needs, on average
  for (const uint16_t f : activity->frequency) active += f / 65535.0;
  const double share = n_slots < 2 * active ? 0.9 : 0.5;
  const double room =
      n_slots - 2 * active / c.n_layers;  // a layer's active set, and the next one's
  const auto placement = FindPlacement(*activity, std::min(share * n_slots, room));
  if (Total(placement) == 0) return {};
  std::vector<bool> hot(size_t{c.n_layers} * c.d_ff);
  std::vector<uint32_t> positions(c.d_ff);
  for (uint32_t l = 0; l < c.n_layers; ++l) {
    const auto frequency = activity->of_layer(l, c.d_ff);
    std::iota(positions.begin(), positions.end(), 0);
    std::stable_sort(positions.begin(), positions.end(),
                     [&](uint32_t a, uint32_t b) { return frequency[a] > frequency[b]; });
    for (uint32_t i = 0; i < placement[l]; ++i) hot[size_t{l} * c.d_ff + positions[i]] = true;
  }
  return hot;
}

}  // namespace sluice
