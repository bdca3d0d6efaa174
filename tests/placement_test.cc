// The placement plan against every choice that could be made, against greedy, and at its borders.
#include "layout/placement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

// Costs by which a layer pins at least `least` neurons.
PlacementCosts CostsFor(uint32_t least) {
  return {.slow_ns = 11, .fast_ns = 1, .sync_ns = 10.0 * least};
}

// Layers that own their counts.
struct Model {
  std::vector<std::vector<uint32_t>> counts;
  std::vector<PlacementLayer> layers;

  void Add(std::vector<uint32_t> layer_counts, uint32_t least, uint64_t bundle_bytes) {
    counts.push_back(std::move(layer_counts));
    layers.push_back({{}, bundle_bytes, CostsFor(least)});
    for (size_t l = 0; l < layers.size(); ++l) layers[l].counts = counts[l];
  }
};

// Neurons of a few batches, all of a batch alike.
std::vector<uint32_t> Batches(const std::vector<uint32_t>& counts) {
  std::vector<uint32_t> all;
  for (const uint32_t c : counts) all.insert(all.end(), kPlacementBatch, c);
  return all;
}

Placement Plan(const Model& model, uint64_t budget) {
  auto placement = PlanPlacement(model.layers, budget);
  EXPECT_TRUE(placement.ok()) << placement.status();
  return placement.ok() ? *std::move(placement) : Placement();
}

// What a plan says of itself, and its constraints.
void ExpectConsistent(const Model& model, const PlacementPlan& plan, uint64_t budget) {
  ASSERT_EQ(plan.pinned.size(), model.layers.size());
  uint64_t covered = 0, bytes = 0;
  for (size_t l = 0; l < model.layers.size(); ++l) {
    const PlacementLayer& layer = model.layers[l];
    const uint32_t n = plan.pinned[l];
    EXPECT_TRUE(n == layer.counts.size() || n % kPlacementBatch == 0) << n;
    EXPECT_TRUE(n == 0 || n >= *LeastPinned(layer.costs)) << "layer " << l << ": " << n;
    for (const uint32_t p : MostFrequent(layer.counts, n)) covered += layer.counts[p];
    bytes += n * layer.bundle_bytes;
  }
  EXPECT_EQ(plan.covered, covered);
  EXPECT_EQ(plan.bytes, bytes);
  EXPECT_LE(plan.bytes, budget);
}

void ExpectConsistent(const Model& model, const Placement& p, uint64_t budget) {
  for (const PlacementPlan* plan : {&p.best, &p.greedy, &p.uniform, &p.solved}) {
    ExpectConsistent(model, *plan, budget);
    EXPECT_LE(plan->covered, p.best.covered);
  }
  EXPECT_LE(p.best.covered, p.bound);
  EXPECT_LE(p.best.covered, p.total);
  EXPECT_GE(p.gain_over_greedy, 0);
}

// The most that any set of batches covers, whatever is chosen of a layer.
uint64_t BestSubset(const Model& model, uint64_t budget) {
  struct Batch {
    size_t layer;
    uint64_t covered;
  };
  std::vector<Batch> batches;
  for (size_t l = 0; l < model.layers.size(); ++l) {
    std::vector<uint32_t> sorted = model.counts[l];
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (size_t i = 0; i < sorted.size(); ++i) {
      if (i % kPlacementBatch == 0) batches.push_back({l, 0});
      batches.back().covered += sorted[i];
    }
  }
  uint64_t best = 0;
  for (uint32_t chosen = 0; chosen < 1u << batches.size(); ++chosen) {
    std::vector<uint64_t> neurons(model.layers.size(), 0);
    uint64_t covered = 0, bytes = 0;
    for (size_t b = 0; b < batches.size(); ++b) {
      if ((chosen >> b & 1) == 0) continue;
      neurons[batches[b].layer] += kPlacementBatch;
      covered += batches[b].covered;
      bytes += kPlacementBatch * model.layers[batches[b].layer].bundle_bytes;
    }
    bool allowed = bytes <= budget;
    for (size_t l = 0; l < neurons.size(); ++l) {
      allowed = allowed && (neurons[l] == 0 || neurons[l] >= *LeastPinned(model.layers[l].costs));
    }
    if (allowed) best = std::max(best, covered);
  }
  return best;
}

