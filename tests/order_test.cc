// The order of neurons as a whole, what it is worth, and what it refuses.
#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/friend_bundles.h"
#include "bench/planted_trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/neuron_order.h"
#include "layout/order_metrics.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

using Tokens = std::vector<std::vector<uint32_t>>;
using Orders = std::vector<std::vector<uint32_t>>;

ActiveSets SetsOf(const Tokens& tokens, uint32_t n_neurons) {
  return {1, n_neurons, static_cast<uint32_t>(tokens.size()),
          [&tokens](uint32_t t, uint32_t, std::vector<uint32_t>* active) { *active = tokens[t]; }};
}

std::vector<uint32_t> CountsOf(const Tokens& tokens, uint32_t n_neurons) {
  std::vector<uint32_t> counts(n_neurons);
  for (const auto& token : tokens) {
    for (const uint32_t n : token) ++counts[n];
  }
  return counts;
}

absl::StatusOr<Orders> Order(const ActiveSets& sets, const std::vector<uint32_t>& counts,
                             const OrderOptions& options = {}) {
  const std::span<const uint32_t> spans[] = {counts};
  return OrderNeurons(sets, spans, sets.n_tokens, options);
}

// The order of the only layer.
std::vector<uint32_t> OrderOf(const Tokens& tokens, uint32_t n_neurons) {
  const auto orders = Order(SetsOf(tokens, n_neurons), CountsOf(tokens, n_neurons));
  EXPECT_TRUE(orders.ok()) << orders.status();
  return orders.ok() ? orders->at(0) : std::vector<uint32_t>();
}

std::vector<uint32_t> Identity(uint32_t n) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

// An operation costs 8 us and bytes 3.7 GB/s, whatever is in flight.
ReadMerger StraightLine() {
  DeviceModel::Point point;
  point.block = 4096;
  point.megabytes_per_second = 450;
  DeviceProfile profile(*DeviceModel::FromPoints("line", {point}));
  profile.AddFit({1 << 27, 1, 8000, 1 / 3.7});
  return ReadMerger(profile, 1 << 27, {32, 4 << 20}, 0);
}

BundleLayout Bundles(uint32_t n_neurons) {
  BundleLayout bundles;
  bundles.block = 4096;
  bundles.stride = 8192;
  bundles.bundles_per_blob = 60;  // and room for four more behind
  bundles.blob_bytes = kBlobAlignment;
  bundles.layer_offsets = {0};
  bundles.d_ff = n_neurons;
  return bundles;
}

TEST(NeuronOrderTest, HoldsEveryNeuronOnce) {
  for (const uint32_t n_hot : {0u, 30u}) {
    PlantedOptions options;
    options.n_hot = n_hot;
    options.n_tokens = 200;
    const PlantedTrace trace = MakePlantedTrace(options);
    std::vector<uint32_t> order = OrderOf(trace.tokens, options.n_neurons);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, Identity(options.n_neurons));
  }
}

TEST(NeuronOrderTest, IsTheSameWithAnyNumberOfThreads) {
  constexpr uint32_t kLayers = 7;
  std::vector<PlantedTrace> layers;
  std::vector<std::vector<uint32_t>> counts;
  std::vector<std::span<const uint32_t>> spans;
  for (uint32_t l = 0; l < kLayers; ++l) {
    PlantedOptions options;
    options.n_neurons = 300;
    options.n_clusters = 20;
    options.n_tokens = 150;
    options.n_hot = l;
    options.seed = l + 1;
    layers.push_back(MakePlantedTrace(options));
    counts.push_back(layers.back().Counts(0, 150));
  }
  for (const auto& c : counts) spans.emplace_back(c);
  const ActiveSets sets = {kLayers, 300, 150,
                           [&](uint32_t t, uint32_t l, std::vector<uint32_t>* active) {
                             *active = layers[l].tokens[t];
                           }};
  const auto one = OrderNeurons(sets, spans, 150, {.n_threads = 1});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_NE(one->at(0), one->at(1));
  for (const uint32_t n_threads : {2u, 3u, 16u}) {
    const auto orders = OrderNeurons(sets, spans, 150, {.n_threads = n_threads});
    ASSERT_TRUE(orders.ok()) << orders.status();
    EXPECT_EQ(*orders, *one) << n_threads << " threads";
  }
}

