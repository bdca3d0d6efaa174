// Rows and vectors for the tests of kernels: random, extreme, tiny, zero and infinite values, at
// odd addresses; and what "the same bits" means.
#ifndef SLUICE_TESTS_KERNELS_TEST_DATA_H_
#define SLUICE_TESTS_KERNELS_TEST_DATA_H_

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
#include "runtime/kernels/kernels.h"

namespace sluice {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kEpsilon = 0x1p-24;  // relative error of one float rounding

inline bool IsQuantised(WeightType type) {
  return type == WeightType::kQ8 || type == WeightType::kQ4;
}

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
inline testing::AssertionResult SameBits(float expected, float got) {
  if (std::bit_cast<uint32_t>(expected) == std::bit_cast<uint32_t>(got) ||
      (std::isnan(expected) && std::isnan(got))) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << std::hexfloat << "expected " << expected << ", got " << got;
}

inline testing::AssertionResult SameBits(const std::vector<float>& expected,
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

}  // namespace sluice

#endif  // SLUICE_TESTS_KERNELS_TEST_DATA_H_
