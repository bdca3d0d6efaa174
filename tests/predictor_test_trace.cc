// Activation traces: what is recorded comes back; what is damaged is refused by name, at no cost.
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "predictor/activation_trace.h"
#include "tests/cost_bound.h"
#include "tests/test_paths.h"
#include "tests/trace_bytes.h"

namespace sluice {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Set = std::vector<uint32_t>;

Set FullSet(uint32_t n_neurons) {
  Set set(n_neurons);
  std::iota(set.begin(), set.end(), 0u);
  return set;
}

Set RandomSet(std::mt19937_64& random, uint32_t n_neurons) {
  const uint64_t one_in = 1 + random() % 16;
  Set set;
  for (uint32_t n = 0; n < n_neurons; ++n) {
    if (random() % one_in == 0) set.push_back(n);
  }
  return set;
}

Set Get(const ActivationTrace& trace, uint32_t token, uint32_t layer) {
  Set set = {99};  // is replaced
  trace.Get(token, layer, &set);
  return set;
}

std::vector<std::byte> Serialized(const ActivationTrace& trace) {
  auto bytes = trace.Serialize();
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.ok() ? *std::move(bytes) : std::vector<std::byte>();
}

// Two tokens of three layers of ten neurons.
ActivationTrace SmallTrace() {
  ActivationTrace trace(0x1234, 3, 10);
  for (const Set& set : {Set{0, 9}, Set{}, FullSet(10), Set{3}, Set{1, 2, 8}, Set{}}) {
    trace.Append(set);
  }
  return trace;
}

TEST(ActivationTraceTest, WhatIsAppendedComesBack) {
  constexpr uint32_t kTokens = 20, kLayers = 4, kNeurons = 40'000;  // positions of three bytes
  std::mt19937_64 random(5);
  ActivationTrace trace(~uint64_t{7}, kLayers, kNeurons);
  std::vector<Set> sets;
  uint64_t n_active = 0;
  for (uint32_t i = 0; i < kTokens * kLayers; ++i) {
    sets.push_back(RandomSet(random, kNeurons));
    n_active += sets.back().size();
    trace.Append(sets.back());
  }
  const auto parsed = ActivationTrace::Parse(Serialized(trace), "trace");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  for (const ActivationTrace* t : {&std::as_const(trace), &*parsed}) {
    EXPECT_EQ(t->model_id(), ~uint64_t{7});
    EXPECT_EQ(t->n_layers(), kLayers);
    EXPECT_EQ(t->n_neurons(), kNeurons);
    EXPECT_EQ(t->n_tokens(), kTokens);
    EXPECT_EQ(t->n_active(), n_active);
    for (uint32_t i = 0; i < sets.size(); ++i) {
      EXPECT_EQ(Get(*t, i / kLayers, i % kLayers), sets[i]) << i;
    }
  }
}

TEST(ActivationTraceTest, EmptyAndFullSetsAreSets) {
  const auto trace = ActivationTrace::Parse(Serialized(SmallTrace()), "trace");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->n_tokens(), 2u);
  EXPECT_THAT(Get(*trace, 0, 0), ElementsAre(0, 9));
  EXPECT_THAT(Get(*trace, 0, 1), IsEmpty());
  EXPECT_EQ(Get(*trace, 0, 2), FullSet(10));
  EXPECT_THAT(Get(*trace, 1, 2), IsEmpty());
}

TEST(ActivationTraceTest, ATraceWithoutTokensIsATrace) {
  ActivationTrace trace(1, 2, 3);
  for (int i = 0; i < 2; ++i) {
    const auto parsed = ActivationTrace::Parse(Serialized(trace), "trace");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->n_tokens(), 0u);
    EXPECT_EQ(parsed->n_active(), 0u);
    trace.Append(Set{1});  // half a token
  }
}

