// The I/O thread over healthy engines and over engines that the test holds still.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "io/io_thread.h"
#include "io/uring_probe.h"
#include "tests/io_test_files.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kLength = 4096;

std::unique_ptr<IoThread> StartThread(const StorageFile& file, std::unique_ptr<ReadEngine> engine,
                                      uint32_t capacity = 4096) {
  IoThreadOptions options;
  options.capacity = capacity;
  auto thread = IoThread::Start(file, std::move(engine), std::move(options));
  EXPECT_TRUE(thread.ok()) << thread.status();
  return thread.ok() ? std::move(*thread) : nullptr;
}

// Waits for `count` completions.
std::vector<IoCompletion> Take(IoThread& thread, size_t count) {
  std::vector<IoCompletion> all;
  while (all.size() < count) {
    std::array<IoCompletion, 32> part;
    const size_t got = thread.Poll(part);
    all.insert(all.end(), part.begin(), part.begin() + got);
    if (got == 0) thread.WaitForCompletion();
  }
  return all;
}

class IoThreadTest : public testing::TestWithParam<std::string> {
 protected:
  static constexpr size_t kSize = 4 << 20;

  void SetUp() override {
    memory_ = AlignedBuffer::Allocate(kSize).value();
    const std::array<std::span<std::byte>, 1> buffers = {memory_.span()};
    auto engine = MakeEngine(GetParam(), random_.file(), 32, buffers);
    if (engine == nullptr) GTEST_SKIP() << ProbeUring(random_.file());
    thread_ = StartThread(random_.file(), std::move(engine));
    ASSERT_NE(thread_, nullptr);
  }

  // Reads [offset, offset + length) to the same place of memory_.
  IoRequest RequestAt(uint64_t offset, uint32_t length) {
    return {.offset = offset,
            .length = length,
            .dst = memory_.data() + offset,
            .tag = static_cast<uint32_t>(offset / 512)};
  }
  bool MemoryIsTheFile() const {
    return std::equal(random_.bytes().begin(), random_.bytes().end(), memory_.data());
  }

  const RandomFile random_{kSize};
  AlignedBuffer memory_;
  std::unique_ptr<IoThread> thread_;
};

TEST_P(IoThreadTest, ReadsAWholeFileInShuffledPieces) {
  std::vector<IoRequest> requests;
  std::mt19937_64 random(3);
  for (uint64_t at = 0; at < kSize;) {
    const uint32_t length =
        static_cast<uint32_t>(std::min<uint64_t>(kSize - at, 512 * (1 + random() % 32)));
    requests.push_back(RequestAt(at, length));
    at += length;
  }
  std::shuffle(requests.begin(), requests.end(), random);
  ASSERT_TRUE(thread_->Submit(requests, IoPriority::kDemand));
  EXPECT_EQ(thread_->in_flight(), requests.size());
  std::vector<uint32_t> tags;
  for (const IoCompletion& done : Take(*thread_, requests.size())) {
    EXPECT_EQ(done.error, 0);
    tags.push_back(done.tag);
  }
  EXPECT_TRUE(MemoryIsTheFile());
  EXPECT_EQ(thread_->in_flight(), 0u);
  std::vector<uint32_t> expected;
  for (const IoRequest& request : requests) expected.push_back(request.tag);
  EXPECT_THAT(tags, testing::UnorderedElementsAreArray(expected));

  const IoStats stats = thread_->stats();
  EXPECT_EQ(stats.bytes, kSize);
  EXPECT_EQ(stats.operations, requests.size() + stats.retries);
  EXPECT_GT(stats.busy_ns, 0u);
  EXPECT_EQ(thread_->mode_change_note(), "");
}

TEST_P(IoThreadTest, ReadsOneLargeRequest) {
  ASSERT_TRUE(thread_->Submit(std::array{RequestAt(0, kSize)}, IoPriority::kDemand));
  EXPECT_EQ(Take(*thread_, 1)[0].error, 0);
  EXPECT_TRUE(MemoryIsTheFile());
}

