// Every fault of the fault engine: the same bytes, or the error that is defined for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "io/fault_engine.h"
#include "io/io_thread.h"
#include "tests/io_test_files.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr size_t kSize = 1 << 20;
constexpr uint32_t kPiece = 8192;

struct Outcome {
  std::map<uint64_t, int> errors;  // by offset, of pieces that failed
  std::vector<std::byte> bytes;
  std::string mode_change_note;
  IoStats stats;
};

// An engine, and whether the reads are merged.
struct Way {
  std::string engine;
  bool merged = false;
};

// Of the pieces, those that a merged run does not ask for: it reads them along.
bool IsGap(const Way& way, uint32_t piece) { return way.merged && piece % 4 == 2; }

// Reads the file in pieces through an I/O thread whose engine has the faults of `spec`. What was
// not asked for must be left alone; the outcome has it as the file does.
Outcome ReadWithFaults(const RandomFile& random, const Way& way, const std::string& spec) {
  Outcome outcome;
  const auto config = ParseFaultConfig(spec);
  EXPECT_TRUE(config.ok()) << config.status();
  const StorageFile& file = random.file();
  auto engine = std::make_unique<FaultEngine>(MakeEngine(way.engine, file, 16), *config,
                                              file.direct() ? file.fd() : -1);
  // More runs than fit the queue, and of those some must wait for room.
  constexpr uint32_t kBounce = 256 << 10, kRun = 32 << 10;
  const AlignedBuffer bounce = AlignedBuffer::Allocate(kBounce).value();
  std::fill_n(bounce.data(), bounce.size(), std::byte{0xee});
  IoThreadOptions options;
  if (way.merged) {
    const ReadMerger::Limits limits = {.depth = 16, .bounce_bytes = 4 * kRun};
    options.merger = std::make_unique<ReadMerger>(SlowOperations(), kSize, limits, 0);
    options.bounce = bounce.span();
  }
  auto thread = IoThread::Start(file, std::move(engine), std::move(options));
  EXPECT_TRUE(thread.ok()) << thread.status();
  const AlignedBuffer memory = AlignedBuffer::Allocate(kSize).value();
  std::fill_n(memory.data(), memory.size(), std::byte{0xee});
  std::vector<IoRequest> requests;
  for (uint32_t at = 0; at < kSize; at += kPiece) {
    if (IsGap(way, at / kPiece)) continue;
    requests.push_back(
        {.offset = at, .length = kPiece, .dst = memory.data() + at, .tag = at / kPiece});
  }
  EXPECT_TRUE((*thread)->Submit(requests, IoPriority::kDemand));
  size_t taken = 0;
  while (taken < requests.size()) {
    (*thread)->WaitForCompletion();
    std::array<IoCompletion, 64> done;
    const size_t count = (*thread)->Poll(done);
    for (size_t i = 0; i < count; ++i) {
      if (done[i].error != 0) outcome.errors[uint64_t{done[i].tag} * kPiece] = done[i].error;
    }
    taken += count;
  }
  outcome.mode_change_note = (*thread)->mode_change_note();
  outcome.stats = (*thread)->stats();
  outcome.bytes.assign(memory.data(), memory.data() + kSize);
  for (uint32_t at = 0; at < kSize; at += kPiece) {
    if (!IsGap(way, at / kPiece)) continue;
    const auto gap = std::span(outcome.bytes).subspan(at, kPiece);
    EXPECT_TRUE(std::ranges::all_of(gap, [](std::byte b) { return b == std::byte{0xee}; }));
    std::copy_n(random.bytes().begin() + at, kPiece, gap.begin());
  }
  return outcome;
}

// In pieces, all handed over at once.
void ReadWhole(const RandomFile& random, IoPriority priority, IoThread& thread) {
  const AlignedBuffer memory = AlignedBuffer::Allocate(kSize).value();
  std::vector<IoRequest> requests;
  for (uint32_t at = 0; at < kSize; at += kPiece) {
    requests.push_back({.offset = at, .length = kPiece, .dst = memory.data() + at, .tag = 0});
  }
  ASSERT_TRUE(thread.Submit(requests, priority));
  std::array<IoCompletion, 64> done;
  while (thread.in_flight() > 0) {
    thread.WaitForCompletion();
    thread.Poll(done);
  }
  EXPECT_TRUE(std::equal(random.bytes().begin(), random.bytes().end(), memory.data()));
}

TEST(MergedReadsTest, WhatTheBounceBufferCannotHoldIsReadOneByOne) {
  const RandomFile random(kSize);
  const AlignedBuffer bounce = AlignedBuffer::Allocate(128 << 10).value();
  for (const size_t room : {size_t{0}, size_t{1000}, bounce.size()}) {
    IoThreadOptions options;
    const ReadMerger::Limits limits = {.depth = 16, .bounce_bytes = 4 * kSize};
    options.merger = std::make_unique<ReadMerger>(SlowOperations(), kSize, limits, 0);
    options.bounce = bounce.span().first(room);
    const auto thread =
        IoThread::Start(random.file(), MakeEngine("pread", random.file(), 16), std::move(options));
    ASSERT_TRUE(thread.ok()) << thread.status();
    ReadWhole(random, IoPriority::kDemand, **thread);
    EXPECT_EQ((*thread)->stats().operations, kSize / kPiece);
  }
}

