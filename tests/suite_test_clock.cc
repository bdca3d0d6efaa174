// The clock that cuts a cell of the storage suite into windows.
#include <cstdint>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "io/clock.h"
#include "io/suite/phase_clock.h"

namespace sluice {
namespace {

using testing::IsEmpty;

constexpr uint64_t kSecond = 1'000'000'000;
constexpr double kEndless = 1e6;  // seconds

TEST(PhaseClockTest, AWindowEndsWithTheFirstCompletionAfterItsTimeAndHoldsIt) {
  const uint64_t t = NowNs();
  PhaseClock clock({.warm_up_s = 10, .window_s = 20, .n_windows = 2});
  EXPECT_EQ(clock.Count(1, t + 5 * kSecond), 0u);
  EXPECT_EQ(clock.Count(7, t + 11 * kSecond), 0u);  // ends the warm-up
  EXPECT_EQ(clock.Count(3, t + 30 * kSecond), 1u);
  EXPECT_EQ(clock.Count(2, t + 32 * kSecond), 1u);
  EXPECT_EQ(clock.Count(1, t + 51 * kSecond), 2u);
  EXPECT_FALSE(clock.over());
  EXPECT_EQ(clock.Count(4, t + 60 * kSecond), 2u);
  EXPECT_TRUE(clock.over());
  EXPECT_GT(clock.Count(9, t + 61 * kSecond), 2u);  // what was still in flight belongs to none
  const auto windows = clock.TakeWindows();
  ASSERT_EQ(windows.size(), 2u);
  EXPECT_EQ(windows[0].ns, 21 * kSecond);
  EXPECT_EQ(windows[0].operations, 5u);
  EXPECT_EQ(windows[1].ns, 28 * kSecond);
  EXPECT_EQ(windows[1].operations, 5u);
  EXPECT_FALSE(clock.ran_out());
}

TEST(PhaseClockTest, APhaseEndsWithItsShareOfTheBlocks) {
  PhaseClock clock({.warm_up_s = kEndless, .window_s = kEndless, .n_windows = 2, .n_blocks = 12});
  EXPECT_EQ(clock.Count(3, NowNs()), 0u);
  EXPECT_EQ(clock.Count(3, NowNs()), 0u);
  EXPECT_FALSE(clock.ran_out());
  EXPECT_EQ(clock.Count(1, NowNs()), 1u);
  EXPECT_EQ(clock.Count(1, NowNs()), 1u);
  EXPECT_EQ(clock.Count(4, NowNs()), 2u);
  EXPECT_TRUE(clock.over());
  const auto windows = clock.TakeWindows();
  ASSERT_EQ(windows.size(), 2u);
  EXPECT_EQ(windows[0].operations, 2u);
  EXPECT_EQ(windows[1].operations, 4u);
  EXPECT_TRUE(clock.ran_out());
}

TEST(PhaseClockTest, AWarmUpThatEndsForWantOfBlocksIsNoWindowThatDoes) {
  const uint64_t t = NowNs();
  PhaseClock clock({.warm_up_s = 10, .window_s = 10, .n_windows = 1, .n_blocks = 100});
  EXPECT_EQ(clock.Count(60, t + kSecond), 0u);
  EXPECT_EQ(clock.Count(10, t + 12 * kSecond), 1u);
  EXPECT_TRUE(clock.over());
  EXPECT_FALSE(clock.ran_out());
}

TEST(PhaseClockTest, AnUnfinishedWindowIsTakenIfItHoldsAnything) {
  for (const uint64_t in_window : {0u, 2u}) {
    PhaseClock clock({.warm_up_s = kEndless, .window_s = kEndless, .n_windows = 2, .n_blocks = 9});
    clock.Count(3, NowNs());
    if (in_window > 0) clock.Count(in_window, NowNs());
    clock.Stop();
    EXPECT_TRUE(clock.over());
    const auto windows = clock.TakeWindows();
    ASSERT_EQ(windows.size(), in_window > 0 ? 1u : 0u);
    EXPECT_EQ(clock.ran_out(), in_window > 0);
    if (in_window == 0) continue;
    EXPECT_EQ(windows[0].operations, in_window);
    EXPECT_GT(windows[0].ns, 0u);
  }
}

TEST(PhaseClockTest, AWarmUpIsNoWindow) {
  PhaseClock clock({.warm_up_s = kEndless, .window_s = kEndless, .n_windows = 2});
  clock.Count(1000, NowNs());
  EXPECT_THAT(clock.TakeWindows(), IsEmpty());
}

// Jobs look at the time before they count: whoever was first may come second.
TEST(PhaseClockTest, ACompletionFromBeforeAWindowDoesNotEndIt) {
  const uint64_t t = NowNs() + kSecond;
  PhaseClock clock({.warm_up_s = kEndless, .window_s = kEndless, .n_windows = 3, .n_blocks = 8});
  EXPECT_EQ(clock.Count(2, t + 100), 0u);
  EXPECT_EQ(clock.Count(2, t + 99), 1u);
  EXPECT_EQ(clock.Count(1, t + 200), 1u);
  EXPECT_EQ(clock.Count(1, t + 300), 2u);
  const auto windows = clock.TakeWindows();
  ASSERT_EQ(windows.size(), 2u);
  EXPECT_EQ(windows[0].ns, 100u);
  EXPECT_EQ(windows[0].operations, 3u);
  EXPECT_EQ(windows[1].ns, 100u);
}

TEST(PhaseClockTest, CountsOfSeveralThreadsAddUp) {
  constexpr uint64_t kThreads = 8, kEach = 20'000, kWindows = 3;
  constexpr uint64_t kShare = kThreads * kEach / (kWindows + 1);
  const uint64_t begin = NowNs();
  PhaseClock clock({.warm_up_s = kEndless,
                    .window_s = kEndless,
                    .n_windows = kWindows,
                    .n_blocks = kThreads * kEach});
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (uint64_t n = 0; n < kEach; ++n) clock.Count(1, NowNs());
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto windows = clock.TakeWindows();
  const uint64_t elapsed = NowNs() - begin;
  ASSERT_EQ(windows.size(), kWindows);
  uint64_t operations = 0, ns = 0;
  for (const PhaseClock::Window& w : windows) {
    EXPECT_GT(w.operations, 0u);
    operations += w.operations;
    ns += w.ns;
  }
  // Each thread may add one to a phase that another is about to end.
  EXPECT_LE(operations, kWindows * kShare);
  EXPECT_GE(operations + kThreads, kWindows * kShare);
  EXPECT_LE(ns, elapsed);
}

}  // namespace
}  // namespace sluice