TEST_P(IoThreadTest, ReadsUnalignedRequests) {
  std::vector<IoRequest> requests;
  for (uint64_t at = 0; at < kSize; at += 37'111) {
    requests.push_back(
        RequestAt(at, static_cast<uint32_t>(std::min<uint64_t>(37'111, kSize - at))));
  }
  ASSERT_TRUE(thread_->Submit(requests, IoPriority::kLookAhead));
  for (const IoCompletion& done : Take(*thread_, requests.size())) EXPECT_EQ(done.error, 0);
  EXPECT_TRUE(MemoryIsTheFile());
}

TEST_P(IoThreadTest, ReportsThatTheFileEnds) {
  const AlignedBuffer past = AlignedBuffer::Allocate(2 * kLength).value();
  const IoRequest beyond = {.offset = kSize, .length = kLength, .dst = past.data(), .tag = 1};
  const IoRequest across = {
      .offset = kSize - kLength, .length = 2 * kLength, .dst = past.data(), .tag = 2};
  for (const IoRequest& request : {beyond, across}) {
    ASSERT_TRUE(thread_->Submit({&request, 1}, IoPriority::kDemand));
    const IoCompletion done = Take(*thread_, 1)[0];
    EXPECT_EQ(done.tag, request.tag);
    EXPECT_EQ(done.error, ENODATA);
  }
}

TEST_P(IoThreadTest, CompletesARequestForNothing) {
  ASSERT_TRUE(thread_->Submit(std::array{RequestAt(0, 0)}, IoPriority::kDemand));
  EXPECT_EQ(Take(*thread_, 1)[0].error, 0);
}

TEST_P(IoThreadTest, ReturnsAtOnceFromWaitingWithNothingInFlight) {
  thread_->WaitForCompletion();
  std::array<IoCompletion, 1> none;
  EXPECT_EQ(thread_->Poll(none), 0u);
  EXPECT_TRUE(thread_->Submit({}, IoPriority::kDemand));
  thread_->WaitForCompletion();
}

// One request at a time, so that both sides sleep between any two. A lost wake-up would hang.
TEST_P(IoThreadTest, WakesUpEachTime) {
  constexpr int kRounds = 2000;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t at = static_cast<uint64_t>(round) * kLength % kSize;
    ASSERT_TRUE(thread_->Submit(std::array{RequestAt(at, kLength)}, IoPriority::kDemand));
    ASSERT_EQ(Take(*thread_, 1)[0].tag, at / 512);
    if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// Requests that arrive while others are being read, in groups of all sizes.
TEST_P(IoThreadTest, TakesRequestsWhileReadsAreInFlight) {
  constexpr size_t kReads = 20'000;
  std::mt19937_64 random(5);
  std::vector<uint32_t> idle(64);  // places in memory_ that nothing is being read to
  std::iota(idle.begin(), idle.end(), 0);
  std::vector<uint64_t> offset_of(idle.size());
  size_t submitted = 0;
  size_t taken = 0;
  while (taken < kReads) {
    std::vector<IoRequest> batch;
    const size_t most = std::min(kReads - submitted, random() % 8);
    while (batch.size() < most && !idle.empty()) {
      const uint32_t place = idle.back();
      idle.pop_back();
      offset_of[place] = random() % (kSize / kLength) * kLength;
      batch.push_back({.offset = offset_of[place],
                       .length = kLength,
                       .dst = memory_.data() + place * kLength,
                       .tag = place});
    }
    const auto priority = random() % 2 == 0 ? IoPriority::kDemand : IoPriority::kLookAhead;
    ASSERT_TRUE(thread_->Submit(batch, priority));
    submitted += batch.size();
    if (idle.empty() || submitted == kReads) thread_->WaitForCompletion();
    std::array<IoCompletion, 16> done;
    const size_t count = thread_->Poll(done);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t place = done[i].tag;
      ASSERT_EQ(done[i].error, 0);
      ASSERT_EQ(
          memcmp(memory_.data() + place * kLength, &random_.bytes()[offset_of[place]], kLength), 0);
      idle.push_back(place);
    }
    taken += count;
  }
  EXPECT_EQ(thread_->in_flight(), 0u);
}

TEST_P(IoThreadTest, StopsWithReadsInFlightAndWritesNothingAfterwards) {
  for (int round = 0; round < 20; ++round) {
    auto engine = MakeEngine(GetParam(), random_.file(), 8);
    auto thread = StartThread(random_.file(), std::move(engine));
    AlignedBuffer memory = AlignedBuffer::Allocate(64 * kLength).value();
    std::vector<IoRequest> requests;
    for (uint32_t i = 0; i < 64; ++i) {
      requests.push_back(
          {.offset = i * kLength, .length = kLength, .dst = memory.data() + i * kLength, .tag = i});
    }
    ASSERT_TRUE(thread->Submit(requests, IoPriority::kDemand));
    if (round % 2 == 1) thread->WaitForCompletion();
    thread.reset();
    std::fill_n(memory.data(), memory.size(), std::byte{0x22});
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(std::all_of(memory.span().begin(), memory.span().end(),
                            [](std::byte b) { return b == std::byte{0x22}; }));
  }
}

TEST_P(IoThreadTest, LeavesThePageCacheAloneInDirectMode) {
  if (!random_.file().direct()) GTEST_SKIP() << random_.file().mode_note();
  const int fd = open(random_.path().c_str(), O_RDONLY);
  ASSERT_GE(fd, 0);
  fsync(fd);
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  void* map = mmap(nullptr, kSize, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(map, MAP_FAILED);
  const auto cached_pages = [&] {
    std::vector<unsigned char> pages(kSize / static_cast<size_t>(sysconf(_SC_PAGESIZE)));
    mincore(map, kSize, pages.data());
    return std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; });
  };
  if (cached_pages() != 0) GTEST_SKIP() << "the file system keeps its pages in memory";
  ASSERT_TRUE(thread_->Submit(std::array{RequestAt(0, kSize)}, IoPriority::kDemand));
  EXPECT_EQ(Take(*thread_, 1)[0].error, 0);
  EXPECT_EQ(cached_pages(), 0);
  munmap(map, kSize);
  close(fd);
}

TEST_P(IoThreadTest, SaysWhereItRuns) {
  EXPECT_THAT(thread_->affinity_note(),
              testing::AnyOf(HasSubstr("granted"), HasSubstr("not pinned: ")));
}

INSTANTIATE_TEST_SUITE_P(Engines, IoThreadTest, testing::Values("io_uring", "pread"),
                         [](const auto& engine) { return engine.param; });

// An engine that reads nothing and completes what the test tells it to.
class ManualEngine final : public ReadEngine {
 public:
  // What the test and the engine share, since the I/O thread owns the engine.
  struct Control {
    std::mutex mutex;
    std::condition_variable cv;
    std::deque<ReadOp> started;     // in order, not completed yet
    std::vector<uint64_t> offsets;  // of all that was ever started
    std::deque<ReadResult> results;
    absl::Status failure;  // of the next Reap
    bool woken = false;
    bool destroyed = false;

    // Waits until `count` operations were started in all.
    void AwaitStarted(size_t count) {
      std::unique_lock lock(mutex);
      cv.wait(lock, [&] { return offsets.size() >= count; });
    }
    // Completes the oldest `count` operations.
    void Complete(size_t count) {
      const std::lock_guard lock(mutex);
      for (; count > 0; --count) {
        results.push_back({started.front().user, static_cast<int32_t>(started.front().length)});
        started.pop_front();
      }
      cv.notify_all();
    }
    void Fail(const absl::Status& status) {
      const std::lock_guard lock(mutex);
      failure = status;
      cv.notify_all();
    }
  };

  ManualEngine(Control& control, uint32_t depth) : control_(control), depth_(depth) {}
  ~ManualEngine() override {
    const std::lock_guard lock(control_.mutex);
    control_.destroyed = true;
  }
  const std::string& description() const override { return description_; }
  uint32_t depth() const override { return depth_; }
  absl::StatusOr<uint32_t> Submit(std::span<const ReadOp> ops) override {
    const std::lock_guard lock(control_.mutex);
    for (const ReadOp& op : ops) {
      control_.started.push_back(op);
      control_.offsets.push_back(op.offset);
    }
    control_.cv.notify_all();
    return static_cast<uint32_t>(ops.size());
  }
  absl::StatusOr<uint32_t> Reap(std::span<ReadResult> results, bool wait) override {
    std::unique_lock lock(control_.mutex);
    control_.cv.wait(lock, [&] {
      return !wait || !control_.results.empty() || control_.woken || !control_.failure.ok();
    });
    if (!control_.failure.ok()) return control_.failure;
    control_.woken = false;
    uint32_t count = 0;
    while (count < results.size() && !control_.results.empty()) {
      results[count++] = control_.results.front();
      control_.results.pop_front();
    }
    return count;
  }
  void Wake() override {
    const std::lock_guard lock(control_.mutex);
    control_.woken = true;
    control_.cv.notify_all();
  }

 private:
  Control& control_;
  uint32_t depth_;
  std::string description_ = "manual";
};

class IoThreadOrderTest : public testing::Test {
 protected:
  static constexpr uint32_t kDepth = 2;

  void Start(uint32_t capacity) {
    thread_ =
        StartThread(random_.file(), std::make_unique<ManualEngine>(control_, kDepth), capacity);
    ASSERT_NE(thread_, nullptr);
  }
  IoRequest RequestAt(uint64_t block) {
    return {.offset = block * 512,
            .length = 512,
            .dst = memory_.data() + block * 512,
            .tag = static_cast<uint32_t>(block)};
  }

  const RandomFile random_{64 * 1024};
  AlignedBuffer memory_ = AlignedBuffer::Allocate(64 * 1024).value();
  ManualEngine::Control control_;
  std::unique_ptr<IoThread> thread_;
};

TEST_F(IoThreadOrderTest, StartsARequestThatArrivesWhileTheEngineIsBlocked) {
  Start(16);
  ASSERT_TRUE(thread_->Submit(std::array{RequestAt(0)}, IoPriority::kDemand));
  control_.AwaitStarted(1);
  for (uint64_t block = 1; block < 200; ++block) {
    ASSERT_TRUE(thread_->Submit(std::array{RequestAt(block % 100)}, IoPriority::kDemand));
    control_.AwaitStarted(block + 1);  // hangs if the I/O thread does not wake up
    control_.Complete(1);
    Take(*thread_, 1);
  }
  control_.Complete(1);
  Take(*thread_, 1);
}

TEST_F(IoThreadOrderTest, ServesDemandBeforeLookAhead) {
  Start(16);
  ASSERT_TRUE(thread_->Submit(std::array{RequestAt(90), RequestAt(91)}, IoPriority::kLookAhead));
  control_.AwaitStarted(2);  // the engine is full now
  ASSERT_TRUE(thread_->Submit(std::array{RequestAt(1), RequestAt(2)}, IoPriority::kLookAhead));
  ASSERT_TRUE(thread_->Submit(std::array{RequestAt(3), RequestAt(4)}, IoPriority::kDemand));
  for (size_t started = 3; started <= 6; ++started) {
    control_.Complete(1);
    control_.AwaitStarted(started);
  }
  control_.Complete(2);
  Take(*thread_, 6);
  EXPECT_THAT(control_.offsets,
              ElementsAre(90 * 512, 91 * 512, 3 * 512, 4 * 512, 1 * 512, 2 * 512));
}

TEST_F(IoThreadOrderTest, AcceptsABatchWholeOrNotAtAll) {
  Start(4);
  const std::array three = {RequestAt(0), RequestAt(1), RequestAt(2)};
  EXPECT_TRUE(thread_->Submit(three, IoPriority::kDemand));
  EXPECT_FALSE(thread_->Submit(three, IoPriority::kDemand));
  EXPECT_FALSE(thread_->Submit(std::span(three).first(2), IoPriority::kLookAhead));
  EXPECT_EQ(thread_->in_flight(), 3u);
  EXPECT_TRUE(thread_->Submit(std::span(three).first(1), IoPriority::kLookAhead));
  EXPECT_FALSE(thread_->Submit(std::span(three).first(1), IoPriority::kDemand));
  // Room comes back with Poll, not with the completion.
  control_.AwaitStarted(2);
  control_.Complete(2);
  thread_->WaitForCompletion();
  EXPECT_FALSE(thread_->Submit(std::span(three).first(1), IoPriority::kDemand));
  Take(*thread_, 2);
  EXPECT_TRUE(thread_->Submit(std::span(three).first(2), IoPriority::kDemand));
  EXPECT_EQ(thread_->in_flight(), 4u);
  control_.AwaitStarted(4);
  control_.Complete(2);
  control_.AwaitStarted(6);
  control_.Complete(2);
  Take(*thread_, 4);
}

TEST_F(IoThreadOrderTest, MatchesCompletionsThatComeOutOfOrder) {
  Start(16);
  ASSERT_TRUE(thread_->Submit(std::array{RequestAt(5), RequestAt(6)}, IoPriority::kDemand));
  control_.AwaitStarted(2);
  {
    const std::lock_guard lock(control_.mutex);
    std::swap(control_.started[0], control_.started[1]);
  }
  control_.Complete(1);
  EXPECT_EQ(Take(*thread_, 1)[0].tag, 6u);
  control_.Complete(1);
  EXPECT_EQ(Take(*thread_, 1)[0].tag, 5u);
}

TEST_F(IoThreadOrderTest, IgnoresACompletionThatCameBefore) {
  Start(16);
  ASSERT_TRUE(thread_->Submit(std::array{RequestAt(5)}, IoPriority::kDemand));
  control_.AwaitStarted(1);
  const ReadOp first = control_.started.front();
  control_.Complete(1);
  EXPECT_EQ(Take(*thread_, 1)[0].tag, 5u);

  ASSERT_TRUE(thread_->Submit(std::array{RequestAt(6), RequestAt(7)}, IoPriority::kDemand));
  control_.AwaitStarted(3);
  {
    // The first one once more; its slot is in use again by now.
    const std::lock_guard lock(control_.mutex);
    control_.results.push_back({first.user, 512});
  }
  control_.Complete(1);
  EXPECT_EQ(Take(*thread_, 1)[0].tag, 6u);
  EXPECT_EQ(thread_->in_flight(), 1u);
  control_.Complete(1);
  EXPECT_EQ(Take(*thread_, 1)[0].tag, 7u);
}

TEST_F(IoThreadOrderTest, FailsAllRequestsWhenTheEngineFails) {
  Start(16);
  ASSERT_TRUE(
      thread_->Submit(std::array{RequestAt(0), RequestAt(1), RequestAt(2)}, IoPriority::kDemand));
  control_.AwaitStarted(2);
  control_.Fail(absl::UnavailableError("the ring broke"));
  for (const IoCompletion& done : Take(*thread_, 3)) EXPECT_EQ(done.error, EIO);
  EXPECT_TRUE(control_.destroyed);
  EXPECT_THAT(thread_->mode_change_note(), HasSubstr("the ring broke"));

  ASSERT_TRUE(thread_->Submit(std::array{RequestAt(3)}, IoPriority::kLookAhead));
  EXPECT_EQ(Take(*thread_, 1)[0].error, EIO);
}

}  // namespace
}  // namespace sluice
