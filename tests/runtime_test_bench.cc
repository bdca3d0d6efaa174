// What `sluice bench` stands on: that bytes touched are those that a step needs, counted here from
// the shapes alone, that the limit follows from them, and that a test's samples are what they say.
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/benchmark.h"
#include "runtime/memory_bandwidth.h"
#include "tests/predicted_model.h"

namespace sluice {
namespace {

constexpr uint32_t kDepth = 9, kTokens = 4;

uint64_t BytesOf(const SluiceFile& file, MatrixRole role, uint32_t layer) {
  const MatrixEntry& m = file.matrix(file.MatrixIndex(role, layer));
  return uint64_t{m.rows} * m.row_bytes();
}

// Everything of a token at `position` but its FFN bundles: matrices, and the keys and values of all
// positions up to its own.
uint64_t BytesBesideBundles(const SluiceFile& file, uint32_t position,
                            std::initializer_list<MatrixRole> of_layer) {
  const ModelConfig& c = file.config();
  uint64_t bytes = BytesOf(file, MatrixRole::kHead, 0);
  for (uint32_t l = 0; l < c.n_layers; ++l) {
    for (const MatrixRole r : of_layer) bytes += BytesOf(file, r, l);
    bytes += uint64_t{2} * c.n_kv_heads * (position + 1) * c.head_dim * sizeof(uint16_t);
  }
  return bytes;
}

uint64_t BytesBesideBundlesOfTest(const SluiceFile& file,
                                  std::initializer_list<MatrixRole> of_layer) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < kTokens; ++i) bytes += BytesBesideBundles(file, kDepth + i, of_layer);
  return bytes;
}

BenchSample RunTest(const SluiceFile& file, const Way& way, const BenchTest& test) {
  auto decoder = Must(OpenDecoder(file, way));
  BenchTokens tokens({}, file.config().vocab_size, 5);
  return Must(RunBenchTest(*decoder, test, tokens, nullptr));
}

class TouchedBytesTest : public testing::TestWithParam<bool> {
 protected:
  // With a small cache and with one that holds everything.
  Way WayOf(const SluiceFile& file, DecodeMode mode) const {
    Way way;
    way.mode = mode;
    if (GetParam()) way.budget = Budgets(file, way)[2];
    return way;
  }
  static constexpr BenchTest kTest = {.n_gen = kTokens, .depth = kDepth};
};

TEST_P(TouchedBytesTest, OfDenseModeAreThoseOfTheWholeModel) {
  ToyModel toy;
  toy.activation = Activation::kSilu;
  const PackedModel model(toy, WeightType::kQ8);
  const SluiceFile& file = model.file();
  const BenchSample sample = RunTest(file, WayOf(file, DecodeMode::kDense), kTest);
  const uint64_t bundles = uint64_t{2} * toy.n_layers * toy.d_ff * file.bundles().row_bytes();
  EXPECT_EQ(sample.stats.touched_bytes,
            kTokens * bundles +
                BytesBesideBundlesOfTest(file, {MatrixRole::kQ, MatrixRole::kK, MatrixRole::kV,
                                                MatrixRole::kO, MatrixRole::kGate}));
}

TEST_P(TouchedBytesTest, OfExactModeHaveBundlesOfActiveNeuronsOnly) {
  const PackedModel model(WideToy(), WeightType::kQ8);
  const SluiceFile& file = model.file();
  const DecoderStats stats = RunTest(file, WayOf(file, DecodeMode::kExact), kTest).stats;
  ASSERT_GT(stats.active_neurons, 0u);
  ASSERT_LT(stats.active_neurons, stats.gated_neurons);
  EXPECT_EQ(stats.touched_bytes,
            2 * stats.active_neurons * file.bundles().row_bytes() +
                BytesBesideBundlesOfTest(file, {MatrixRole::kQ, MatrixRole::kK, MatrixRole::kV,
                                                MatrixRole::kO, MatrixRole::kGate}));
}

