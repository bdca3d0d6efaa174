// The reference: one element at a time, in the order that kernels.h writes down. Every other table
// is tested against this one, bit for bit.
#include <cmath>
#include <cstring>
#include <limits>

#include "layout/weight_type.h"
#include "runtime/kernels/kernels.h"

namespace sluice {
namespace {

struct Lanes {
  float sum[16] = {};

  float Fold() {
    for (int width = 8; width >= 1; width /= 2) {
      for (int l = 0; l < width; ++l) sum[l] += sum[l + width];
    }
    return sum[0];
  }
};

template <typename T>
T Load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

struct F32Row {
  static float Weight(const std::byte* row, size_t i) { return Load<float>(row + 4 * i); }
};

struct F16Row {
  static float Weight(const std::byte* row, size_t i) {
    return HalfToFloat(Load<uint16_t>(row + 2 * i));
  }
};

struct Q8Row {
  static void Quants(const std::byte* row, size_t /*n*/, size_t block, int* q) {
    for (size_t i = 0; i < kQuantBlock; ++i) q[i] = Load<int8_t>(row + block * kQuantBlock + i);
  }
  static float Scale(const std::byte* row, size_t n, size_t block) {
    return HalfToFloat(Load<uint16_t>(row + n + 2 * block));
  }
};

struct Q4Row {
  static void Quants(const std::byte* row, size_t n, size_t block, int* q) {
    // The nibble group that holds the block: 128 elements, at the end of the row 64, then 32.
    size_t first = block * kQuantBlock / 128 * 128;
    size_t group = 128;
    if (first + 128 > n) {
      group = n - first >= 64 ? 64 : 32;
      if (group == 64 && block * kQuantBlock >= first + 64) {
        first += 64;
        group = 32;
      }
    }
    const std::byte* bytes = row + first / 2;
    for (size_t i = 0; i < kQuantBlock; ++i) {
      const size_t j = block * kQuantBlock + i - first;  // position in the group
      const auto byte = static_cast<unsigned>(bytes[j % (group / 2)]);
      q[i] = static_cast<int>(j < group / 2 ? byte & 15 : byte >> 4) - 8;
    }
  }
  static float Scale(const std::byte* row, size_t n, size_t block) {
    return HalfToFloat(Load<uint16_t>(row + n / 2 + 2 * block));
  }
};

template <typename Row>
float DotFloats(const std::byte* row, size_t n, const VectorView& x) {
  Lanes lanes;
  for (size_t i = 0; i < n; ++i) lanes.sum[i % 16] += Row::Weight(row, i) * x.f[i];
  return lanes.Fold();
}

template <typename Row>
float DotQuants(const std::byte* row, size_t n, const VectorView& x) {
  Lanes lanes;
  for (size_t b = 0; b < n / kQuantBlock; ++b) {
    int q[kQuantBlock];
    Row::Quants(row, n, b, q);
    int32_t sum = 0;
    for (size_t i = 0; i < kQuantBlock; ++i) sum += q[i] * x.q[b * kQuantBlock + i];
    lanes.sum[b % 16] += static_cast<float>(sum) * (Row::Scale(row, n, b) * x.scale[b]);
  }
  return lanes.Fold();
}

template <float (*kDot)(const std::byte* row, size_t n, const VectorView& x)>
void DotRows(const RowSet& rows, size_t n, const VectorView* vectors, size_t n_vectors, float* out,
             size_t out_stride) {
  for (size_t r = 0; r < rows.n_rows; ++r) {
    for (size_t v = 0; v < n_vectors; ++v) {
      out[v * out_stride + r] = kDot(rows.row(r), n, vectors[v]);
    }
  }
}

template <typename Row>
void AxpyFloats(const RowSet& rows, size_t /*n*/, const float* c, size_t begin, size_t end,
                float* y) {
  for (size_t r = 0; r < rows.n_rows; ++r) {
    if (c[r] == 0.0f) continue;
    for (size_t j = begin; j < end; ++j) y[j] += c[r] * Row::Weight(rows.row(r), j);
  }
}

template <typename Row>
void AxpyQuants(const RowSet& rows, size_t n, const float* c, size_t begin, size_t end, float* y) {
  for (size_t r = 0; r < rows.n_rows; ++r) {
    if (c[r] == 0.0f) continue;
    for (size_t b = begin / kQuantBlock; b < end / kQuantBlock; ++b) {
      int q[kQuantBlock];
      Row::Quants(rows.row(r), n, b, q);
      const float scale = c[r] * Row::Scale(rows.row(r), n, b);
      for (size_t i = 0; i < kQuantBlock; ++i) {
        y[b * kQuantBlock + i] += scale * static_cast<float>(q[i]);
      }
    }
  }
}

void QuantizeBlock(const float* x, int8_t* q, float* scale, int32_t* sum) {
  float amax = 0.0f;
  bool finite = true;
  for (size_t i = 0; i < kQuantBlock; ++i) {
    finite = finite && std::isfinite(x[i]);
    amax = std::fmax(amax, std::fabs(x[i]));
  }
  const bool empty = !finite || amax < 0x1p-120f;
  const float inverse = empty ? 0.0f : 127.0f / amax;
  *scale = !finite ? std::numeric_limits<float>::quiet_NaN() : empty ? 0.0f : amax / 127.0f;
  *sum = 0;
  for (size_t i = 0; i < kQuantBlock; ++i) {
    q[i] = empty ? int8_t{0} : static_cast<int8_t>(std::lrint(x[i] * inverse));
    *sum += q[i];
  }
}

void Quantize(const float* x, size_t n, int8_t* q, float* scale, int32_t* block_sums) {
  for (size_t b = 0; b < n / kQuantBlock; ++b) {
    QuantizeBlock(x + b * kQuantBlock, q + b * kQuantBlock, scale + b, block_sums + b);
  }
}

constexpr KernelTable kTable = {
    .name = "scalar",
    .quantize = Quantize,
    .dot = {DotRows<DotFloats<F32Row>>, DotRows<DotFloats<F16Row>>, DotRows<DotQuants<Q8Row>>,
            DotRows<DotQuants<Q4Row>>},
    .axpy = {AxpyFloats<F32Row>, AxpyFloats<F16Row>, AxpyQuants<Q8Row>, AxpyQuants<Q4Row>},
};

}  // namespace

const KernelTable& ScalarKernels() { return kTable; }

}  // namespace sluice
