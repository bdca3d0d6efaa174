#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "runtime/pause_rule.h"

namespace sluice {
namespace {

// Of so many times, at which ones it read: 10 bundles each, of which so many are needed.
std::vector<int> ReadsAt(int times, int needed) {
  PauseRule rule;
  std::vector<int> at;
  for (int t = 0; t < times; ++t) {
    if (!rule.Asked()) continue;
    at.push_back(t);
    rule.Began(10);
    for (int i = 0; i < needed; ++i) rule.Needed();
  }
  return at;
}

TEST(PauseRuleTest, GoesOnWhileHalfIsNeeded) { EXPECT_EQ(ReadsAt(1000, 5).size(), 1000u); }

TEST(PauseRuleTest, PausesTwiceAsLongAfterEachTrialThatFails) {
  const std::vector<int> at = ReadsAt(200, 1);
  // The first time nothing is known. Trials are of two times, each as far from the one before as
  // twice the last pause.
  const std::vector<int> expected = {0, 16, 17, 49, 50, 114, 115};
  EXPECT_EQ(at, expected);
}

TEST(PauseRuleTest, ResumesWhenATrialSucceeds) {
  PauseRule rule;
  ASSERT_TRUE(rule.Asked());
  rule.Began(10);
  int t = 1;
  while (!rule.Asked()) ++t;
  EXPECT_EQ(t, 16);
  for (int i = 0; i < 100; ++i) {
    rule.Began(10);
    for (int n = 0; n < 9; ++n) rule.Needed();
    EXPECT_TRUE(rule.Asked()) << i;
  }
}

TEST(PauseRuleTest, NeverPausesForGood) {
  PauseRule rule;
  uint32_t longest = 0, pause = 0;
  for (uint32_t t = 0; t < 5 * PauseRule::kLongest; ++t) {
    pause = rule.Asked() ? 0 : pause + 1;
    longest = std::max(longest, pause);
    if (pause == 0) rule.Began(10);
  }
  EXPECT_LE(longest, PauseRule::kLongest);
  EXPECT_GT(longest, PauseRule::kShortest);
}

}  // namespace
}  // namespace sluice
