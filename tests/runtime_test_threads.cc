// Fork-join, the ring of streamed pieces, and the choice of neurons.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "io/fault_engine.h"
#include "predictor/neuron_selector.h"
#include "runtime/stream_ring.h"
#include "runtime/thread_pool.h"
#include "tests/decoder_harness.h"

namespace sluice {
namespace {

TEST(ThreadPoolTest, CallsEveryIndexOnceWithSharesOfWholeGrains) {
  for (const int n_threads : {1, 2, 3, 8}) {
    const auto pool = Must(ThreadPool::Create(n_threads, /*spin_ns=*/n_threads == 2 ? 1000 : 0));
    ASSERT_EQ(pool->n_threads(), n_threads);
    for (const size_t grain : {1u, 3u, 8u, 128u}) {
      for (size_t n = 0; n < 300; n += n < 20 ? 1 : 37) {
        std::vector<std::atomic<int>> calls(n);
        std::atomic<bool> good = true;
        pool->Run(n, grain, [&](size_t begin, size_t end, int thread) {
          if (begin >= end || end > n || thread < 0 || thread >= n_threads) good = false;
          if (begin % grain != 0 || (end % grain != 0 && end != n)) good = false;
          for (size_t i = begin; i < end; ++i) ++calls[i];
        });
        ASSERT_TRUE(good) << n << " by " << grain << " on " << n_threads;
        for (const auto& c : calls) ASSERT_EQ(c, 1) << n << " by " << grain;
      }
    }
  }
}

TEST(ThreadPoolTest, SharesDependOnNothingButSizeGrainAndNumberOfThreads) {
  const auto pool = Must(ThreadPool::Create(4, 0));
  const auto shares = [&] {
    std::mutex mutex;
    std::set<std::pair<size_t, size_t>> out;
    pool->Run(1000, 8, [&](size_t begin, size_t end, int) {
      const std::lock_guard lock(mutex);
      out.insert({begin, end});
    });
    return out;
  };
  const auto first = shares();
  EXPECT_GE(first.size(), 4u);
  for (int i = 0; i < 50; ++i) ASSERT_EQ(shares(), first);
}

TEST(ThreadPoolTest, OneThreadIsNeverInTwoSharesAtOnce) {
  const auto pool = Must(ThreadPool::Create(4, 100));
  std::vector<std::atomic<int>> inside(4);
  std::atomic<bool> good = true;
  for (int i = 0; i < 500; ++i) {
    pool->Run(64, 1, [&](size_t, size_t, int thread) {
      if (inside[static_cast<size_t>(thread)].fetch_add(1) != 0) good = false;
      inside[static_cast<size_t>(thread)].fetch_sub(1);
    });
  }
  EXPECT_TRUE(good);
}

TEST(ThreadPoolTest, WhatOneTaskWroteTheNextTaskReads) {
  const auto pool = Must(ThreadPool::Create(3, 100));
  std::vector<size_t> values(96);  // plain memory: the pool orders the accesses
  for (size_t round = 1; round <= 1000; ++round) {
    pool->Run(values.size(), 1 + round % 7, [&](size_t begin, size_t end, int) {
      for (size_t i = begin; i < end; ++i) ++values[i];
    });
    ASSERT_EQ(values[round % 96], round);
  }
  for (const size_t v : values) EXPECT_EQ(v, 1000u);
}

TEST(ThreadPoolTest, AWorkerThatIsHeldUpDelaysOnlyTheShareThatItIsIn) {
  const auto pool = Must(ThreadPool::Create(2, 0));
  std::atomic<bool> release = false;
  std::atomic<size_t> done = 0;
  pool->Run(8, 1, [&](size_t begin, size_t end, int thread) {
    if (thread == 1) {
      while (!release) std::this_thread::yield();  // holds this one share
    }
    done += end - begin;
    if (done >= 7) release = true;  // the caller did all others meanwhile
  });
  EXPECT_EQ(done, 8u);
}

TEST(ThreadPoolTest, WorkersThatParkedWakeUpAgain) {
  const auto pool = Must(ThreadPool::Create(2, 0));
  size_t total = 0;
  for (int i = 0; i < 2000; ++i) {
    size_t half[2] = {};
    pool->Run(2, 1, [&](size_t begin, size_t end, int thread) { half[thread] += end - begin; });
    total += half[0] + half[1];
  }
  EXPECT_EQ(total, 4000u);
}

// A file whose 512-byte block b is filled with b, read by an I/O thread through faults.
class RingTest : public testing::Test {
 protected:
  static constexpr uint32_t kBlock = 512;
  static constexpr uint32_t kBlocks = 200;
  static constexpr uint32_t kBuffers = 4;

  RingTest() {
    std::ofstream out(dir_.File("blocks"), std::ios::binary);
    for (uint32_t b = 0; b < kBlocks; ++b) {
      out << std::string(kBlock, static_cast<char>(b));
    }
    out.close();
    file_ = Must(StorageFile::Open(dir_.File("blocks"), DirectMode::kOff, kBlock));
    memory_ = Must(AlignedBuffer::Allocate(size_t{kBuffers} * kBlock));
  }

  void Start(const FaultConfig& faults) {
    EngineOptions options;
    options.kind = EngineKind::kPread;
    std::string note;
    auto engine = Must(MakeReadEngine(*file_, options, &note));
    IoThreadOptions thread;
    constexpr uint32_t kCapacity = 16;
    thread.capacity = kCapacity;
    thread_ = Must(IoThread::Start(
        *file_, std::make_unique<FaultEngine>(std::move(engine), faults, -1), std::move(thread)));
    io_ = std::make_unique<WeightIo>(*thread_, *file_, kCapacity, kBuffers);
    ring_ =
        std::make_unique<StreamRing>(*io_, memory_.span().first(size_t{kBuffers} * kBlock), kBlock);
  }