TEST(ActivationTraceTest, ATokenThatIsNotWholeIsDropped) {
  ActivationTrace trace = SmallTrace();
  trace.Append(Set{5, 6});
  EXPECT_EQ(trace.n_tokens(), 2u);
  const auto parsed = ActivationTrace::Parse(Serialized(trace), "trace");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->n_tokens(), 2u);
  EXPECT_EQ(parsed->n_active(), SmallTrace().n_active());
  EXPECT_EQ(Serialized(trace), Serialized(SmallTrace()));
  // It goes on where it was.
  trace.Append(Set{});
  trace.Append(Set{7});
  EXPECT_EQ(trace.n_tokens(), 3u);
  EXPECT_THAT(Get(trace, 2, 0), ElementsAre(5, 6));
  EXPECT_THAT(Get(trace, 2, 2), ElementsAre(7));
}

// To a compressor such sets are next to nothing; a reader that bounds what a small file may hold
// must take them all the same.
TEST(ActivationTraceTest, LongTracesThatShrinkToNothingComeBack) {
  constexpr uint32_t kNeurons = 16'384, kTokens = 600;
  const Set full = FullSet(kNeurons);
  for (const Set& set : {full, Set{}}) {
    const uint32_t n_tokens = set.empty() ? 5'000'000 : kTokens;
    ActivationTrace trace(1, 1, kNeurons);
    for (uint32_t t = 0; t < n_tokens; ++t) trace.Append(set);
    const auto parsed = ActivationTrace::Parse(Serialized(trace), "trace");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->n_tokens(), n_tokens);
    EXPECT_EQ(Get(*parsed, n_tokens - 1, 0), set);
  }
}

class ActivationTraceFileTest : public testing::Test {
 protected:
  // Expects an error whose message names the source and holds `what`, cheaply.
  static void ExpectRefused(std::span<const std::byte> bytes, absl::StatusCode code,
                            const std::string& what) {
    const CostBound bound;
    const absl::Status status = ActivationTrace::Parse(bytes, "some.trace").status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("some.trace: "), HasSubstr(what)));
  }
  static void ExpectDataLoss(const TraceBytes& trace, const std::string& what) {
    ExpectRefused(trace.Bytes(), absl::StatusCode::kDataLoss, what);
  }

  // A trace that a field may be changed in: 2 tokens of 1 layer of 10 neurons.
  static TraceBytes Good() {
    TraceBytes trace;
    trace.n_layers = 1;
    trace.n_neurons = 10;
    trace.n_tokens = 2;
    trace.sets = {2, 0, 9, 1, 4};
    return trace;
  }

  TempDir dir_;
  const std::string path_ = dir_.File("recorded.trace");
};

TEST_F(ActivationTraceFileTest, SavesLoadsAndReplaces) {
  std::ofstream(path_) << "something else";
  ASSERT_TRUE(SmallTrace().Save(path_).ok());
  const auto loaded = ActivationTrace::Load(path_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(Serialized(*loaded), Serialized(SmallTrace()));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_.path()), {}), 1);
}