TEST(MergedReadsTest, OfEitherPriorityAreMerged) {
  const RandomFile random(kSize);
  const AlignedBuffer bounce = AlignedBuffer::Allocate(256 << 10).value();
  for (const IoPriority priority : {IoPriority::kDemand, IoPriority::kLookAhead}) {
    IoThreadOptions options;
    const ReadMerger::Limits limits = {.depth = 1, .bounce_bytes = 256 << 10};
    options.merger = std::make_unique<ReadMerger>(SlowOperations(), kSize, limits, 0);
    options.bounce = bounce.span();
    const auto thread =
        IoThread::Start(random.file(), MakeEngine("pread", random.file(), 16), std::move(options));
    ASSERT_TRUE(thread.ok()) << thread.status();
    ReadWhole(random, priority, **thread);
    EXPECT_LE((*thread)->stats().operations, kSize / kPiece / 2);
  }
}

class FaultTest : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (MakeEngine(GetParam().engine, random_.file(), 1) == nullptr) {
      GTEST_SKIP() << "no io_uring here";
    }
  }
  Outcome Read(const std::string& spec) { return ReadWithFaults(random_, GetParam(), spec); }

  const RandomFile random_{kSize};
};

TEST_P(FaultTest, FaultsThatPassGiveTheSameBytes) {
  for (const std::string spec :
       {"short=0.5", "short=0.9,seed=2", "eintr=0.5", "eagain=0.2", "eio_once=0.5", "eio_once=1",
        "delay=0.5", "delay=1,delay_reaps=20", "reorder=1", "few=1",
        "short=0.3,eintr=0.2,eagain=0.1,eio_once=0.2,einval=0.01,delay=0.3,reorder=1,few=1"}) {
    const Outcome outcome = Read(spec);
    EXPECT_TRUE(outcome.errors.empty()) << spec;
    EXPECT_EQ(outcome.bytes, random_.bytes()) << spec;
  }
}

TEST_P(FaultTest, RetriesAreCounted) {
  if (GetParam().merged) {
    const Outcome merged = Read("reorder=1");
    EXPECT_LT(merged.stats.operations, kSize / kPiece * 3 / 4 / 2);
    EXPECT_GE(merged.stats.bytes, kSize - kSize / 4) << "with the gaps between pieces";
    EXPECT_EQ(merged.stats.retries, 0u);
    return;
  }
  EXPECT_EQ(Read("reorder=1").stats.retries, 0u);
  const Outcome outcome = Read("eio_once=1");
  EXPECT_EQ(outcome.stats.retries, kSize / kPiece);
  EXPECT_EQ(outcome.stats.operations, 2 * kSize / kPiece);
  EXPECT_EQ(outcome.stats.bytes, kSize);
}

TEST_P(FaultTest, AnEioThatStaysIsReportedForThatPieceOnly) {
  const Outcome outcome = Read("eio=100000-100001");
  constexpr uint64_t kBad = 100'000 / kPiece * kPiece;
  EXPECT_THAT(outcome.errors, testing::ElementsAre(testing::Pair(kBad, EIO)));
  if (!GetParam().merged) {
    EXPECT_EQ(outcome.stats.retries, 3u);
  }
  EXPECT_TRUE(
      std::equal(outcome.bytes.begin(), outcome.bytes.begin() + kBad, random_.bytes().begin()));
  EXPECT_TRUE(std::equal(outcome.bytes.begin() + kBad + kPiece, outcome.bytes.end(),
                         random_.bytes().begin() + kBad + kPiece));
}

TEST_P(FaultTest, ADeviceThatIsAlwaysBusyIsGivenUpInTheEnd) {
  const RandomFile small(kSize);
  for (const auto& [spec, error] : {std::pair("eagain=1", EAGAIN), std::pair("eintr=1", EINTR)}) {
    const Outcome outcome = Read(spec);
    EXPECT_EQ(outcome.errors.size(), kSize / kPiece * (GetParam().merged ? 3 : 4) / 4) << spec;
    for (const auto& [offset, got] : outcome.errors) EXPECT_EQ(got, error) << offset;
  }
}

TEST_P(FaultTest, EinvalOnTheDirectDescriptorTurnsToTheBufferedOne) {
  if (!random_.file().direct()) GTEST_SKIP() << random_.file().mode_note();
  const Outcome outcome = Read("einval=1");
  EXPECT_TRUE(outcome.errors.empty());
  EXPECT_EQ(outcome.bytes, random_.bytes());
  EXPECT_THAT(outcome.mode_change_note, HasSubstr("a direct read at offset"));
  EXPECT_THAT(outcome.mode_change_note, HasSubstr("Invalid argument"));
  EXPECT_THAT(outcome.mode_change_note, HasSubstr(random_.path()));
  // At most what was in flight met the error, a merged run first as a whole; nothing went to the
  // direct descriptor afterwards.
  EXPECT_LE(outcome.stats.retries, GetParam().merged ? 32u : 16u);
}

