#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/down_sums.h"

namespace sluice {
namespace {

TEST(DownSectionsTest, EveryPositionIsInOneSectionInOrder) {
  for (const uint32_t d_ff : {1u, 31u, 128u, 129u, 1000u, 4096u, 5632u, 14336u, 65536u}) {
    const DownSections sections(d_ff);
    EXPECT_LE(sections.count(), 32u) << d_ff;
    uint32_t next = 0;
    for (uint32_t s = 0; s < sections.count(); ++s) {
      EXPECT_EQ(sections.Begin(s), next) << d_ff;
      ASSERT_GT(sections.End(s), sections.Begin(s)) << d_ff;
      EXPECT_EQ(sections.Of(sections.Begin(s)), s);
      EXPECT_EQ(sections.Of(sections.End(s) - 1), s);
      next = sections.End(s);
    }
    EXPECT_EQ(next, d_ff);
  }
}

std::vector<float> SumsWith(int n_threads) {
  constexpr uint32_t kFf = 1000, kModel = 300;
  auto pool = ThreadPool::Create(n_threads, /*spin_ns=*/0);
  EXPECT_TRUE(pool.ok()) << pool.status();
  DownSums sums(kFf, kModel);
  sums.Begin();
  sums.Section(0)[5] = 1e9f;  // of a token before
  sums.Begin();
  for (const uint32_t s : {2u, 0u}) {  // in any order
    float* const sum = sums.Section(s);
    for (uint32_t j = 0; j < kModel; ++j) sum[j] += static_cast<float>(s + 1) * 0.1f;
  }
  sums.Section(2)[7] += 1;  // once more: what is there stays
  std::vector<float> y(kModel, 1e-9f);
  sums.AddTo(**pool, y.data());
  return y;
}

TEST(DownSumsTest, AddsTheSectionsThatWereUsedInTheirOrder) {
  const std::vector<float> y = SumsWith(1);
  for (uint32_t j = 0; j < y.size(); ++j) {
    const float third = 3 * 0.1f + (j == 7 ? 1.0f : 0.0f);
    EXPECT_EQ(y[j], 1e-9f + 0.1f + third) << j;
  }
  EXPECT_EQ(SumsWith(3), y);
}

}  // namespace
}  // namespace sluice