TEST_F(ActivationTraceFileTest, WhatIsNoFileOrNoTraceIsRefusedByName) {
  const auto load = [&](const std::string& path) {
    const absl::Status status = ActivationTrace::Load(path).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
    return std::string(status.message());
  };
  EXPECT_THAT(load(dir_.File("missing")), HasSubstr("cannot be opened"));
  EXPECT_THAT(load(dir_.path()), HasSubstr("directory"));
  const std::string fifo = dir_.File("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(load(fifo), HasSubstr("cannot be opened"));
  std::ofstream(path_).close();
  EXPECT_THAT(load(path_), HasSubstr("not an activation trace"));
  // A model given by mistake: not read to its end.
  std::ofstream(path_) << "GGUF";
  std::filesystem::resize_file(path_, uint64_t{1} << 29);
  const CostBound bound;
  EXPECT_THAT(load(path_), HasSubstr("not an activation trace"));
  std::ofstream(path_) << "SLUICEAT";
  std::filesystem::resize_file(path_, uint64_t{1} << 40);
  EXPECT_THAT(load(path_), HasSubstr("too large"));
}

TEST_F(ActivationTraceFileTest, SaveSaysWhatCannotBeWritten) {
  for (const std::string& path : {dir_.path(), dir_.File("no/such/folder")}) {
    const absl::Status status = SmallTrace().Save(path);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  }
}

TEST_F(ActivationTraceFileTest, TheBuilderOfBadFilesBuildsAGoodOne) {
  const auto trace = ActivationTrace::Parse(Good().Bytes(), "trace");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_THAT(Get(*trace, 0, 0), ElementsAre(0, 9));
  EXPECT_THAT(Get(*trace, 1, 0), ElementsAre(4));
}

TEST_F(ActivationTraceFileTest, AFileCutAnywhereIsRefused) {
  const std::vector<std::byte> whole = Serialized(SmallTrace());
  for (size_t n = 0; n < whole.size(); ++n) {
    const auto code = n < 8 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kDataLoss;
    ExpectRefused(std::span(whole).first(n), code, "activation trace");
  }
}

// The header has no checksum of its own: another id, or more neurons, make it another model's.
TEST_F(ActivationTraceFileTest, ATurnedBitIsRefusedOrLeavesTheSetsAsTheyWere) {
  const ActivationTrace good = SmallTrace();
  const std::vector<std::byte> whole = Serialized(good);
  size_t n_accepted = 0;
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::vector<std::byte> bytes = whole;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    const CostBound bound;
    const auto trace = ActivationTrace::Parse(bytes, "some.trace");
    if (!trace.ok()) {
      EXPECT_THAT(std::string(trace.status().message()), HasSubstr("some.trace: "));
      continue;
    }
    ++n_accepted;
    ASSERT_EQ(trace->n_tokens(), good.n_tokens()) << "bit " << bit;
    ASSERT_EQ(trace->n_layers(), good.n_layers()) << "bit " << bit;
    for (uint32_t set = 0; set < 6; ++set) {
      EXPECT_EQ(Get(*trace, set / 3, set % 3), Get(good, set / 3, set % 3)) << "bit " << bit;
    }
  }
  EXPECT_LT(n_accepted, 100u);
}

TEST_F(ActivationTraceFileTest, FieldsOfTheHeaderAreNamed) {
  const auto with = [](const std::function<void(TraceBytes&)>& change) {
    TraceBytes trace = Good();
    change(trace);
    return trace;
  };
  ExpectRefused(with([](TraceBytes& t) { t.magic = "SLUICEAU"; }).Bytes(),
                absl::StatusCode::kInvalidArgument, "not an activation trace");
  ExpectDataLoss(with([](TraceBytes& t) { t.version = 0; }), "version is 0");
  ExpectDataLoss(with([](TraceBytes& t) { t.version = 2; }), "version is 2");
  ExpectDataLoss(with([](TraceBytes& t) { t.n_layers = 0; }), "0 layers");
  ExpectDataLoss(with([](TraceBytes& t) { t.n_layers = 4097; }), "4097 layers");
  ExpectDataLoss(with([](TraceBytes& t) { t.n_layers = UINT32_MAX; }), "4294967295 layers");
  ExpectDataLoss(with([](TraceBytes& t) { t.n_neurons = 0; }), "0 neurons");
  ExpectDataLoss(with([](TraceBytes& t) { t.n_neurons = UINT32_MAX; }), "4294967295 neurons");
  for (const uint32_t n : {6u, 1u << 31, UINT32_MAX}) {
    ExpectDataLoss(with([&](TraceBytes& t) { t.n_tokens = n; }), std::to_string(n) + " tokens");
  }
  ExpectDataLoss(with([](TraceBytes& t) { t.n_tokens = UINT32_MAX, t.n_layers = 4096; }),
                 "4294967295 tokens");
  for (const uint64_t n :
       {uint64_t{0}, uint64_t{4}, uint64_t{6}, uint64_t{1} << 62, UINT64_MAX, UINT64_MAX - 1}) {
    ExpectDataLoss(with([&](TraceBytes& t) { t.n_bytes = n; }), "size does not match");
  }
  ExpectDataLoss(with([](TraceBytes& t) { t.checksum = 7; }), "checksum");
}