TEST_P(FaultTest, BytesThatWereNeverWrittenArriveAsSuccess) {
  // Nothing below the checksums can tell; this pins down what they are for.
  const Outcome outcome = Read("unwritten=1");
  EXPECT_TRUE(outcome.errors.empty());
  for (uint32_t piece = 0; piece < kSize / kPiece; ++piece) {
    if (IsGap(GetParam(), piece)) continue;
    const auto bytes = std::span(outcome.bytes).subspan(size_t{piece} * kPiece, kPiece);
    EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0xee}; }));
  }
}

TEST_P(FaultTest, TheSameSeedGivesTheSameFaults) {
  const std::string spec = "short=0.3,eintr=0.3,eio_once=0.3,reorder=1,seed=";
  const Outcome first = Read(spec + "11");
  const Outcome again = Read(spec + "11");
  const Outcome other = Read(spec + "12");
  EXPECT_EQ(first.stats.retries, again.stats.retries);
  EXPECT_EQ(first.stats.operations, again.stats.operations);
  EXPECT_NE(first.stats.operations, other.stats.operations);
}

TEST_P(FaultTest, IsStoppedWithResultsHeldBack) {
  const auto config = ParseFaultConfig("delay=1,delay_reaps=1000").value();
  const StorageFile& file = random_.file();
  auto thread = IoThread::Start(
      file, std::make_unique<FaultEngine>(MakeEngine(GetParam().engine, file, 16), config, -1), {});
  ASSERT_TRUE(thread.ok()) << thread.status();
  const AlignedBuffer memory = AlignedBuffer::Allocate(64 * kPiece).value();
  std::vector<IoRequest> requests;
  for (uint32_t i = 0; i < 64; ++i) {
    requests.push_back(
        {.offset = i * kPiece, .length = kPiece, .dst = memory.data() + i * kPiece, .tag = i});
  }
  ASSERT_TRUE((*thread)->Submit(requests, IoPriority::kDemand));
  thread->reset();
}

INSTANTIATE_TEST_SUITE_P(Engines, FaultTest,
                         testing::Values(Way{"io_uring"}, Way{"pread"}, Way{"io_uring", true},
                                         Way{"pread", true}),
                         [](const auto& way) {
                           return way.param.engine + (way.param.merged ? "_merged" : "");
                         });

TEST(FaultConfigTest, ReadsEveryKey) {
  const auto config = ParseFaultConfig(
      "seed=3,short=0.25,eintr=0.5,eagain=1,eio_once=0,einval=0.125,unwritten=1e-3,delay=0.75,"
      "delay_reaps=9,reorder=1,few=1,eio=4096-8192");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->seed, 3u);
  EXPECT_EQ(config->short_read, 0.25);
  EXPECT_EQ(config->eintr, 0.5);
  EXPECT_EQ(config->eagain, 1);
  EXPECT_EQ(config->eio_once, 0);
  EXPECT_EQ(config->einval, 0.125);
  EXPECT_EQ(config->unwritten, 1e-3);
  EXPECT_EQ(config->delay, 0.75);
  EXPECT_EQ(config->delay_reaps, 9u);
  EXPECT_TRUE(config->reorder);
  EXPECT_TRUE(config->few);
  EXPECT_EQ(config->eio_begin, 4096u);
  EXPECT_EQ(config->eio_end, 8192u);
}

TEST(FaultConfigTest, OfNothingHasNoFaults) {
  const auto config = ParseFaultConfig("");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->short_read, 0);
  EXPECT_EQ(config->eio_end, 0u);
}

TEST(FaultConfigTest, NamesWhatItDoesNotUnderstand) {
  const std::pair<const char*, const char*> kCases[] = {
      {"eoi=0.1", "fault 'eoi' is unknown"},
      {"short", "'short' is not KEY=VALUE"},
      {"short=2", "fault 'short': '2' is not a share from 0 to 1"},
      {"short=nan", "not a share"},
      {"short=-0.1", "not a share"},
      {"short=", "not a share"},
      {"short=0.1=0.2", "not a share"},
      {"seed=x", "fault 'seed': 'x' is not a number"},
      {"reorder=yes", "not 0 or 1"},
      {"delay_reaps=100000", "not a number from 0 to 1000"},
      {"eio=5", "not a range of bytes"},
      {"eio=9-5", "not a range of bytes"},
      {"seed=1,bad=1", "fault 'bad' is unknown"},
  };
  for (const auto& [spec, message] : kCases) {
    const auto config = ParseFaultConfig(spec);
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << spec;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(message)) << spec;
  }
}

}  // namespace
}  // namespace sluice
