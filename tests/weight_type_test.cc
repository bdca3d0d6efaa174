#include "layout/weight_type.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace sluice {
namespace {

// Straight from the definition of IEEE 754 binary16.
double HalfByDefinition(uint16_t h) {
  const int exponent = (h >> 10) & 31;
  const int mantissa = h & 1023;
  const double magnitude = exponent == 31  ? (mantissa ? std::numeric_limits<double>::quiet_NaN()
                                                       : std::numeric_limits<double>::infinity())
                           : exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(1024 + mantissa, exponent - 25);
  return std::copysign(magnitude, h & 0x8000 ? -1.0 : 1.0);
}

std::vector<float> NormalRow(size_t n, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> row(n);
  for (float& w : row) w = normal(engine);
  return row;
}

std::vector<std::byte> Encode(WeightType type, const std::vector<float>& row) {
  std::vector<std::byte> bytes(RowBytes(type, row.size()));
  EncodeRow(type, row, bytes);
  return bytes;
}

std::vector<float> Decode(WeightType type, const std::vector<std::byte>& bytes, size_t n) {
  std::vector<float> row(n);
  DecodeRow(type, bytes, row);
  return row;
}

TEST(HalfTest, EveryHalfHasTheValueOfItsDefinition) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const double expected = HalfByDefinition(static_cast<uint16_t>(h));
    const float got = HalfToFloat(static_cast<uint16_t>(h));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got)) << h;
    } else {
      ASSERT_EQ(expected, got) << h;
      ASSERT_EQ(std::signbit(expected), std::signbit(got)) << h;
    }
  }
}

TEST(HalfTest, EveryHalfSurvivesTheWayToFloatAndBack) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const float f = HalfToFloat(static_cast<uint16_t>(h));
    if (std::isnan(f)) {
      ASSERT_TRUE(std::isnan(HalfToFloat(FloatToHalf(f)))) << h;
    } else {
      ASSERT_EQ(FloatToHalf(f), h);
    }
  }
}

TEST(HalfTest, RoundsToTheNearestAndHalfwayToTheEvenOne) {
  const float inf = std::numeric_limits<float>::infinity();
  for (uint16_t h = 0; h < 0x7bff; ++h) {
    const auto next = static_cast<uint16_t>(h + 1);
    const float middle = (HalfToFloat(h) + HalfToFloat(next)) / 2;  // exact in float
    ASSERT_EQ(FloatToHalf(middle), h % 2 ? next : h);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 0.0f)), h);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, inf)), next);
    ASSERT_EQ(FloatToHalf(-middle), 0x8000 | (h % 2 ? next : h));
  }
}

TEST(HalfTest, OverflowGivesInfinityFromHalfwayOn) {
  EXPECT_EQ(FloatToHalf(65504.0f), 0x7bff);
  EXPECT_EQ(FloatToHalf(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(-1e30f), 0xfc00);
  EXPECT_EQ(FloatToHalf(std::numeric_limits<float>::infinity()), 0x7c00);
}

TEST(WeightTypeTest, NamesParseBackAndOthersAreRefused) {
  for (const WeightType type :
       {WeightType::kF32, WeightType::kF16, WeightType::kQ8, WeightType::kQ4}) {
    const auto parsed = ParseWeightType(WeightTypeName(type));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, type);
  }
  EXPECT_FALSE(ParseWeightType("q5").ok());
  EXPECT_FALSE(ParseWeightType("").ok());
}

TEST(WeightTypeTest, F32LosesNothingAndF16RoundsEachElement) {
  const std::vector<float> row = NormalRow(37, 1);
  EXPECT_EQ(Decode(WeightType::kF32, Encode(WeightType::kF32, row), row.size()), row);
  const std::vector<float> halfs = Decode(WeightType::kF16, Encode(WeightType::kF16, row), 37);
  for (size_t i = 0; i < row.size(); ++i) EXPECT_EQ(halfs[i], HalfToFloat(FloatToHalf(row[i])));
}

// The packed scale is a rounded half, so a quant is up to 128 (q8) or 8 (q4) times 2^-11 steps off
// on top of its own half step. An element of the other sign than q4's extreme may also clip at 7
// steps where 8 were needed.
TEST(WeightTypeTest, Q8AndQ4ElementsAreWithinTheirStepOfTheSource) {
  for (size_t n = 32; n <= 512; n += 32) {
    const std::vector<float> row = NormalRow(n, static_cast<uint32_t>(n));
    const std::vector<float> q8 = Decode(WeightType::kQ8, Encode(WeightType::kQ8, row), n);
    const std::vector<float> q4 = Decode(WeightType::kQ4, Encode(WeightType::kQ4, row), n);
    for (size_t b = 0; b < n; b += kQuantBlock) {
      float amax = 0;
      for (size_t i = b; i < b + kQuantBlock; ++i) amax = std::fmax(amax, std::fabs(row[i]));
      for (size_t i = b; i < b + kQuantBlock; ++i) {
        EXPECT_NEAR(q8[i], row[i], amax / 127 * (0.5 + 128 * 0x1p-11 + 1e-4)) << i;
        EXPECT_NEAR(q4[i], row[i], amax / 8 * (1.0 + 8 * 0x1p-11 + 1e-4)) << i;
      }
    }
  }
}