TEST(NeuronOrderTest, BeginsWithTheHotOnesByFrequency) {
  // Of 10 tokens 4 fires for all, 1 for nine, 6 and 7 for six; 0 for five, which is not hot.
  Tokens tokens(10);
  for (uint32_t t = 0; t < 10; ++t) {
    if (t < 5) tokens[t].push_back(0);
    if (t < 9) tokens[t].push_back(1);
    tokens[t].push_back(4);
    if (t < 6) tokens[t].push_back(6);
    if (t >= 4) tokens[t].push_back(7);
  }
  EXPECT_EQ(CountHot(CountsOf(tokens, 9), 10), 4u);
  EXPECT_THAT(OrderOf(tokens, 9), ElementsAre(4, 1, 6, 7, 0, 2, 3, 5, 8));
}

TEST(NeuronOrderTest, DecidesByAllCountsWhoIsHotAndByTheSetsWhoBelongsTogether) {
  // The sets end early: neuron 3 fires for most of the tokens that were only counted.
  const Tokens tokens = {{0, 2}, {0, 2}, {1}, {1}, {1}};
  const std::vector<uint32_t> counts = {2, 3, 2, 90, 0};
  const std::span<const uint32_t> spans[] = {counts};
  const auto orders = OrderNeurons(SetsOf(tokens, 5), spans, 100, {});
  ASSERT_TRUE(orders.ok()) << orders.status();
  EXPECT_THAT(orders->at(0), ElementsAre(3, 1, 0, 2, 4));
}

TEST(NeuronOrderTest, KeepsTheOriginalOrderOfWhatNeverFired) {
  EXPECT_EQ(OrderOf({}, 5), Identity(5));
  EXPECT_EQ(OrderOf({{}, {}, {}}, 5), Identity(5));
  EXPECT_THAT(OrderOf({{3}, {}, {}}, 5), ElementsAre(3, 0, 1, 2, 4));
}

TEST(NeuronOrderTest, TakesLayersOfNoOrOneNeuronAndOnesThatAlwaysFire) {
  EXPECT_EQ(OrderOf({{}}, 0), Identity(0));
  EXPECT_EQ(OrderOf({{0}, {}}, 1), Identity(1));
  EXPECT_EQ(OrderOf({{0}}, 1), Identity(1));
  EXPECT_EQ(OrderOf(Tokens(20, Identity(50)), 50), Identity(50));
  const auto none = OrderNeurons({0, 8, 3, nullptr}, {}, 3, {});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->empty());
}

TEST(NeuronOrderTest, PutsPlantedClustersSideBySide) {
  PlantedOptions options;
  options.member_share = 0.9;
  options.noise_share = 0;
  const PlantedTrace trace = MakePlantedTrace(options);
  const std::vector<uint32_t> order = OrderOf(trace.tokens, options.n_neurons);
  ASSERT_EQ(order.size(), options.n_neurons);
  uint32_t together = 0;
  for (uint32_t p = 1; p < order.size(); ++p) {
    together += trace.cluster_of[order[p]] == trace.cluster_of[order[p - 1]];
  }
  // If each cluster lay in one piece it would be all but one of each.
  EXPECT_GE(together, 0.95 * (options.n_neurons - options.n_clusters));
}