TEST_F(ActivationTraceFileTest, SetsThatNoModelHasAreRefusedThoughTheChecksumIsRight) {
  const auto with = [](std::vector<uint8_t> sets, uint32_t n_tokens = 1) {
    TraceBytes trace = Good();
    trace.sets = std::move(sets);
    trace.n_tokens = n_tokens;
    return trace;
  };
  ExpectDataLoss(with({1, 10}), "token 0, layer 0");                       // beyond the layer
  ExpectDataLoss(with({2, 5, 5}), "token 0, layer 0");                     // ends beyond it
  ExpectDataLoss(with({0, 2, 5, 0}, 2), "token 1, layer 0");               // not rising
  ExpectDataLoss(with({11, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}), "token 0");  // more than there are
  ExpectDataLoss(with({3, 1, 1}), "token 0, layer 0");                     // too few
  ExpectDataLoss(with({1, 0x80}), "token 0, layer 0");                 // a number without an end
  ExpectDataLoss(with({0xff, 0xff, 0xff, 0xff, 0x0f}), "token 0");     // 2^32 - 1 of them
  ExpectDataLoss(with({1, 0xff, 0xff, 0xff, 0xff, 0x1f}), "token 0");  // more than 32 bits
  ExpectDataLoss(with({1, 0xff, 0xff, 0xff, 0xff, 0xff, 1}), "token 0");
  ExpectDataLoss(with({2, 1, 0xff, 0xff, 0xff, 0xff, 0x0f}), "token 0");  // would turn over
  ExpectDataLoss(with({0, 0}), "bytes are left");
  ExpectDataLoss(with({}, 1), "1 tokens do not fit");
}

TEST_F(ActivationTraceFileTest, AFrameThatIsNoneOrOfAnotherSizeIsRefused) {
  TraceBytes trace = Good();
  trace.frame = std::vector<std::byte>(20, std::byte{0x5a});
  ExpectDataLoss(trace, "size does not match");
  trace.frame = std::vector<std::byte>();
  ExpectDataLoss(trace, "size does not match");
  // The head of a frame, then rubbish; two frames; a frame and rubbish.
  const std::vector<std::byte> good = Good().Frame();
  trace.frame = good;
  trace.frame->back() ^= std::byte{0xff};
  trace.frame->push_back(std::byte{1});
  ExpectDataLoss(trace, "decompressed");
  trace.frame = good;
  trace.frame->insert(trace.frame->end(), good.begin(), good.end());
  ExpectDataLoss(trace, "decompressed");
}

TEST_F(ActivationTraceFileTest, WhatClaimsToHoldManyTimesItsSizeIsRefusedBeforeItIsUnpacked) {
  TraceBytes trace = Good();
  trace.n_tokens = 64 << 20;
  trace.sets.assign(size_t{trace.n_tokens}, 0);
  const std::vector<std::byte> bytes = trace.Bytes();
  ASSERT_LT(bytes.size(), 64u << 10);
  trace.sets.clear();
  trace.sets.shrink_to_fit();
  ExpectRefused(bytes, absl::StatusCode::kDataLoss, "size does not match");
}

TEST_F(ActivationTraceFileTest, WhatASmallFileMayHoldTakesLittleMemory) {
  TraceBytes trace = Good();
  trace.n_tokens = 4 << 20;
  trace.sets.assign(size_t{trace.n_tokens}, 0);
  const std::vector<std::byte> bytes = trace.Bytes();
  const CostBound bound;
  const auto parsed = ActivationTrace::Parse(bytes, "some.trace");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->n_tokens(), trace.n_tokens);
}

}  // namespace
}  // namespace sluice