TEST_P(TouchedBytesTest, OfPredictedModeHaveTheGatesOfPredictedNeuronsAndThePredictors) {
  const PackedModel plain(WideToy(), WeightType::kQ8);
  const PredictedModel model(plain.file(), PredictorInput::kResidual, 0.0f);
  const SluiceFile& file = model.file();
  ASSERT_TRUE(file.bundles().has_gate);
  const DecoderStats stats = RunTest(file, WayOf(file, DecodeMode::kPredicted), kTest).stats;
  ASSERT_GT(stats.firing_neurons, 0u);
  ASSERT_LT(stats.firing_neurons, stats.active_neurons);
  const uint64_t rows = stats.active_neurons + 2 * stats.firing_neurons;
  EXPECT_EQ(stats.touched_bytes,
            rows * file.bundles().row_bytes() +
                BytesBesideBundlesOfTest(
                    file, {MatrixRole::kQ, MatrixRole::kK, MatrixRole::kV, MatrixRole::kO,
                           MatrixRole::kPredictor1, MatrixRole::kPredictor2}));
}

INSTANTIATE_TEST_SUITE_P(Caches, TouchedBytesTest, testing::Bool(),
                         [](const auto& p) { return p.param ? "Small" : "Whole"; });

TEST(LeastNsTest, IsThatOfTheSlowerOfMemoryAndDisk) {
  DecoderStats stats;
  stats.touched_bytes = 3'000;
  EXPECT_DOUBLE_EQ(LeastNs(stats, 1e9, 1), 3'000) << "nothing was read";
  stats.flash_bytes = 500;
  EXPECT_DOUBLE_EQ(LeastNs(stats, 1e9, 1e9), 3'000);
  EXPECT_DOUBLE_EQ(LeastNs(stats, 1e9, 1e8), 5'000);
}

TEST(RunBenchTestTest, TimesEveryTokenAndNothingBeforeThem) {
  const PackedModel model(ToyModel(), WeightType::kQ8);
  auto decoder = Must(OpenDecoder(model.file(), Way()));
  BenchTokens tokens({}, 300, 1);
  const BenchTest test = {.n_prompt = 8, .n_gen = 5, .depth = 16};
  const BenchSample sample = Must(RunBenchTest(*decoder, test, tokens, nullptr));
  EXPECT_EQ(decoder->position(), 16u + 8 + 5);
  ASSERT_EQ(sample.token_ns.size(), 5u);
  uint64_t decoding_ns = 0;
  for (const uint64_t ns : sample.token_ns) decoding_ns += ns;
  EXPECT_LT(decoding_ns, sample.wall_ns) << "the prompt takes time too";
  // What came before the clock started is in the totals, not in the sample.
  EXPECT_LT(sample.stats.touched_bytes, decoder->stats().touched_bytes);

  const BenchSample again = Must(RunBenchTest(*decoder, test, tokens, nullptr));
  EXPECT_EQ(decoder->position(), 16u + 8 + 5) << "the context begins anew";
  EXPECT_EQ(again.token_ns.size(), 5u);
}

TEST(RunBenchTestTest, StopsOnRequest) {
  const PackedModel model(ToyModel(), WeightType::kQ8);
  auto decoder = Must(OpenDecoder(model.file(), Way()));
  BenchTokens tokens({}, 300, 1);
  const std::atomic<int> stop = 1;
  EXPECT_TRUE(absl::IsCancelled(RunBenchTest(*decoder, {.n_gen = 3}, tokens, &stop).status()));
}

TEST(BenchTokensTest, ComeFromTheTextInItsOrder) {
  std::vector<int32_t> text(1000);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<int32_t>(i);
  BenchTokens tokens(text, 5, 1);
  std::set<int32_t> starts;
  for (int run = 0; run < 8; ++run) {
    tokens.Restart();
    const int32_t first = tokens.Next();
    starts.insert(first);
    for (int i = 1; i < 1100; ++i) EXPECT_EQ(tokens.Next(), (first + i) % 1000);
  }
  EXPECT_GT(starts.size(), 4u);
}

TEST(BenchTokensTest, AreRandomOnesOfTheVocabularyWithoutAText) {
  BenchTokens tokens({}, 5, 1), same({}, 5, 1), other({}, 5, 2);
  std::set<int32_t> seen;
  bool differs = false;
  for (int i = 0; i < 200; ++i) {
    const int32_t token = tokens.Next();
    seen.insert(token);
    EXPECT_EQ(same.Next(), token);
    differs |= other.Next() != token;
  }
  EXPECT_EQ(seen, (std::set<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_TRUE(differs);
}

TEST(MemoryBandwidthTest, IsOfAPossibleSize) {
  for (const int n_threads : {1, 2}) {
    const double bandwidth = Must(MeasureMemoryBandwidth(n_threads, 8 << 20));
    EXPECT_GT(bandwidth, 1e6);
    EXPECT_LT(bandwidth, 1e14);
  }
}

}  // namespace
}  // namespace sluice
