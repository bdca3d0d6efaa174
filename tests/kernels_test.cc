// Dots and AXPY of every table against the scalar ones, bit for bit, and against double precision.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels_test_data.h"

namespace sluice {
namespace {

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

// As many as tables may take together, and some more.
TEST_P(KernelsTest, DotsOfManyRowsWithManyVectorsEqualTheScalarOnesBitForBit) {
  constexpr size_t kRows = 39, kVectors = 37;
  Random random(7);
  for (const size_t n : Sizes()) {
    SCOPED_TRACE(n);
    const TestRows rows(type(), n, kRows, Fill::kRandom, random);
    const TestVectors x(n, kVectors, Fill::kRandom, random);
    std::vector<float> expected;
    for (const VectorView& view : x.views) {
      for (size_t r = 0; r < kRows; ++r) expected.push_back(ScalarDot(rows.row(r), n, view));
    }
    ForEachTable([&](const KernelTable& table) {
      std::vector<float> out(kRows * kVectors);
      table.dot[index()](rows.Set(kRows), n, x.views.data(), kVectors, out.data(), kRows);
      ASSERT_TRUE(SameBits(expected, out));
    });
  }
}

TEST_P(KernelsTest, DotsOfExtremeValuesEqualTheScalarOnesBitForBit) {
  constexpr size_t kRows = 17, kVectors = 8;
  Random random(2);
  for (const size_t n : Sizes()) {
    for (const Fill w_fill : kFills) {
      for (const Fill x_fill : kFills) {
        SCOPED_TRACE(testing::Message() << "n " << n << ", fills " << static_cast<int>(w_fill)
                                        << ", " << static_cast<int>(x_fill));
        const TestRows rows(type(), n, kRows, w_fill, random);
        const TestVectors x(n, kVectors, x_fill, random);
        std::vector<float> expected;
        for (const VectorView& view : x.views) {
          for (size_t r = 0; r < kRows; ++r) expected.push_back(ScalarDot(rows.row(r), n, view));
        }
        ForEachTable([&](const KernelTable& table) {
          for (const size_t n_vectors : {size_t{1}, kVectors}) {
            std::vector<float> out(kRows * n_vectors);
            table.dot[index()](rows.Set(kRows), n, x.views.data(), n_vectors, out.data(), kRows);
            ASSERT_TRUE(
                SameBits(std::vector<float>(expected.begin(), expected.begin() + out.size()), out));
          }
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

}  // namespace
}  // namespace sluice