// The most that any number of batches of each layer covers.
uint64_t BestPrefixes(const Model& model, uint64_t budget, size_t layer = 0) {
  if (layer == model.layers.size()) return 0;
  const PlacementLayer& l = model.layers[layer];
  uint64_t best = 0;
  for (uint32_t n = 0;; n = std::min<uint32_t>(n + kPlacementBatch, l.counts.size())) {
    if (n * l.bundle_bytes > budget) break;
    if (n == 0 || n >= *LeastPinned(l.costs)) {
      uint64_t covered = 0;
      for (const uint32_t p : MostFrequent(l.counts, n)) covered += l.counts[p];
      best = std::max(best, covered + BestPrefixes(model, budget - n * l.bundle_bytes, layer + 1));
    }
    if (n == l.counts.size()) break;
  }
  return best;
}

// Few frequent neurons, in no order; layers differ in how few.
std::vector<uint32_t> SkewedCounts(uint32_t n, std::mt19937_64& random) {
  std::vector<uint32_t> counts;
  const double exponent = 0.3 + 1e-3 * static_cast<double>(random() % 1200);
  for (uint32_t i = 0; i < n; ++i) {
    counts.push_back(static_cast<uint32_t>(20000 / std::pow(i + 1, exponent)));
  }
  std::shuffle(counts.begin(), counts.end(), random);
  return counts;
}

struct RandomInstance {
  Model model;
  uint64_t budget = 0;
};

// 12 batches at most; the last one of a layer is whole, or not.
RandomInstance MakeRandom(uint64_t seed, bool whole) {
  std::mt19937_64 random(seed);
  RandomInstance instance;
  uint64_t all = 0;
  const uint32_t most = random() % 2 == 0 ? 1 : 260;
  for (uint64_t left = 12, n_layers = 2 + random() % 3, l = 0; l < n_layers; ++l) {
    const uint64_t n_batches = 1 + random() % (left - (n_layers - l - 1));
    left -= n_batches;
    const auto n = static_cast<uint32_t>(n_batches * kPlacementBatch - (whole ? 0 : random() % 64));
    const uint64_t bundle_bytes = random() % 2 == 0 ? 4608 : 512 * (1 + random() % 20);
    instance.model.Add(SkewedCounts(n, random), 1 + random() % most, bundle_bytes);
    all += n * bundle_bytes;
  }
  instance.budget = all * (random() % 110) / 100;
  return instance;
}

TEST(PlacementTest, CoversWhatTheBestOfAllSubsetsCovers) {
  uint64_t n_gains = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const auto [model, budget] = MakeRandom(seed, /*whole=*/true);
    const Placement p = Plan(model, budget);
    ExpectConsistent(model, p, budget);
    ASSERT_EQ(p.solved.covered, BestSubset(model, budget)) << "seed " << seed;
    n_gains += p.gain_over_greedy > 0;
  }
  EXPECT_GT(n_gains, 4u) << "instances in which greedy is not best are needed here";
}

TEST(PlacementTest, CoversWhatTheBestPrefixesCoverWhereLastBatchesAreShort) {
  for (uint64_t seed = 1000; seed < 1150; ++seed) {
    const auto [model, budget] = MakeRandom(seed, /*whole=*/false);
    const Placement p = Plan(model, budget);
    ExpectConsistent(model, p, budget);
    ASSERT_EQ(p.solved.covered, BestPrefixes(model, budget)) << "seed " << seed;
  }
}

TEST(PlacementTest, BeatsGreedyWhereALayersMinimumBinds) {
  Model model;
  model.Add(Batches({100, 1}), 128, 10);
  model.Add(Batches({60, 60}), 128, 10);
  const Placement p = Plan(model, 128 * 10);
  // Greedy begins with a batch of each, and then gives up the layer that covers less.
  EXPECT_THAT(p.greedy.pinned, ElementsAre(128, 0));
  EXPECT_THAT(p.best.pinned, ElementsAre(0, 128));
  EXPECT_EQ(p.way, PlacementWay::kSolved);
  EXPECT_EQ(p.best.covered, 120u * 64);
  EXPECT_EQ(p.bound, 120u * 64);
  EXPECT_NEAR(p.gain_over_greedy, 100.0 * 19 / 101, 1e-9);
}

TEST(PlacementTest, GainsNothingOverGreedyWhereNothingBinds) {
  Model model;
  model.Add(Batches({9, 5, 1}), 1, 10);
  model.Add(Batches({7, 6, 5}), 64, 10);
  const Placement p = Plan(model, 4 * 64 * 10);
  EXPECT_EQ(p.gain_over_greedy, 0);
  EXPECT_EQ(p.way, PlacementWay::kGreedy);
  EXPECT_EQ(p.best.covered, (9u + 5 + 7 + 6) * 64);
  EXPECT_THAT(p.best.pinned, ElementsAre(128, 128));
}

