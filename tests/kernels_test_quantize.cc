// The tables themselves, and how vectors become quants.
#include <bit>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels_test_data.h"

namespace sluice {
namespace {

TEST(KernelTableTest, TheScalarTableIsFirstAndTheBestIsLast) {
  ASSERT_FALSE(AvailableKernels().empty());
  EXPECT_EQ(AvailableKernels().front(), &ScalarKernels());
  EXPECT_EQ(AvailableKernels().back(), &BestKernels());
}

TEST(KernelTableTest, FindsEachAvailableTableByNameAndNoOther) {
  for (const KernelTable* table : AvailableKernels()) EXPECT_EQ(FindKernels(table->name), table);
  EXPECT_EQ(FindKernels("sse9"), nullptr);
  EXPECT_EQ(FindKernels(""), nullptr);
}

TEST(KernelTableTest, ReadsEveryHalfLikeHalfToFloat) {
  std::vector<uint16_t> halfs(65536);
  std::iota(halfs.begin(), halfs.end(), uint16_t{0});
  const auto* row = reinterpret_cast<const std::byte*>(halfs.data());
  const float one = 1.0f;
  ForEachTable([&](const KernelTable& table) {
    std::vector<float> y(halfs.size(), -0.0f);  // -0 + h is h, also for h = -0
    table.axpy[static_cast<size_t>(WeightType::kF16)]({.pointers = &row, .n_rows = 1}, halfs.size(),
                                                      &one, 0, halfs.size(), y.data());
    for (const uint16_t h : halfs) ASSERT_TRUE(SameBits(HalfToFloat(h), y[h])) << h;
  });
}

TEST(QuantizeTest, EveryTableGivesTheScalarOnesBits) {
  constexpr size_t kN = 1024;
  Random random(9);
  for (const Fill fill : kFills) {
    SCOPED_TRACE(static_cast<int>(fill));
    for (int repeat = 0; repeat < 50; ++repeat) {
      const TestVector x(kN, fill == Fill::kExtreme ? Fill::kRandom : fill, random);
      std::vector<float> input = x.f;
      if (fill == Fill::kExtreme) {
        for (float& f : input) f = std::bit_cast<float>(random.Bits());
      }
      std::vector<int8_t> q(kN);
      std::vector<float> scale(kN / kQuantBlock);
      std::vector<int32_t> sums(kN / kQuantBlock);
      ScalarKernels().quantize(input.data(), kN, q.data(), scale.data(), sums.data());
      ForEachTable([&](const KernelTable& table) {
        std::vector<int8_t> q2(kN);
        std::vector<float> scale2(kN / kQuantBlock);
        std::vector<int32_t> sums2(kN / kQuantBlock);
        table.quantize(input.data(), kN, q2.data(), scale2.data(), sums2.data());
        ASSERT_EQ(q, q2);
        ASSERT_TRUE(SameBits(scale, scale2));
        ASSERT_EQ(sums, sums2);
      });
    }
  }
}

TEST(QuantizeTest, QuantsAreWithinHalfAStepAndSummedPerBlock) {
  constexpr size_t kN = 4096;
  Random random(10);
  const TestVector x(kN, Fill::kRandom, random);
  std::vector<int32_t> sums(kN / kQuantBlock);
  for (size_t i = 0; i < kN; ++i) {
    const float scale = x.scale[i / kQuantBlock];
    EXPECT_NEAR(x.f[i], scale * static_cast<float>(x.q[i]), scale * 0.50001);
    EXPECT_GE(x.q[i], -127);
    sums[i / kQuantBlock] += x.q[i];
  }
  EXPECT_EQ(sums, x.block_sums);
}

TEST(QuantizeTest, HalvesRoundToTheEvenQuant) {
  std::vector<float> x(kQuantBlock);
  x[0] = 127.0f;  // the scale is 1
  x[1] = 0.5f;
  x[2] = 1.5f;
  x[3] = -0.5f;
  x[4] = -2.5f;
  ForEachTable([&](const KernelTable& table) {
    std::vector<int8_t> q(kQuantBlock);
    float scale = 0;
    int32_t sum = 0;
    table.quantize(x.data(), x.size(), q.data(), &scale, &sum);
    EXPECT_EQ(scale, 1.0f);
    EXPECT_EQ(sum, 127 + 0 + 2 + 0 - 2);
    EXPECT_EQ(q[0], 127);
    EXPECT_EQ(q[1], 0);
    EXPECT_EQ(q[2], 2);
    EXPECT_EQ(q[3], 0);
    EXPECT_EQ(q[4], -2);
  });
}

TEST(QuantizeTest, ABlockWithANanOrInfinityMakesEveryDotNan) {
  constexpr size_t kN = 64;
  Random random(11);
  for (const WeightType type : {WeightType::kQ8, WeightType::kQ4}) {
    const TestRows rows(type, kN, 1, Fill::kRandom, random);
    for (const float bad : {kInf, -kInf, kNan}) {
      std::vector<float> x(kN, 1.0f);
      x[40] = bad;
      ForEachTable([&](const KernelTable& table) {
        std::vector<int8_t> q(kN, 55);
        std::vector<float> scale(2);
        std::vector<int32_t> sums(2);
        table.quantize(x.data(), kN, q.data(), scale.data(), sums.data());
        EXPECT_GT(scale[0], 0.0f);
        EXPECT_TRUE(std::isnan(scale[1]));
        EXPECT_TRUE(std::all_of(q.begin() + 32, q.end(), [](int8_t v) { return v == 0; }));
        EXPECT_EQ(sums[1], 0);
        const VectorView view = {.q = q.data(), .scale = scale.data(), .block_sums = sums.data()};
        float out = 0;
        table.dot[static_cast<size_t>(type)](rows.Set(1), kN, &view, 1, &out, 1);
        EXPECT_TRUE(std::isnan(out));
      });
    }
  }
}

TEST(QuantizeTest, ABlockNearZeroIsAllZero) {
  std::vector<float> x(kQuantBlock, 0x1p-121f);
  x[7] = -0x1p-140f;
  ForEachTable([&](const KernelTable& table) {
    std::vector<int8_t> q(kQuantBlock, 1);
    float scale = 1;
    int32_t sum = 1;
    table.quantize(x.data(), x.size(), q.data(), &scale, &sum);
    EXPECT_EQ(scale, 0.0f);
    EXPECT_EQ(sum, 0);
    EXPECT_TRUE(std::all_of(q.begin(), q.end(), [](int8_t v) { return v == 0; }));
  });
}

}  // namespace
}  // namespace sluice
