#include "predictor/dense_products.h"

#include <algorithm>

#include "layout/weight_type.h"

namespace sluice {

void DenseProducts::MultiplyTransposed(const float* a, size_t m, const float* b, size_t n, size_t k,
                                       float* out) {
  views_.resize(m);
  for (size_t i = 0; i < m; ++i) views_[i].f = a + i * k;
  RowSet rows;
  rows.base = reinterpret_cast<const std::byte*>(b);
  rows.stride = k * sizeof(float);
  rows.n_rows = n;
  constexpr size_t kGrain = 16;  // vectors, a multiple of what a kernel takes at once
  parallel_(m, kGrain, [&](size_t begin, size_t end) {
    kernels_.dot[static_cast<size_t>(WeightType::kF32)](rows, k, &views_[begin], end - begin,
                                                        out + begin * n, n);
  });
}

void DenseProducts::Transpose(const float* in, size_t rows, size_t columns, float* out) {
  constexpr size_t kTile = 16;  // a cache line each way
  parallel_(columns, 4 * kTile, [&](size_t begin, size_t end) {
    for (size_t c0 = begin; c0 < end; c0 += kTile) {
      const size_t c1 = std::min(c0 + kTile, end);
      for (size_t r0 = 0; r0 < rows; r0 += kTile) {
        const size_t r1 = std::min(r0 + kTile, rows);
        for (size_t c = c0; c < c1; ++c) {
          for (size_t r = r0; r < r1; ++r) out[c * rows + r] = in[r * columns + c];
        }
      }
    }
  });
}

}  // namespace sluice
