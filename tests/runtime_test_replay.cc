// What a decoder records of its active sets, and that a replay of it through a cache of the plan's
// size foretells the decoder's hits and misses.
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/miss_replay.h"
#include "tests/decoder_harness.h"

namespace sluice {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr size_t kTokens = 40;

// Wide enough that a budget with room for chunks of 8 tokens has none for all bundles.
ToyModel WideToy() {
  ToyModel toy;
  toy.n_layers = 4;
  toy.d_ff = 1280;
  return toy;
}

ActivationTrace TraceFor(const SluiceFile& file) {
  return {file.model_id(), file.config().n_layers, file.config().d_ff};
}

// Passes `tokens` neuron by neuron, the first `prompt` of them in one call.
ActivationTrace Record(const SluiceFile& file, Way way, std::span<const int32_t> tokens,
                       size_t prompt) {
  ActivationTrace trace = TraceFor(file);
  way.trace = &trace;
  Must(RunTokens(file, way, tokens, prompt));
  return trace;
}

// Bytes of the sets, whatever else.
std::vector<std::byte> Bytes(const ActivationTrace& trace) { return Must(trace.Serialize()); }

// Expects a layer's reads to be as the decoder would submit them.
void ExpectGoodBatch(const SluiceFile& file, const MissReplay& replay, uint32_t layer,
                     std::span<const IoRequest> batch) {
  const BundleLayout& bundles = file.bundles();
  const uint64_t begin = bundles.layer_offsets[layer], end = begin + bundles.layer_bytes();
  uint64_t next = begin;
  for (const IoRequest& r : batch) {
    EXPECT_GE(r.offset, next);
    EXPECT_EQ(r.length, bundles.stride);
    next = r.offset + r.length;
    EXPECT_LE(next, end);
    EXPECT_EQ(r.dst, replay.arena().data() + size_t{r.tag} * bundles.stride);
    EXPECT_LE(size_t{r.tag + 1} * bundles.stride, replay.arena().size());
  }
}

class ReplayTest : public testing::Test {
 protected:
  ReplayTest() {
    ToyModel qwen;
    qwen.architecture = "qwen2";
    qwen.n_layers = 2;
    qwen.d_ff = 224;
    qwen.gate_lean = 1.2f;  // more of them active than the least cache holds
    models_.push_back(std::make_unique<PackedModel>(ToyModel(), WeightType::kF16));
    models_.push_back(std::make_unique<PackedModel>(ToyModel(), WeightType::kQ8, 4096));
    models_.push_back(std::make_unique<PackedModel>(qwen, WeightType::kQ4));
    tokens_ = RandomTokens(kTokens, 300);
  }
  const SluiceFile& first() const { return models_.front()->file(); }

  std::vector<std::unique_ptr<PackedModel>> models_;
  std::vector<int32_t> tokens_;
};

TEST_F(ReplayTest, HitsAndMissesAreThoseOfTheDecoderTokenByToken) {
  std::set<uint32_t> sizes;
  for (const auto& model : models_) {
    const SluiceFile& file = model->file();
    Way way;
    way.threads = 2;
    for (const uint64_t budget : Budgets(file, way)) {
      way.budget = budget;
      const MemoryPlan plan = Must(PlanMemory(file, way.request()));
      if (plan.holds_all_bundles) continue;  // the first pass streams them all
      ActivationTrace trace = TraceFor(file);
      way.trace = &trace;
      const auto decoder = Must(OpenDecoder(file, way));
      std::vector<DecoderStats> stats;
      for (const int32_t token : tokens_) {
        MustBeOk(decoder->Forward({&token, 1}));
        stats.push_back(decoder->stats());
      }
      ASSERT_EQ(trace.n_tokens(), kTokens);
      EXPECT_EQ(trace.n_active(), stats.back().active_neurons);
      const auto replay = Must(MissReplay::Create(file, trace, plan.n_slots));
      for (uint32_t t = 0; t < kTokens; ++t) {
        for (uint32_t layer = 0; layer < trace.n_layers(); ++layer) replay->Next(t, layer);
        ASSERT_EQ(replay->hits(), stats[t].hits) << Describe(way) << ", token " << t;
        ASSERT_EQ(replay->misses(), stats[t].misses) << Describe(way) << ", token " << t;
      }
      EXPECT_GT(replay->misses(), 0u);
      sizes.insert(plan.n_slots);
    }
  }
  EXPECT_GT(sizes.size(), 4u);
}

TEST_F(ReplayTest, BatchesAreReadsOfTheirLayerInRisingOrderIntoTheArena) {
  for (const auto& model : models_) {
    const SluiceFile& file = model->file();
    Way way;
    way.budget = Budgets(file, way)[1];
    const ActivationTrace trace = Record(file, way, tokens_, 1);
    for (const uint32_t n_slots : {1u, 7u, 100u, 1000u}) {
      const auto replay = Must(MissReplay::Create(file, trace, n_slots));
      uint64_t n_reads = 0;
      for (uint32_t t = 0; t < trace.n_tokens(); ++t) {
        for (uint32_t layer = 0; layer < trace.n_layers(); ++layer) {
          const auto batch = replay->Next(t, layer);
          ExpectGoodBatch(file, *replay, layer, batch);
          n_reads += batch.size();
        }
      }
      EXPECT_EQ(n_reads, replay->misses());
      EXPECT_EQ(replay->hits() + replay->misses(), trace.n_active());
    }
  }
}

TEST_F(ReplayTest, ACacheOfEveryBundleMissesEachOnceAndReadsIntoSlotsOfTheirOwn) {
  Way way;
  way.budget = Budgets(first(), way)[1];
  const ActivationTrace trace = Record(first(), way, tokens_, 1);
  const auto replay =
      Must(MissReplay::Create(first(), trace, trace.n_layers() * trace.n_neurons()));
  std::set<uint64_t> offsets;
  std::set<const std::byte*> slots;
  for (uint32_t t = 0; t < trace.n_tokens(); ++t) {
    for (uint32_t layer = 0; layer < trace.n_layers(); ++layer) {
      for (const IoRequest& r : replay->Next(t, layer)) {
        EXPECT_TRUE(offsets.insert(r.offset).second);
        EXPECT_TRUE(slots.insert(r.dst).second);
      }
    }
  }
  EXPECT_EQ(offsets.size(), replay->misses());
}

TEST_F(ReplayTest, ATraceOfAnotherModelIsRefusedWithBothIds) {
  const SluiceFile& file = first();
  const SluiceFile& other = models_.back()->file();
  const auto refuse = [&](const ActivationTrace& trace) {
    const absl::Status status = MissReplay::Create(file, trace, 16).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(file.path()), HasSubstr(absl::StrFormat("%016x", file.model_id())),
                      HasSubstr(absl::StrFormat("%016x", trace.model_id()))));
  };
  const ModelConfig& config = file.config();
  refuse(TraceFor(other));
  refuse({other.model_id(), config.n_layers, config.d_ff});
  refuse({file.model_id(), config.n_layers + 1, config.d_ff});
  refuse({file.model_id(), config.n_layers, config.d_ff - 1});
}

