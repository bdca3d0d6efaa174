#include "runtime/kernels/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "layout/weight_type.h"

namespace sluice {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kEpsilon = 0x1p-24;  // relative error of one float rounding

bool IsQuantised(WeightType type) { return type == WeightType::kQ8 || type == WeightType::kQ4; }

// What the weights of a test row look like.
enum class Fill {
  kRandom,
  kExtreme,  // quants at the ends of their range, floats of any exponent
  kTiny,     // denormal scales and floats
  kZero,
  kInfinite,  // here and there an infinity or a NaN
};
constexpr Fill kFills[] = {Fill::kRandom, Fill::kExtreme, Fill::kTiny, Fill::kZero,
                           Fill::kInfinite};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}

  uint32_t Bits() { return static_cast<uint32_t>(engine_()); }
  int Below(int n) { return static_cast<int>(Bits() % static_cast<uint32_t>(n)); }
  float Normal() { return normal_(engine_); }

  float Float(Fill fill) {
    switch (fill) {
      case Fill::kRandom:
        return Normal();
      case Fill::kExtreme:
        return std::ldexp(Normal(), Below(120) - 60);
      case Fill::kTiny:
        return std::ldexp(Normal(), -135);
      case Fill::kZero:
        return Below(2) ? 0.0f : -0.0f;
      case Fill::kInfinite:
        return Below(64) ? Normal() : Below(2) ? kInf : Below(2) ? -kInf : kNan;
    }
    return 0;
  }

  uint16_t Half(Fill fill) {
    switch (fill) {
      case Fill::kRandom:
        return FloatToHalf(0.01f * Normal());
      case Fill::kExtreme:
        return Below(2) ? 0x7bff : 0xfbff;
      case Fill::kTiny:
        return static_cast<uint16_t>((Bits() & 0x8000) | Below(8));
      case Fill::kZero:
        return Below(2) ? 0 : 0x8000;
      case Fill::kInfinite:
        return Below(4) ? FloatToHalf(Normal()) : Below(2) ? 0x7c00 : Below(2) ? 0xfc00 : 0x7e00;
    }
    return 0;
  }

  // A byte of int8 or nibble quants.
  std::byte Quants(Fill fill) {
    if (fill != Fill::kExtreme) return static_cast<std::byte>(Bits());
    constexpr uint8_t kEnds[] = {0x00, 0x0f, 0xf0, 0xff, 0x80, 0x81, 0x7f};
    return static_cast<std::byte>(kEnds[Below(7)]);
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

// Rows at odd addresses, each ending where its allocation ends, so that AddressSanitizer sees a
// read past the end.
class TestRows {
 public:
  TestRows(WeightType type, size_t n, size_t n_rows, Fill fill, Random& random) {
    const size_t bytes = RowBytes(type, n);
    for (size_t r = 0; r < n_rows; ++r) {
      rows_.push_back(std::make_unique<std::byte[]>(bytes + 1));
      FillRow(type, n, fill, random, rows_.back().get() + 1);
    }
    for (const auto& row : rows_) pointers_.push_back(row.get() + 1);
  }

  RowSet Set(size_t n_rows) const { return {.pointers = pointers_.data(), .n_rows = n_rows}; }
  const std::byte* row(size_t r) const { return pointers_[r]; }

 private:
  static void FillRow(WeightType type, size_t n, Fill fill, Random& random, std::byte* row) {
    size_t halfs_at = 0;
    if (type == WeightType::kF32) {
      for (size_t i = 0; i < n; ++i) {
        const float f = random.Float(fill);
        std::memcpy(row + 4 * i, &f, sizeof(f));
      }
      return;
    }
    if (IsQuantised(type)) {
      halfs_at = type == WeightType::kQ8 ? n : n / 2;
      for (size_t i = 0; i < halfs_at; ++i) row[i] = random.Quants(fill);
    }
    for (size_t at = halfs_at; at < RowBytes(type, n); at += 2) {
      const uint16_t half = random.Half(fill);
      std::memcpy(row + at, &half, sizeof(half));
    }
  }

  std::vector<std::unique_ptr<std::byte[]>> rows_;
  std::vector<const std::byte*> pointers_;
};

// One vector in float and, where n allows it, in quantised form.
struct TestVector {
  TestVector(size_t n, Fill fill, Random& random)
      : f(n), q(n), scale(n / kQuantBlock), block_sums(n / kQuantBlock) {
    for (float& x : f) x = random.Float(fill);
    if (n % kQuantBlock == 0) {
      ScalarKernels().quantize(f.data(), n, q.data(), scale.data(), block_sums.data());
    }
    if (fill == Fill::kExtreme) {
      for (int8_t& x : q) x = random.Below(2) ? 127 : -127;
      for (size_t b = 0; b < scale.size(); ++b) {
        block_sums[b] =
            std::accumulate(q.begin() + static_cast<ptrdiff_t>(b * kQuantBlock),
                            q.begin() + static_cast<ptrdiff_t>((b + 1) * kQuantBlock), 0);
      }
    }
  }

  VectorView View() const {
    return {.f = f.data(), .q = q.data(), .scale = scale.data(), .block_sums = block_sums.data()};
  }

  std::vector<float> f;
  std::vector<int8_t> q;
  std::vector<float> scale;
  std::vector<int32_t> block_sums;
};

struct TestVectors {
  TestVectors(size_t n, size_t count, Fill fill, Random& random) {
    for (size_t v = 0; v < count; ++v) vectors.emplace_back(n, fill, random);
    for (const TestVector& v : vectors) views.push_back(v.View());
  }
  std::vector<TestVector> vectors;
  std::vector<VectorView> views;
};

// Bits, but for a NaN only that it is one.
testing::AssertionResult SameBits(float expected, float got) {
  if (std::bit_cast<uint32_t>(expected) == std::bit_cast<uint32_t>(got) ||
      (std::isnan(expected) && std::isnan(got))) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << std::hexfloat << "expected " << expected << ", got " << got;
}

testing::AssertionResult SameBits(const std::vector<float>& expected,
                                  const std::vector<float>& got) {
  if (expected.size() != got.size()) return testing::AssertionFailure() << "sizes differ";
  for (size_t i = 0; i < expected.size(); ++i) {
    if (auto same = SameBits(expected[i], got[i]); !same) return same << " at index " << i;
  }
  return testing::AssertionSuccess();
}

// Every table of this machine, the scalar one too: it must not depend on the batch either.
template <typename F>
void ForEachTable(F f) {
  for (const KernelTable* table : AvailableKernels()) {
    SCOPED_TRACE(std::string(table->name));
    f(*table);
    if (testing::Test::HasFatalFailure()) return;
  }
}

class KernelsTest : public testing::TestWithParam<WeightType> {
 protected:
  WeightType type() const { return GetParam(); }
  size_t index() const { return static_cast<size_t>(GetParam()); }

  // All lengths up to several registers and nibble groups, and a few real ones.
  std::vector<size_t> Sizes() const {
    std::vector<size_t> sizes;
    for (size_t n = 32; n <= 640; n += 32) sizes.push_back(n);
    sizes.insert(sizes.end(), {1056, 2048});
    if (!IsQuantised(type())) {
      for (size_t n = 0; n < 40; ++n) sizes.push_back(n);
      sizes.insert(sizes.end(), {127, 129, 172, 513});
    }
    return sizes;
  }

  float ScalarDot(const std::byte* row, size_t n, const VectorView& x) const {
    float out = 0;
    ScalarKernels().dot[index()]({.pointers = &row, .n_rows = 1}, n, &x, 1, &out, 1);
    return out;
  }
};

TEST_P(KernelsTest, DotsOfEveryBatchEqualTheScalarDotOfOneRowBitForBit) {
  constexpr size_t kMax = 9;
  Random random(1);
  for (const size_t n : Sizes()) {
    SCOPED_TRACE(n);
    const TestRows rows(type(), n, kMax, Fill::kRandom, random);
    const TestVectors x(n, kMax, Fill::kRandom, random);
    float expected[kMax][kMax];
    for (size_t v = 0; v < kMax; ++v) {
      for (size_t r = 0; r < kMax; ++r) expected[v][r] = ScalarDot(rows.row(r), n, x.views[v]);
    }
    ForEachTable([&](const KernelTable& table) {
      for (size_t n_rows = 0; n_rows <= kMax; ++n_rows) {
        for (size_t n_vectors = 0; n_vectors <= kMax; ++n_vectors) {
          constexpr float kUntouched = 12345.0f;
          const size_t stride = n_rows + 1;
          std::vector<float> out(stride * n_vectors, kUntouched);
          table.dot[index()](rows.Set(n_rows), n, x.views.data(), n_vectors, out.data(), stride);
          for (size_t v = 0; v < n_vectors; ++v) {
            for (size_t r = 0; r < n_rows; ++r) {
              ASSERT_TRUE(SameBits(expected[v][r], out[v * stride + r]))
                  << n_rows << " rows, " << n_vectors << " vectors, row " << r << ", vector " << v;
            }
            ASSERT_EQ(out[v * stride + n_rows], kUntouched);
          }
        }
      }
    });
  }
}

TEST_P(KernelsTest, DotsOfExtremeValuesEqualTheScalarOnesBitForBit) {
  constexpr size_t kRows = 3;
  Random random(2);
  for (const size_t n : Sizes()) {
    for (const Fill w_fill : kFills) {
      for (const Fill x_fill : kFills) {
        SCOPED_TRACE(testing::Message() << "n " << n << ", fills " << static_cast<int>(w_fill)
                                        << ", " << static_cast<int>(x_fill));
        const TestRows rows(type(), n, kRows, w_fill, random);
        const TestVectors x(n, 1, x_fill, random);
        std::vector<float> expected;
        for (size_t r = 0; r < kRows; ++r) {
          expected.push_back(ScalarDot(rows.row(r), n, x.views[0]));
        }
        ForEachTable([&](const KernelTable& table) {
          std::vector<float> out(kRows);
          table.dot[index()](rows.Set(kRows), n, x.views.data(), 1, out.data(), kRows);
          ASSERT_TRUE(SameBits(expected, out));
        });
      }
    }
  }
}

TEST_P(KernelsTest, StridedRowsGiveTheDotsAndAxpyOfScatteredOnes) {
  constexpr size_t kN = 416;
  constexpr size_t kRows = 300;  // more than a cache tile of rows
  Random random(3);
  const size_t stride = RowBytes(type(), kN) + 5;
  const TestRows scattered(type(), kN, kRows, Fill::kRandom, random);
  std::vector<std::byte> packed(stride * kRows);
  for (size_t r = 0; r < kRows; ++r) {
    std::memcpy(packed.data() + r * stride, scattered.row(r), RowBytes(type(), kN));
  }
  const RowSet strided = {.base = packed.data(), .stride = stride, .n_rows = kRows};
  const TestVectors x(kN, 6, Fill::kRandom, random);
  ForEachTable([&](const KernelTable& table) {
    std::vector<float> a(6 * kRows), b(6 * kRows), y_a(kN), y_b(kN);
    table.dot[index()](strided, kN, x.views.data(), 6, a.data(), kRows);
    table.dot[index()](scattered.Set(kRows), kN, x.views.data(), 6, b.data(), kRows);
    EXPECT_TRUE(SameBits(a, b));
    EXPECT_TRUE(SameBits(ScalarDot(scattered.row(kRows - 1), kN, x.views[5]), b.back()));
    table.axpy[index()](strided, kN, a.data(), 0, kN, y_a.data());
    table.axpy[index()](scattered.Set(kRows), kN, a.data(), 0, kN, y_b.data());
    EXPECT_TRUE(SameBits(y_a, y_b));
  });
}

TEST_P(KernelsTest, DotIsWithinRoundingOfADoublePrecisionDot) {
  Random random(4);
  for (const size_t n : Sizes()) {
    SCOPED_TRACE(n);
    const TestRows rows(type(), n, 1, Fill::kRandom, random);
    const TestVectors x(n, 1, Fill::kRandom, random);
    std::vector<float> w(n);
    DecodeRow(type(), {rows.row(0), RowBytes(type(), n)}, w);
    double exact = 0, norm = 0, quantisation = 0;
    for (size_t i = 0; i < n; ++i) {
      exact += double{w[i]} * x.vectors[0].f[i];
      norm += std::fabs(double{w[i]} * x.vectors[0].f[i]);
      // A quant is at most half a step (plus its own rounding) away from its float.
      if (IsQuantised(type())) {
        quantisation += std::fabs(w[i]) * x.vectors[0].scale[i / kQuantBlock] * 0.50001;
      }
    }
    // Each term passes at most n/16 + 1 additions in its lane, 4 in the fold and 3 products.
    const double rounding = (static_cast<double>(n) / 16 + 8) * kEpsilon * (norm + quantisation);
    EXPECT_NEAR(ScalarDot(rows.row(0), n, x.views[0]), exact, rounding + quantisation);
  }
}

TEST_P(KernelsTest, AxpyOfAnyRowsAndRangeEqualsTheScalarOneBitForBit) {
  constexpr size_t kMax = 9;
  Random random(5);
  for (const size_t n : Sizes()) {
    for (const Fill fill : kFills) {
      SCOPED_TRACE(testing::Message() << "n " << n << ", fill " << static_cast<int>(fill));
      const TestRows rows(type(), n, kMax, fill, random);
      std::vector<float> start(n), c(kMax);
      for (float& y : start) y = random.Normal();
      for (float& v : c) v = random.Below(3) ? random.Float(fill) : 0.0f;
      for (size_t n_rows = 0; n_rows <= kMax; ++n_rows) {
        const size_t begin = 128 * static_cast<size_t>(random.Below(static_cast<int>(n / 128) + 1));
        const size_t end = std::min(
            n, begin + 128 * static_cast<size_t>(random.Below(static_cast<int>(n / 128) + 2)));
        std::vector<float> expected = start;
        ScalarKernels().axpy[index()](rows.Set(n_rows), n, c.data(), begin, end, expected.data());
        for (size_t j = 0; j < n; ++j) {
          if (j >= begin && j < end) continue;
          ASSERT_TRUE(SameBits(start[j], expected[j])) << "outside the range";
        }
        ForEachTable([&](const KernelTable& table) {
          std::vector<float> y = start;
          table.axpy[index()](rows.Set(n_rows), n, c.data(), begin, end, y.data());
          ASSERT_TRUE(SameBits(expected, y)) << n_rows << " rows, " << begin << " to " << end;
        });
      }
    }
  }
}

TEST_P(KernelsTest, AxpyInPartsOfRowsAndElementsEqualsAxpyInOne) {
  constexpr size_t kN = 480, kRows = 13;
  Random random(6);
  const TestRows rows(type(), kN, kRows, Fill::kRandom, random);
  std::vector<float> c(kRows);
  for (float& v : c) v = random.Normal();
  ForEachTable([&](const KernelTable& table) {
    std::vector<float> whole(kN), parts(kN);
    table.axpy[index()](rows.Set(kRows), kN, c.data(), 0, kN, whole.data());
    for (const auto& [begin, end] : {std::pair<size_t, size_t>{256, kN}, {0, 128}, {128, 256}}) {
      table.axpy[index()](rows.Set(5), kN, c.data(), begin, end, parts.data());
      RowSet rest = rows.Set(kRows);
      rest.pointers += 5;
      rest.n_rows -= 5;
      table.axpy[index()](rest, kN, c.data() + 5, begin, end, parts.data());
    }
    EXPECT_TRUE(SameBits(whole, parts));
  });
}

TEST_P(KernelsTest, AxpySkipsRowsWithAZeroCoefficientWhateverTheyHold) {
  constexpr size_t kN = 96;
  Random random(7);
  const TestRows rows(type(), kN, 6, Fill::kInfinite, random);
  const std::vector<float> c = {0.0f, -0.0f, 0.0f, 0.0f, -0.0f, 0.0f};
  std::vector<float> start(kN, -0.0f);
  ForEachTable([&](const KernelTable& table) {
    std::vector<float> y = start;
    table.axpy[index()](rows.Set(6), kN, c.data(), 0, kN, y.data());
    EXPECT_TRUE(SameBits(start, y));
  });
}

TEST_P(KernelsTest, AxpyIsWithinRoundingOfADoublePrecisionSum) {
  constexpr size_t kN = 160, kRows = 20;
  Random random(8);
  const TestRows rows(type(), kN, kRows, Fill::kRandom, random);
  std::vector<float> c(kRows), y(kN), w(kN);
  std::vector<double> exact(kN), norm(kN);
  for (size_t r = 0; r < kRows; ++r) {
    c[r] = random.Normal();
    DecodeRow(type(), {rows.row(r), RowBytes(type(), kN)}, w);
    for (size_t j = 0; j < kN; ++j) {
      exact[j] += double{c[r]} * w[j];
      norm[j] += std::fabs(double{c[r]} * w[j]);
    }
  }
  ScalarKernels().axpy[index()](rows.Set(kRows), kN, c.data(), 0, kN, y.data());
  for (size_t j = 0; j < kN; ++j) {
    EXPECT_NEAR(y[j], exact[j], (kRows + 3) * kEpsilon * norm[j]) << j;
  }
}

INSTANTIATE_TEST_SUITE_P(WeightTypes, KernelsTest,
                         testing::Values(WeightType::kF32, WeightType::kF16, WeightType::kQ8,
                                         WeightType::kQ4),
                         [](const auto& param) {
                           return std::string(WeightTypeName(param.param));
                         });

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