TEST(NeuronOrderTest, RefusesSetsAndCountsThatDoNotFit) {
  const auto refusal = [](const Tokens& tokens, const std::vector<uint32_t>& counts) {
    const absl::Status status = Order(SetsOf(tokens, 3), counts).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({{0, 3}}, {1, 0, 0}), HasSubstr("layer 0 are not rising numbers below 3"));
  EXPECT_THAT(refusal({{1, 1}}, {0, 1, 0}), HasSubstr("not rising"));
  EXPECT_THAT(refusal({{2, 1}}, {0, 1, 1}), HasSubstr("not rising"));
  EXPECT_THAT(refusal({{1}}, {0, 1}), HasSubstr("2 neurons in layer 0"));
  EXPECT_THAT(refusal({{1}}, {0, 2, 0}), HasSubstr("more often than there are tokens"));
  const Tokens tokens = {{0}};
  EXPECT_EQ(OrderNeurons(SetsOf(tokens, 3), {}, 1, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(NeuronOrderTest, StopsWhenItIsTold) {
  const Tokens tokens = {{0, 1}};
  uint32_t calls = 0;
  const auto orders = Order(SetsOf(tokens, 2), {1, 1}, {.progress = [&](uint32_t done, uint32_t n) {
                              EXPECT_EQ(done, 1u);
                              EXPECT_EQ(n, 1u);
                              ++calls;
                              return false;
                            }});
  EXPECT_EQ(orders.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(calls, 1u);
}

TEST(OrderMetricsTest, CountsRunsOperationsAndBytes) {
  // Positions 0 1 2, 5 and 59 60: neighbours, but padding lies between their blobs.
  const Tokens tokens = {{10, 11, 12, 15, 69, 70}, {}};
  std::vector<uint32_t> order(100);
  for (uint32_t p = 0; p < 100; ++p) order[p] = (p + 10) % 100;
  ReadMerger merger = StraightLine();
  const OrderCost cost =
      MeasureOrder(SetsOf(tokens, 100), std::span(&order, 1), Bundles(100), merger);
  EXPECT_EQ(cost.active, 3);  // of a token
  EXPECT_EQ(cost.runs, 1.5);
  EXPECT_EQ(cost.mean_run(), 2);
  EXPECT_EQ(cost.exact.operations, 2);
  EXPECT_EQ(cost.exact.bytes, 3 * 8192);
  EXPECT_NEAR(cost.exact.ns, 2 * 8000 + 3 * 8192 / 3.7, 1);
  // Gaps of 16 KiB are cheaper than an operation, the one up to position 59 is not, nor is the
  // padding of 32 KiB.
  EXPECT_EQ(cost.merged.operations, 1.5);
  EXPECT_EQ(cost.merged.bytes, 4 * 8192);
}

// One layer of planted clusters: what an order costs on tokens that it was not made from.
class PlantedOrderTest : public testing::Test {
 protected:
  static constexpr uint32_t kTrain = 600, kAll = 800;

  void Plant(uint32_t n_hot) {
    options_.n_hot = n_hot;
    trace_ = MakePlantedTrace(options_);
    counts_ = trace_.Counts(0, kTrain);
  }
  ActiveSets Train() const { return trace_.Sets(0, kTrain); }
  ActiveSets Test() const { return trace_.Sets(kTrain, kAll); }
  OrderCost Cost(const std::vector<uint32_t>& order) {
    return MeasureOrder(Test(), std::span(&order, 1), Bundles(options_.n_neurons), merger_);
  }
  std::vector<uint32_t> Made() const {
    const auto orders = Order(Train(), counts_);
    EXPECT_TRUE(orders.ok()) << orders.status();
    return orders.ok() ? orders->at(0) : std::vector<uint32_t>();
  }

  PlantedOptions options_;
  PlantedTrace trace_;
  std::vector<uint32_t> counts_;
  ReadMerger merger_ = StraightLine();
};

TEST_F(PlantedOrderTest, MakesRunsLongerAndReadsFasterThanTheOriginalAndAFrequencySort) {
  for (const uint32_t n_hot : {0u, 32u}) {
    Plant(n_hot);
    const OrderCost original = Cost(Identity(options_.n_neurons));
    const OrderCost sorted = Cost(ByFrequency(counts_));
    const OrderCost made = Cost(Made());
    EXPECT_GE(made.mean_run(), 2.5 * original.mean_run());
    EXPECT_GE(made.mean_run(), 1.5 * sorted.mean_run());
    EXPECT_LE(1.6 * made.exact.ns, original.exact.ns);
    EXPECT_LE(1.6 * made.merged.ns, original.merged.ns);
    EXPECT_LE(1.2 * made.merged.ns, sorted.merged.ns);
    EXPECT_EQ(made.active, original.active);
    EXPECT_DOUBLE_EQ(made.exact.bytes, original.exact.bytes);
  }
}

TEST_F(PlantedOrderTest, CopiesOfTheClosestFriendAreWorseThanNothing) {
  Plant(32);
  const MergedBatch with_friends = ReadWithFriends(Train(), Test(), 8192, merger_);
  const OrderCost original = Cost(Identity(options_.n_neurons));
  EXPECT_GT(with_friends.bytes, 1.5 * original.exact.bytes);
  EXPECT_GT(with_friends.ns, original.exact.ns);
  EXPECT_GT(with_friends.ns, 2 * Cost(Made()).exact.ns);
}

}  // namespace
}  // namespace sluice