TEST_F(ReplayTest, TokensThatPassTogetherAreRecordedAsIfTheyCameAlone) {
  const PackedModel model(WideToy(), WeightType::kF16);
  const SluiceFile& file = model.file();
  std::vector<std::byte> alone;
  for (const uint32_t chunk : {1u, 3u, 7u}) {
    Way way;
    way.chunk = chunk;
    way.budget = LeastBudgetFor(file, way, chunk);
    const std::vector<std::byte> bytes = Bytes(Record(file, way, tokens_, 20));
    if (alone.empty()) alone = bytes;
    EXPECT_TRUE(bytes == alone) << "chunks of " << chunk;
  }
}

TEST_F(ReplayTest, MappedWeightsRecordTheSameAndStreamedTokensNothing) {
  Way way;
  way.budget = Budgets(first(), way)[1];
  const std::vector<std::byte> expected = Bytes(Record(first(), way, tokens_, 1));
  Way mapped;
  mapped.mapped = true;
  EXPECT_EQ(Bytes(Record(first(), mapped, tokens_, 1)), expected);
  way.mode = DecodeMode::kDense;
  EXPECT_EQ(Record(first(), way, tokens_, 1).n_tokens(), 0u);
  way.mode = DecodeMode::kExact;
  const PackedModel model(WideToy(), WeightType::kF16);
  way.budget = LeastBudgetFor(model.file(), way, 8);
  constexpr uint32_t kPrompt = 32;
  EXPECT_EQ(Record(model.file(), way, tokens_, kPrompt).n_tokens(), kTokens - kPrompt);
}

TEST_F(ReplayTest, OfAPassThatFailsNothingStays) {
  const SluiceFile& file = first();
  FaultConfig faults;
  faults.eio_begin = file.bundles().BundleOffset(1, 0);
  faults.eio_end = faults.eio_begin + file.bundles().layer_bytes();
  ActivationTrace trace = TraceFor(file);
  Way way;
  way.budget = Budgets(file, way)[1];
  way.faults = &faults;
  way.trace = &trace;
  const auto decoder = Must(OpenDecoder(file, way));
  for (const size_t n : {1u, 3u}) {
    EXPECT_TRUE(absl::IsUnavailable(decoder->Forward(std::span(tokens_).first(n))));
  }
  // The next set is that of the first layer of a token.
  for (uint32_t layer = 0; layer < trace.n_layers(); ++layer)
    trace.Append(std::vector<uint32_t>{layer});
  ASSERT_EQ(trace.n_tokens(), 1u);
  std::vector<uint32_t> active;
  for (uint32_t layer = 0; layer < trace.n_layers(); ++layer) {
    trace.Get(0, layer, &active);
    EXPECT_THAT(active, ElementsAre(layer));
  }
}

}  // namespace
}  // namespace sluice