TEST(PlacementTest, UniformGivesEachLayerTheSameBytes) {
  Model model;
  model.Add(Batches({9, 8, 7, 6}), 1, 20);
  model.Add(Batches({3, 2, 1, 1}), 1, 10);
  model.Add(Batches({3, 2, 1, 1}), 192, 20);
  const Placement p = Plan(model, 3 * 128 * 20);
  EXPECT_THAT(p.uniform.pinned, ElementsAre(128, 256, 0)) << "a third of it pins too few";
  EXPECT_GE(p.best.covered, p.uniform.covered);
}

TEST(PlacementTest, AnEmptyBudgetPinsNothing) {
  const auto [model, unused] = MakeRandom(1, true);
  for (const uint64_t budget : {uint64_t{0}, uint64_t{511}}) {
    const Placement p = Plan(model, budget);
    EXPECT_THAT(p.best.pinned, Each(0u));
    EXPECT_EQ(p.best.bytes, 0u);
    EXPECT_EQ(p.gain_over_greedy, 0);
  }
}

TEST(PlacementTest, ABudgetOverEverythingPinsEverything) {
  Model model;
  model.Add(Batches({9, 8, 0}), 1, 20);
  model.Add(std::vector<uint32_t>(100, 3), 100, 30);
  for (const uint64_t budget :
       {uint64_t{192 * 20 + 100 * 30}, uint64_t{1} << 40, std::numeric_limits<uint64_t>::max()}) {
    const Placement p = Plan(model, budget);
    EXPECT_EQ(p.best.covered, p.total);
    EXPECT_EQ(p.greedy.pinned, (std::vector<uint32_t>{192, 100}));
  }
}

TEST(PlacementTest, ALayerWithFewerNeuronsThanItsMinimumPinsNone) {
  Model model;
  model.Add(Batches({9, 8}), 129, 20);
  model.Add(Batches({1, 1}), 128, 20);
  EXPECT_THAT(Plan(model, 1 << 30).best.pinned, ElementsAre(0, 128));
  model.layers.pop_back();
  EXPECT_THAT(Plan(model, 1 << 30).best.pinned, ElementsAre(0)) << "nothing is left to choose";
}

TEST(PlacementTest, EqualFrequenciesFillTheBudget) {
  Model model;
  for (int l = 0; l < 6; ++l) model.Add(std::vector<uint32_t>(10 * 64, 5), 130, 4608);
  for (const uint32_t n_batches : {2u, 3u, 17u, 59u}) {
    const uint64_t budget = n_batches * 64 * 4608;
    const Placement p = Plan(model, budget);
    ExpectConsistent(model, p, budget);
    EXPECT_EQ(p.best.covered, n_batches < 3 ? 0 : n_batches * 64 * 5);
  }
}

TEST(PlacementTest, NeuronsThatNeverFireAreNoObstacle) {
  Model model;
  for (int l = 0; l < 3; ++l) model.Add(std::vector<uint32_t>(128, 0), 1, 4608);
  const Placement p = Plan(model, 200 * 4608);
  EXPECT_EQ(p.best.covered, 0u);
  EXPECT_EQ(p.total, 0u);
  EXPECT_EQ(p.gain_over_greedy, 0);
}

// As wide as a 7B model's layers.
Model LargeModel(uint32_t least, uint64_t seed) {
  std::mt19937_64 random(seed);
  Model model;
  for (int l = 0; l < 32; ++l) model.Add(SkewedCounts(14336, random), least, 4608);
  return model;
}

TEST(PlacementTest, LargeModelsAreSolvedToTheGapAndNoWorseThanGreedy) {
  for (const uint32_t least : {20u, 1000u, 5000u}) {
    const Model model = LargeModel(least, least);
    for (const uint64_t percent : {10u, 40u}) {
      const uint64_t budget = uint64_t{32} * 14336 * 4608 * percent / 100;
      const Placement p = Plan(model, budget);
      ExpectConsistent(model, p, budget);
      EXPECT_LE(static_cast<double>(p.bound - p.best.covered),
                std::max(1.0, 1e-5 * static_cast<double>(p.bound)))
          << least << " " << percent;
    }
  }
}

TEST(PlacementTest, TheSearchEndsWhereLastBatchesAreShort) {
  std::mt19937_64 random(3);
  Model model;
  uint64_t all = 0;
  for (uint32_t l = 0; l < 16; ++l) {
    model.Add(SkewedCounts(2000 + l, random), 100, 4608);
    all += model.counts.back().size() * 4608;
  }
  const Placement p = Plan(model, all / 4);
  ExpectConsistent(model, p, all / 4);
  EXPECT_LE(static_cast<double>(p.bound), 1.01 * static_cast<double>(p.best.covered));
}

