#include "layout/placement.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/placement_solver.h"

namespace sluice {
namespace {

constexpr uint64_t kMostBundleBytes = uint64_t{1} << 30;
constexpr uint64_t kMostNeurons = uint64_t{1} << 26;  // of all layers

// A layer's neurons in batches, the most frequent first.
class LayerBatches {
 public:
  LayerBatches(const PlacementLayer& layer, uint64_t least)
      : n_neurons_(static_cast<uint32_t>(layer.counts.size())),
        bundle_bytes_(layer.bundle_bytes),
        least_((std::min(least, uint64_t{n_neurons_} + 1) + kPlacementBatch - 1) / kPlacementBatch),
        can_pin_(least <= n_neurons_) {
    std::vector<uint32_t> sorted(layer.counts.begin(), layer.counts.end());
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (size_t i = 0; i < sorted.size(); ++i) {
      if (i % kPlacementBatch == 0) covered_.push_back(covered_.back());
      covered_.back() += sorted[i];
    }
  }

  uint32_t count() const { return static_cast<uint32_t>(covered_.size() - 1); }
  uint32_t least() const { return static_cast<uint32_t>(least_); }
  bool can_pin() const { return can_pin_; }  // has as many neurons as must be pinned together
  // Of the first `n` batches.
  uint32_t Neurons(uint32_t n) const { return std::min(n * kPlacementBatch, n_neurons_); }
  uint64_t Bytes(uint32_t n) const { return Neurons(n) * bundle_bytes_; }
  uint64_t Covered(uint32_t n) const { return covered_[n]; }

 private:
  uint32_t n_neurons_;
  uint64_t bundle_bytes_;
  uint64_t least_;  // batches
  bool can_pin_;
  std::vector<uint64_t> covered_ = {0};
};

// Batches of each layer.
using Choice = std::vector<uint32_t>;

class Planner {
 public:
  Planner(std::vector<LayerBatches> layers, uint64_t budget)
      : layers_(std::move(layers)), budget_(budget) {}

  Choice Greedy() const {
    std::vector<bool> allowed;
    for (const LayerBatches& l : layers_) allowed.push_back(l.can_pin());
    const std::vector<Batch> order = ByDensity();
    for (;;) {
      Choice choice = Fill(order, allowed);
      const size_t worst = WorstBelowLeast(choice);
      if (worst == layers_.size()) return choice;
      allowed[worst] = false;
    }
  }

  Choice Uniform() const {
    Choice choice;
    const uint64_t share = budget_ / layers_.size();
    for (const LayerBatches& l : layers_) {
      uint32_t n = 0;
      while (n < l.count() && l.Bytes(n + 1) <= share) ++n;
      choice.push_back(l.can_pin() && n >= l.least() ? n : 0);
    }
    return choice;
  }

  absl::StatusOr<Choice> Solve(const Choice& start, double* bound) const {
    std::vector<PlacementSteps> program;
    std::vector<uint32_t> start_steps;
    uint64_t unit = 0;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const LayerBatches& l = layers_[i];
      PlacementSteps& steps = program.emplace_back();
      start_steps.push_back(start[i] == 0 ? 0 : start[i] - l.least() + 1);
      if (!l.can_pin()) continue;
      for (uint32_t n = l.least(), before = 0; n <= l.count(); before = n++) {
        steps.gains.push_back(l.Covered(n) - l.Covered(before));
        steps.units.push_back(l.Bytes(n) - l.Bytes(before));
        unit = std::gcd(unit, steps.units.back());
      }
    }
    // In whole units, so that the program has no part of a step to think about.
    for (PlacementSteps& steps : program) {
      for (uint64_t& u : steps.units) u /= unit;
    }
    unit = std::max(unit, uint64_t{1});
    SLUICE_ASSIGN_OR_RETURN(const PlacementSolution solution,
                            SolvePlacement(program, budget_ / unit, start_steps));
    *bound = solution.bound;
    Choice choice;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const uint32_t steps = solution.steps[i];
      choice.push_back(steps == 0 ? 0 : layers_[i].least() + steps - 1);
    }
    return choice;
  }

  PlacementPlan PlanOf(const Choice& choice) const {
    PlacementPlan plan;
    for (size_t i = 0; i < layers_.size(); ++i) {
      plan.pinned.push_back(layers_[i].Neurons(choice[i]));
      plan.covered += layers_[i].Covered(choice[i]);
      plan.bytes += layers_[i].Bytes(choice[i]);
    }
    return plan;
  }

 private:
  struct Batch {
    uint32_t layer = 0, index = 0;
    uint64_t covered = 0, bytes = 0;
  };

  // By falling activations per byte; batches of a layer stay in turn.
  std::vector<Batch> ByDensity() const {
    std::vector<Batch> order;
    for (uint32_t i = 0; i < layers_.size(); ++i) {
      const LayerBatches& l = layers_[i];
      for (uint32_t b = 0; b < l.count(); ++b) {
        order.push_back({i, b, l.Covered(b + 1) - l.Covered(b), l.Bytes(b + 1) - l.Bytes(b)});
      }
    }
    std::stable_sort(order.begin(), order.end(), [](const Batch& a, const Batch& b) {
      __extension__ using Wide = unsigned __int128;
      return Wide{a.covered} * b.bytes > Wide{b.covered} * a.bytes;
    });
    return order;
  }