TEST(WeightTypeTest, PackingADecodedQ4RowLosesNothing) {
  for (size_t n = 32; n <= 512; n += 32) {
    const std::vector<float> row =
        Decode(WeightType::kQ4, Encode(WeightType::kQ4, NormalRow(n, 7)), n);
    EXPECT_EQ(Decode(WeightType::kQ4, Encode(WeightType::kQ4, row), n), row) << n;
  }
}

// Rows as another program quantised them: any quants in low..high, scales of either sign from
// subnormal to the largest half.
std::vector<float> QuantisedRow(size_t n, int low, int high, std::mt19937& rng) {
  std::vector<float> row(n);
  std::uniform_int_distribution<int> quant(low, high);
  for (size_t b = 0; b < n; b += kQuantBlock) {
    const auto half = static_cast<uint16_t>((rng() & 0x8000) | rng() % 0x7bff);
    for (size_t i = b; i < b + kQuantBlock; ++i) {
      row[i] = HalfToFloat(half) * static_cast<float>(quant(rng));
    }
  }
  return row;
}

// Where an importance matrix chooses the scales, the extreme of a block need not be -8 (q4) or 127
// (q8) steps.
TEST(WeightTypeTest, PackingARowOfAnyQuantsLosesNothing) {
  constexpr size_t kRow = 32 * 64;
  std::mt19937 rng(5);
  for (int low = -8; low <= 0; ++low) {
    for (int high = std::max(low, 0); high <= 7; ++high) {
      const std::vector<float> row = QuantisedRow(kRow, low, high, rng);
      EXPECT_EQ(Decode(WeightType::kQ4, Encode(WeightType::kQ4, row), kRow), row)
          << low << ".." << high;
    }
  }
  for (const auto& [low, high] : {std::pair(-128, 127), std::pair(-128, 0), std::pair(0, 126),
                                  std::pair(-100, 90), std::pair(-3, 64), std::pair(-1, 1)}) {
    const std::vector<float> row = QuantisedRow(kRow, low, high, rng);
    EXPECT_EQ(Decode(WeightType::kQ8, Encode(WeightType::kQ8, row), kRow), row)
        << low << ".." << high;
  }
}

TEST(WeightTypeTest, QuantsThatShareAFactorLoseNothing) {
  // 2047 steps of 2^-11 need all digits of a half; times 3, 5 or 7 they need more.
  const float scale = 2047.0f * 0x1p-11f;
  for (const int factor : {2, 3, 5, 6, 7}) {
    std::vector<float> row(kQuantBlock);
    row[0] = scale * static_cast<float>(factor);
    row[9] = -row[0];
    EXPECT_EQ(Decode(WeightType::kQ4, Encode(WeightType::kQ4, row), kQuantBlock), row) << factor;
    EXPECT_EQ(Decode(WeightType::kQ8, Encode(WeightType::kQ8, row), kQuantBlock), row) << factor;
  }
}

TEST(WeightTypeTest, Q4NibblesLieWhereTheHeaderSays) {
  constexpr size_t kN = 128 + 64 + 32;
  std::vector<float> row(kN);
  const auto nibble = [](size_t i) { return static_cast<int>((i * 7) % 16); };
  // Every 16 elements hold -8 .. 7, so that each block's scale is 1 and its nibbles are ours.
  for (size_t i = 0; i < kN; ++i) row[i] = static_cast<float>(nibble(i) - 8);
  const std::vector<std::byte> bytes = Encode(WeightType::kQ4, row);
  const struct { size_t first, size; } groups[] = {{0, 128}, {128, 64}, {192, 32}};
  for (const auto& g : groups) {
    for (size_t j = 0; j < g.size / 2; ++j) {
      const int expected = nibble(g.first + j) | nibble(g.first + g.size / 2 + j) << 4;
      EXPECT_EQ(static_cast<int>(bytes[g.first / 2 + j]), expected) << g.first << " " << j;
    }
  }
  for (size_t at = kN / 2; at < bytes.size(); at += 2) {
    EXPECT_EQ(static_cast<int>(bytes[at + 1]) << 8 | static_cast<int>(bytes[at]), 0x3c00);
  }
}

TEST(WeightTypeTest, ABlockWhoseScaleVanishesAsAHalfDecodesToZeros) {
  for (const WeightType type : {WeightType::kQ8, WeightType::kQ4}) {
    for (const float tiny : {0.0f, 1e-10f, 1e-30f, 1e-44f}) {
      std::vector<float> row(kQuantBlock, tiny);
      row[3] = -tiny;
      const std::vector<std::byte> bytes = Encode(type, row);
      for (const float w : Decode(type, bytes, row.size())) EXPECT_EQ(w, 0.0f);
      // Quants of zero, so that the block stays zero under any later arithmetic.
      const std::byte zero{type == WeightType::kQ8 ? uint8_t{0} : uint8_t{0x88}};
      EXPECT_EQ(bytes[0], zero);
    }
  }
}

}  // namespace
}  // namespace sluice
