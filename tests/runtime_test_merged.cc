// Reads that are done together give the tokens and the bits of reads one by one, in fewer
// operations, whatever the engine and whatever the device does.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/decoder_harness.h"
#include "tests/io_test_files.h"

namespace sluice {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr size_t kPrompt = 11;
constexpr size_t kDecoded = 5;

// A queue of 32 pays off here, so that many merged runs are on their way.
DeviceProfile DeepQueue() {
  DeviceProfile profile = SlowOperations();
  CostFit deep = profile.fits().front();
  deep.depth = 32;
  deep.operation_ns /= 2;
  deep.ns_per_byte /= 2;
  profile.AddFit(deep);
  return profile;
}

class MergedReadsTest : public testing::Test {
 protected:
  MergedReadsTest()
      : model_(WideToy(), WeightType::kF16), tokens_(RandomTokens(kPrompt + kDecoded, 300)) {
    plain_ = Must(RunTokens(model_.file(), Way(), tokens_, kPrompt));
  }

  // A little cache, some matrices streamed. With chunks of 3 everything goes neuron by neuron, with
  // 64 most of the prompt is streamed.
  Way SmallWay(EngineKind engine, uint32_t chunk) {
    Way way;
    way.engine = engine;
    way.chunk = chunk;
    way.threads = 2;
    way.budget = LeastBudgetFor(model_.file(), way, std::min(chunk, 8u));
    return way;
  }

  // Calls f(way) for each way of reading, with merged reads.
  template <typename F>
  void ForEachWay(const std::vector<uint32_t>& chunks, F f) {
    for (const EngineKind engine : Engines()) {
      for (const DirectMode direct : {DirectMode::kAuto, DirectMode::kOff}) {
        for (const uint32_t chunk : chunks) {
          Way way = SmallWay(engine, chunk);
          way.direct = direct;
          way.profile = profile_;
          f(way);
        }
      }
    }
  }

  // What is streamed is never merged: faults in that are the business of other tests.
  void ExpectSameTokens(const FaultConfig& faults) {
    ForEachWay({3}, [&](Way way) {
      way.faults = &faults;
      const auto logits = RunTokens(model_.file(), way, tokens_, kPrompt);
      ASSERT_TRUE(logits.ok()) << Describe(way) << ": " << logits.status();
      EXPECT_TRUE(SameBits(*logits, plain_)) << Describe(way);
    });
  }