  Choice Fill(const std::vector<Batch>& order, const std::vector<bool>& allowed) const {
    Choice choice(layers_.size(), 0);
    uint64_t left = budget_;
    for (const Batch& b : order) {
      if (!allowed[b.layer] || choice[b.layer] != b.index || b.bytes > left) continue;
      ++choice[b.layer];
      left -= b.bytes;
    }
    return choice;
  }

  // Of the layers that pin too few neurons the one that covers least; the number of layers if none.
  size_t WorstBelowLeast(const Choice& choice) const {
    size_t worst = layers_.size();
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (choice[i] == 0 || choice[i] >= layers_[i].least()) continue;
      if (worst == layers_.size() ||
          layers_[i].Covered(choice[i]) < layers_[worst].Covered(choice[worst])) {
        worst = i;
      }
    }
    return worst;
  }

  std::vector<LayerBatches> layers_;
  uint64_t budget_;
};

absl::Status CheckLayer(const PlacementLayer& layer, size_t index) {
  if (layer.counts.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat("placement: layer %u has no neurons", index));
  }
  if (layer.bundle_bytes == 0 || layer.bundle_bytes > kMostBundleBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("placement: layer %u has bundles of %u bytes", index, layer.bundle_bytes));
  }
  return absl::OkStatus();
}

bool IsTime(double ns) { return std::isfinite(ns) && ns > 0; }

}  // namespace

PlacementCosts PlacementCostsOf(const DeviceProfile& profile, uint32_t bundle_bytes,
                                uint64_t layer_bytes, double dram_bytes_per_second) {
  return {.slow_ns = profile.ReadNs(bundle_bytes, layer_bytes, profile.BestDepth()),
          .fast_ns = bundle_bytes / dram_bytes_per_second * 1e9,
          .sync_ns = profile.ReadNs(bundle_bytes, layer_bytes, 1)};
}

absl::StatusOr<uint64_t> LeastPinned(const PlacementCosts& costs) {
  const auto refused = [&](const char* why) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "placement: %s: %g ns for a neuron from flash, %g ns from DRAM, %g ns to join them", why,
        costs.slow_ns, costs.fast_ns, costs.sync_ns));
  };
  if (!IsTime(costs.slow_ns) || !IsTime(costs.fast_ns) ||
      (costs.sync_ns != 0 && !IsTime(costs.sync_ns))) {
    return refused("costs must be times");
  }
  if (costs.slow_ns <= costs.fast_ns) return refused("flash must be slower than DRAM");
  const double least = std::ceil(costs.sync_ns / (costs.slow_ns - costs.fast_ns));
  return static_cast<uint64_t>(std::clamp(least, 1.0, 1e18));
}

std::string_view PlacementWayName(PlacementWay way) {
  switch (way) {
    case PlacementWay::kGreedy:
      return "greedy";
    case PlacementWay::kUniform:
      return "uniform";
    case PlacementWay::kSolved:
      break;
  }
  return "solved";
}

absl::StatusOr<Placement> PlanPlacement(std::span<const PlacementLayer> layers,
                                        uint64_t budget_bytes) {
  if (layers.empty()) return absl::InvalidArgumentError("placement: there are no layers");
  std::vector<LayerBatches> batches;
  Placement placement;
  uint64_t n_neurons = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(CheckLayer(layers[i], i));
    SLUICE_ASSIGN_OR_RETURN(const uint64_t least, LeastPinned(layers[i].costs));
    n_neurons += layers[i].counts.size();
    if (n_neurons > kMostNeurons) {
      return absl::InvalidArgumentError(
          absl::StrFormat("placement: more than %u neurons", kMostNeurons));
    }
    batches.emplace_back(layers[i], least);
    placement.total += batches.back().Covered(batches.back().count());
  }
  const Planner planner(std::move(batches), budget_bytes);
  const Choice greedy = planner.Greedy(), uniform = planner.Uniform();
  placement.greedy = planner.PlanOf(greedy);
  placement.uniform = planner.PlanOf(uniform);
  const bool greedy_first = placement.greedy.covered >= placement.uniform.covered;
  double bound = 0;
  SLUICE_ASSIGN_OR_RETURN(const Choice solved,
                          planner.Solve(greedy_first ? greedy : uniform, &bound));
  placement.solved = planner.PlanOf(solved);
  if (placement.solved.bytes > budget_bytes) {
    return absl::InternalError(absl::StrFormat("placement: CBC gave a plan of %u bytes for %u",
                                               placement.solved.bytes, budget_bytes));
  }
  placement.best = placement.greedy;
  const auto prefer = [&](const PlacementPlan& plan, PlacementWay way) {
    if (plan.covered <= placement.best.covered) return;
    placement.best = plan;
    placement.way = way;
  };
  prefer(placement.uniform, PlacementWay::kUniform);
  prefer(placement.solved, PlacementWay::kSolved);
  placement.bound = std::max(placement.best.covered, static_cast<uint64_t>(bound));
  if (placement.greedy.covered > 0) {
    placement.gain_over_greedy =
        100.0 * static_cast<double>(placement.best.covered - placement.greedy.covered) /
        static_cast<double>(placement.greedy.covered);
  }
  return placement;
}

std::vector<uint32_t> MostFrequent(std::span<const uint32_t> counts, uint32_t n) {
  std::vector<uint32_t> positions(counts.size());
  std::iota(positions.begin(), positions.end(), 0u);
  std::stable_sort(positions.begin(), positions.end(),
                   [&](uint32_t a, uint32_t b) { return counts[a] > counts[b]; });
  positions.resize(std::min<size_t>(n, positions.size()));
  std::sort(positions.begin(), positions.end());
  return positions;
}

}  // namespace sluice