  static std::vector<StreamPiece> Sequence(uint32_t step) {
    std::vector<StreamPiece> pieces;
    for (uint32_t b = 0; b < kBlocks; b += step) {
      StreamPiece p;
      p.offset = uint64_t{b} * kBlock;
      p.length = kBlock;
      p.first = b;
      pieces.push_back(p);
    }
    return pieces;
  }

  void ExpectNext(uint32_t block) {
    ASSERT_NE(ring_->peek(), nullptr);
    ASSERT_EQ(ring_->peek()->first, block);
    const auto bytes = Must(ring_->Next());
    ASSERT_EQ(bytes.size(), kBlock);
    for (const std::byte b : bytes) ASSERT_EQ(b, static_cast<std::byte>(block));
  }

  TempDir dir_;
  std::unique_ptr<StorageFile> file_;
  AlignedBuffer memory_;
  std::unique_ptr<IoThread> thread_;
  std::unique_ptr<WeightIo> io_;
  std::unique_ptr<StreamRing> ring_;
};

FaultConfig Disorder() {
  FaultConfig faults;
  faults.reorder = true;
  faults.delay = 0.5;
  faults.short_read = 0.2;
  return faults;
}

TEST_F(RingTest, PiecesComeInOrderWhateverTheOrderOfCompletions) {
  Start(Disorder());
  const auto sequence = Sequence(1);
  ring_->Begin(sequence);
  for (uint32_t b = 0; b < kBlocks; ++b) {
    ExpectNext(b);
    ring_->Release();
  }
  EXPECT_EQ(ring_->peek(), nullptr);
}

TEST_F(RingTest, ACancelledSequenceLeavesNothingToTheNext) {
  Start(Disorder());
  const auto sequence = Sequence(1), other = Sequence(7);
  for (uint32_t taken = 0; taken < 6; ++taken) {
    ring_->Begin(sequence);
    EXPECT_TRUE(ring_->is_fresh());
    for (uint32_t b = 0; b < taken; ++b) {
      ExpectNext(b);
      ring_->Release();
    }
    EXPECT_EQ(ring_->is_fresh(), taken == 0);
    ring_->Cancel();
    EXPECT_EQ(thread_->in_flight(), 0u);
    EXPECT_FALSE(ring_->is_fresh());
    ring_->Begin(other);
    for (uint32_t b = 0; b < kBlocks; b += 7) {
      ExpectNext(b);
      ring_->Release();
    }
  }
}

TEST_F(RingTest, AFailedReadIsTheErrorOfNext) {
  FaultConfig faults;
  faults.eio_begin = 5 * kBlock;
  faults.eio_end = 5 * kBlock + 1;
  Start(faults);
  const auto sequence = Sequence(1);
  ring_->Begin(sequence);
  absl::Status status;
  for (uint32_t b = 0; b < 6 && status.ok(); ++b) {
    status = ring_->Next().status();
    if (status.ok()) ring_->Release();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  io_->Drain();
}

class SelectorTest : public testing::Test {
 protected:
  std::vector<uint32_t> SelectFor(Activation activation, float threshold) {
    ModelConfig config;
    config.activation = activation;
    config.activation_threshold = threshold;
    std::vector<uint32_t> active(gate_.size());
    active.resize(ExactSelector(config).Select({0, gate_}, active));
    return active;
  }

  const std::vector<float> gate_ = {-1.0f, 0.0f, -0.0f, 1e-45f, 0.5f, 0.49f, NAN, INFINITY};
};

TEST_F(SelectorTest, ExactTakesWhatItsActivationDoesNotMakeZero) {
  EXPECT_EQ(SelectFor(Activation::kRelu, 0), (std::vector<uint32_t>{3, 4, 5, 6, 7}));
  EXPECT_EQ(SelectFor(Activation::kRelu2, 0), (std::vector<uint32_t>{3, 4, 5, 6, 7}));
  EXPECT_EQ(SelectFor(Activation::kFatRelu, 0.5f), (std::vector<uint32_t>{4, 6, 7}));
  EXPECT_EQ(SelectFor(Activation::kFatRelu, 0.0f), (std::vector<uint32_t>{3, 4, 5, 6, 7}));
}

TEST_F(SelectorTest, WithThresholdsItGoesByTheMagnitudeOfTheActivation) {
  ModelConfig config;
  config.n_layers = 2;
  config.activation = Activation::kSilu;
  // |silu| of -1 is 0.269, of 0.5 0.311, of 0.49 0.304.
  const std::vector<float> thresholds = {0.25f, 0.31f};
  const ExactSelector selector(config, thresholds);
  const auto select = [&](const ExactSelector& s, uint32_t layer) {
    std::vector<uint32_t> active(gate_.size());
    active.resize(s.Select({layer, gate_}, active));
    return active;
  };
  EXPECT_EQ(select(selector, 0), (std::vector<uint32_t>{0, 4, 5, 6, 7}));
  EXPECT_EQ(select(selector, 1), (std::vector<uint32_t>{4, 6, 7}));
  EXPECT_FALSE(selector.IsActive(0, -0.24f));
  EXPECT_TRUE(selector.IsActive(0, -0.25f)) << "one that reaches it is active";
  EXPECT_TRUE(selector.IsActive(0, NAN));
  EXPECT_EQ(select(ExactSelector(config), 1), (std::vector<uint32_t>{0, 4, 5, 6, 7}))
      << "without thresholds, all whose activation is not zero";
}

}  // namespace
}  // namespace sluice