  PackedModel model_;
  std::vector<int32_t> tokens_;
  Logits plain_;
  std::shared_ptr<const DeviceProfile> profile_ =
      std::make_shared<const DeviceProfile>(DeepQueue());
};

TEST_F(MergedReadsTest, TheBitsAreThoseOfSingleReadsInFewerOperations) {
  ForEachWay({3, 64}, [&](const Way& merged) {
    Way single = merged;
    single.profile = nullptr;
    DecoderStats stats[2];
    for (const Way* way : {&std::as_const(single), &merged}) {
      const auto decoder = Must(OpenDecoder(model_.file(), *way));
      EXPECT_TRUE(SameBits(Must(RunTokens(*decoder, tokens_, kPrompt)), plain_)) << Describe(*way);
      stats[way == &merged] = decoder->stats();
    }
    EXPECT_EQ(stats[1].misses, stats[0].misses) << Describe(merged);
    EXPECT_EQ(stats[1].hits, stats[0].hits) << Describe(merged);
    EXPECT_LT(stats[1].flash_operations, stats[0].flash_operations) << Describe(merged);
    EXPECT_GE(stats[1].flash_bytes, stats[0].flash_bytes) << Describe(merged);
    EXPECT_EQ(stats[1].io_retries, 0u) << Describe(merged);
  });
}

TEST_F(MergedReadsTest, GreedyTextIsTheSameAtEveryBudget) {
  const std::vector<int32_t> prompt(tokens_.begin(), tokens_.begin() + kPrompt);
  Way way;
  const auto decoder = Must(OpenDecoder(model_.file(), way));
  const std::vector<int32_t> expected = Must(RunGreedy(*decoder, prompt, 20));
  for (const EngineKind engine : Engines()) {
    way.engine = engine;
    way.profile = profile_;
    for (const uint64_t budget : Budgets(model_.file(), way)) {
      way.budget = budget;
      const auto other = Must(OpenDecoder(model_.file(), way));
      EXPECT_EQ(Must(RunGreedy(*other, prompt, 20)), expected) << Describe(way);
    }
  }
}

TEST_F(MergedReadsTest, TheNotesSayWhatReadsAreMergedBy) {
  Way way = SmallWay(EngineKind::kPread, 64);
  const auto notes = [&] {
    std::string all;
    for (const std::string& n : Must(OpenDecoder(model_.file(), way))->Notes()) all += n + "\n";
    return all;
  };
  EXPECT_THAT(notes(), HasSubstr("not merged, no device profile"));
  way.profile = profile_;
  EXPECT_THAT(notes(), HasSubstr("merged by the costs of slow operations"));
}

TEST_F(MergedReadsTest, ShortAndInterruptedReadsAreCompleted) {
  FaultConfig faults;
  faults.short_read = 0.6;
  ExpectSameTokens(faults);
  faults = {};
  faults.eintr = 0.3;
  faults.eagain = 0.1;
  ExpectSameTokens(faults);
}

TEST_F(MergedReadsTest, AnOperationThatFailsIsDoneReadByRead) {
  FaultConfig faults;
  faults.eio_once = 1.0;
  ExpectSameTokens(faults);
  faults = {};
  faults.einval = 0.05;
  ExpectSameTokens(faults);
}

TEST_F(MergedReadsTest, ReadsThatClaimSuccessAndWriteNothingAreFoundAndRepaired) {
  for (const double share : {0.2, 1.0}) {
    FaultConfig faults;
    faults.unwritten = share;
    ExpectSameTokens(faults);
  }
}

TEST_F(MergedReadsTest, AllFaultsTogetherGiveTheSameTokens) {
  for (uint64_t seed = 1; seed <= 2; ++seed) ExpectSameTokens(AllFaults(seed));
}

// Where an operation spans bytes that nobody asked for, their being unreadable concerns nobody.
TEST_F(MergedReadsTest, ABadBlockInAGapDoesNoHarm) {
  ActivationTrace trace(model_.file().model_id(), model_.file().config().n_layers,
                        model_.file().config().d_ff);
  Way way = SmallWay(EngineKind::kPread, 3);
  way.trace = &trace;
  Must(RunTokens(model_.file(), way, tokens_, kPrompt));
  const uint32_t n_neurons = trace.n_neurons();
  std::vector<uint32_t> uses(n_neurons), active;
  for (uint32_t t = 0; t < trace.n_tokens(); ++t) {
    trace.Get(t, 1, &active);
    for (const uint32_t position : active) ++uses[position];
  }
  uint32_t unused = 1;  // with neighbours on both sides
  while (unused < n_neurons && (uses[unused] != 0 || uses[unused - 1] == 0)) ++unused;
  ASSERT_LT(unused, n_neurons - 1);
  const BundleLayout& bundles = model_.file().bundles();
  FaultConfig faults;
  faults.eio_begin = bundles.BundleOffset(1, unused);
  faults.eio_end = faults.eio_begin + bundles.stride;
  for (const EngineKind engine : Engines()) {
    way = SmallWay(engine, 3);
    way.profile = profile_;
    way.faults = &faults;
    const auto decoder = Must(OpenDecoder(model_.file(), way));
    EXPECT_TRUE(SameBits(Must(RunTokens(*decoder, tokens_, kPrompt)), plain_)) << Describe(way);
    EXPECT_GT(decoder->stats().io_retries, 0u) << "no operation met the bad block";
  }
}

TEST_F(MergedReadsTest, AnErrorThatStaysIsUnavailableAndNamesTheFile) {
  const BundleLayout& bundles = model_.file().bundles();
  FaultConfig faults;
  faults.eio_begin = bundles.BundleOffset(1, 0);
  faults.eio_end = faults.eio_begin + bundles.layer_bytes();
  ForEachWay({3, 64}, [&](Way way) {
    way.faults = &faults;
    const absl::Status status = RunTokens(model_.file(), way, tokens_, kPrompt).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(model_.path()), HasSubstr("at offset ")));
  });
}

}  // namespace
}  // namespace sluice
