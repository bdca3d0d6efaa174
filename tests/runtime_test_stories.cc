// A trained model gives the published text, whatever way its weights take.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <tuple>

#include "runtime/tokenizer/text_stream.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/decoder_harness.h"

namespace sluice {
namespace {

constexpr size_t kPublishedTokens = 200;

class StoriesTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto gguf = SharedPath("models/stories260K/stories260K.gguf");
    const auto text = SharedPath("models/stories260K/expected_t0_n200.txt");
    if (!gguf || !text) GTEST_SKIP() << "the shared models are not here";
    gguf_ = *gguf;
    std::ifstream in(*text, std::ios::binary);
    expected_.assign(std::istreambuf_iterator<char>(in), {});
    // The file may end with a line feed of its own.
    while (!expected_.empty() && expected_.back() == '\n') expected_.pop_back();
  }

  std::string TextOf(const PackedModel& model, std::span<const int32_t> tokens) {
    const auto tokenizer = Must(Tokenizer::Create(Must(model.file().LoadTokenizer())));
    TextStream stream(*tokenizer, /*begins_text=*/true);
    std::string text;
    for (const int32_t t : tokens) stream.Append(t, text);
    stream.Flush(text);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }

  std::vector<int32_t> Greedy(const PackedModel& model, const Way& way) {
    return Must(RunGreedy(*Must(OpenDecoder(model.file(), way)), {1}, kPublishedTokens));
  }

  std::string gguf_, expected_;
};

Way PublishedWay() {
  Way way;
  way.context = 256;
  return way;
}

TEST_F(StoriesTest, GreedyTextIsThePublishedOneForFloatsAndHalfFloats) {
  for (const WeightType type : {WeightType::kF32, WeightType::kF16}) {
    const PackedModel model(gguf_, type);
    EXPECT_EQ(TextOf(model, Greedy(model, PublishedWay())), expected_) << WeightTypeName(type);
  }
}

#ifdef SLUICE_SANITIZED
constexpr int kThreads[] = {2};  // the whole product takes minutes there
#else
constexpr int kThreads[] = {1, 2, 4};
#endif

using StoriesWay = std::tuple<WeightType, DecodeMode, EngineKind>;
class StoriesWayTest : public StoriesTest, public testing::WithParamInterface<StoriesWay> {};

// Kernel tables take turns over the budgets.
TEST_P(StoriesWayTest, TokensAreTheSameForEveryBudgetAndThreadCount) {
  Way way = PublishedWay();
  WeightType type;
  std::tie(type, way.mode, way.engine) = GetParam();
  const auto engines = Engines();
  if (std::find(engines.begin(), engines.end(), way.engine) == engines.end()) {
    GTEST_SKIP() << "this kernel has no io_uring";
  }
  const PackedModel model(gguf_, type);
  const auto kernels = AvailableKernels();
  size_t run = 0;
  for (const int threads : kThreads) {
    way.threads = threads;
    for (const uint64_t budget : Budgets(model.file(), way)) {
      way.budget = budget;
      way.kernels = kernels[run++ % kernels.size()];
      EXPECT_EQ(TextOf(model, Greedy(model, way)), expected_) << Describe(way);
    }
  }
}

std::string NameOfWay(const testing::TestParamInfo<StoriesWay>& info) {
  const auto [type, mode, engine] = info.param;
  return std::string(WeightTypeName(type)) + (mode == DecodeMode::kDense ? "_dense" : "_exact") +
         (engine == EngineKind::kUring ? "_uring" : "_pread");
}

INSTANTIATE_TEST_SUITE_P(Ways, StoriesWayTest,
                         testing::Combine(testing::Values(WeightType::kF32, WeightType::kF16),
                                          testing::Values(DecodeMode::kDense, DecodeMode::kExact),
                                          testing::Values(EngineKind::kUring, EngineKind::kPread)),
                         NameOfWay);

TEST_F(StoriesTest, ThePromptMayPassInChunksOfAnySize) {
  const PackedModel model(gguf_, WeightType::kF16);
  Way way = PublishedWay();
  std::vector<int32_t> prompt = Greedy(model, way);
  prompt.resize(100);
  std::map<uint32_t, std::vector<int32_t>> by_chunk;
  for (const uint32_t chunk : {1u, 3u, 64u}) {
    way.chunk = chunk;
    by_chunk[chunk] = Must(RunGreedy(*Must(OpenDecoder(model.file(), way)), prompt, 60));
  }
  EXPECT_EQ(by_chunk[1], by_chunk[64]);
  EXPECT_EQ(by_chunk[3], by_chunk[64]);
}

}  // namespace
}  // namespace sluice