TEST(PlacementTest, TheSameInputGivesTheSamePlan) {
  const Model model = LargeModel(3000, 7);
  const uint64_t budget = uint64_t{32} * 14336 * 4608 / 5;
  const Placement first = Plan(model, budget), second = Plan(model, budget);
  EXPECT_EQ(first.best.pinned, second.best.pinned);
  EXPECT_EQ(first.solved.pinned, second.solved.pinned);
  EXPECT_EQ(first.bound, second.bound);
}

TEST(PlacementTest, LeastPinnedRepaysTheSync) {
  EXPECT_EQ(*LeastPinned({.slow_ns = 4000, .fast_ns = 500, .sync_ns = 70000}), 20u);
  EXPECT_EQ(*LeastPinned({.slow_ns = 4000, .fast_ns = 500, .sync_ns = 70001}), 21u);
  EXPECT_EQ(*LeastPinned({.slow_ns = 4000, .fast_ns = 500, .sync_ns = 0}), 1u);
  EXPECT_GT(*LeastPinned({.slow_ns = 1, .fast_ns = 1 - 1e-16, .sync_ns = 1e300}), 1u << 30);
}

TEST(PlacementTest, CostsThatAreNoTimesAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  for (const PlacementCosts costs :
       {PlacementCosts{0, 1, 1}, PlacementCosts{2, 0, 1}, PlacementCosts{2, 1, -1},
        PlacementCosts{nan, 1, 1}, PlacementCosts{2, nan, 1}, PlacementCosts{2, 1, nan},
        PlacementCosts{infinite, 1, 1}, PlacementCosts{2, 1, infinite}}) {
    const auto least = LeastPinned(costs);
    EXPECT_EQ(least.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(least.status().message()), HasSubstr("costs must be times"));
  }
  const auto fast = LeastPinned({.slow_ns = 2, .fast_ns = 2, .sync_ns = 1});
  EXPECT_EQ(fast.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(fast.status().message()), HasSubstr("flash must be slower than DRAM"));
}

TEST(PlacementTest, NonsenseIsRefusedByName) {
  const auto message = [](const Model& model) {
    const auto p = PlanPlacement(model.layers, 1000);
    EXPECT_EQ(p.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(p.status().message());
  };
  Model model;
  EXPECT_THAT(message(model), HasSubstr("no layers"));
  model.Add(Batches({1}), 1, 0);
  EXPECT_THAT(message(model), HasSubstr("layer 0 has bundles of 0 bytes"));
  model.layers[0].bundle_bytes = uint64_t{1} << 40;
  EXPECT_THAT(message(model), HasSubstr("bundles of 1099511627776 bytes"));
  model.layers[0].bundle_bytes = 512;
  model.Add({}, 1, 512);
  EXPECT_THAT(message(model), HasSubstr("layer 1 has no neurons"));
}

TEST(PlacementTest, CostsOfAProfileAreItsReadTimes) {
  DeviceModel::Point point;
  point.block = 4096;
  point.megabytes_per_second = 400;
  auto model = DeviceModel::FromPoints("device", {point});
  ASSERT_TRUE(model.ok()) << model.status();
  DeviceProfile profile(*std::move(model));
  profile.AddFit({.range = 1 << 26, .depth = 1, .operation_ns = 60000, .ns_per_byte = 0.25});
  profile.AddFit({.range = 1 << 26, .depth = 32, .operation_ns = 3000, .ns_per_byte = 0.25});
  const PlacementCosts costs = PlacementCostsOf(profile, 4096, 1 << 26, 8e9);
  EXPECT_DOUBLE_EQ(costs.fast_ns, 512);
  EXPECT_NEAR(costs.slow_ns, 4024, 1);
  EXPECT_NEAR(costs.sync_ns, 61024, 1);
  EXPECT_EQ(*LeastPinned(costs), 18u);
}

TEST(PlacementTest, TheMostFrequentNeuronsComeInRisingOrder) {
  EXPECT_THAT(MostFrequent(std::vector<uint32_t>{3, 9, 3, 3, 8}, 3), ElementsAre(0, 1, 4));
  EXPECT_THAT(MostFrequent(std::vector<uint32_t>{3, 9}, 9), ElementsAre(0, 1));
  EXPECT_THAT(MostFrequent(std::vector<uint32_t>{3, 9}, 0), ElementsAre());
}

}  // namespace
}  // namespace sluice
