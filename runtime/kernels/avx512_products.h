// Products of many quantised rows with many vectors on AVX-512 VNNI. 16 rows are computed together,
// one in each 32-bit lane: their quants are transposed once for all vectors, a step of VPDPBUSD
// then takes 4 elements of every row with the same 4 of a vector, and no lane has to be summed up
// until the end. The sums and their order are those of kernels.h.
#ifndef SLUICE_RUNTIME_KERNELS_AVX512_PRODUCTS_H_
#define SLUICE_RUNTIME_KERNELS_AVX512_PRODUCTS_H_

#include <immintrin.h>

#include "runtime/kernels/avx512_loads.h"
#include "runtime/kernels/row_loops.h"

namespace sluice {
namespace {

constexpr size_t kTileRows = 16;
constexpr size_t kTileVectors = 32;      // whose sums are kept at a time
constexpr size_t kWorthTransposing = 6;  // vectors, from which on it is faster than row by row

// t[i] of the result has element i of each register.
SLUICE_INLINE void Transpose(__m512i (&t)[16]) {
  __m512i u[16];
  for (int i = 0; i < 16; i += 2) {
    u[i] = _mm512_unpacklo_epi32(t[i], t[i + 1]);
    u[i + 1] = _mm512_unpackhi_epi32(t[i], t[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    t[i] = _mm512_unpacklo_epi64(u[i], u[i + 2]);
    t[i + 1] = _mm512_unpackhi_epi64(u[i], u[i + 2]);
    t[i + 2] = _mm512_unpacklo_epi64(u[i + 1], u[i + 3]);
    t[i + 3] = _mm512_unpackhi_epi64(u[i + 1], u[i + 3]);
  }
  for (int i = 0; i < 16; i += 8) {
    for (int k = i; k < i + 4; ++k) {
      u[k] = _mm512_shuffle_i32x4(t[k], t[k + 4], 0x88);
      u[k + 4] = _mm512_shuffle_i32x4(t[k], t[k + 4], 0xdd);
    }
  }
  for (int i = 0; i < 8; ++i) {
    t[i] = _mm512_shuffle_i32x4(u[i], u[i + 8], 0x88);
    t[i + 8] = _mm512_shuffle_i32x4(u[i], u[i + 8], 0xdd);
  }
}

// 16 blocks of 16 rows, quants unsigned.
struct TransposedBlocks {
  alignas(64) std::byte quants[16][8][64];  // [block][4 elements][row x element]
  alignas(64) float scales[16][kTileRows];  // [block][row]

  // Blocks [first, first + n_blocks) of rows of n elements.
  template <typename Weights>
  void Load(const std::byte* const (&rows)[kTileRows], size_t n, size_t first, size_t n_blocks) {
    std::byte* to = quants[0][0];
    for (size_t b = 0; b < n_blocks;) {
      const size_t blocks = Weights::BlocksOfGroup(n_blocks - b);
      const __mmask64 mask = First64(Weights::QuantBytes(blocks * kBlock));
      __m512i t[16];
      for (size_t r = 0; r < kTileRows; ++r) {
        const std::byte* from = rows[r] + Weights::QuantBytes((first + b) * kBlock);
        t[r] = _mm512_maskz_loadu_epi8(mask, from);
      }
      Transpose(t);
      Weights::StoreGroup(t, blocks, to);
      to += blocks * sizeof(quants[0]);
      b += blocks;
    }
    LoadScales(rows, Weights::QuantBytes(n) + 2 * first, First16(n_blocks));
  }

 private:
  void LoadScales(const std::byte* const (&rows)[kTileRows], size_t at, __mmask16 mask) {
    __m512i t[16];
    for (size_t r = 0; r < kTileRows; ++r) {
      t[r] = _mm512_castps_si512(F16::LoadFirst(mask, rows[r] + at));
    }
    Transpose(t);
    for (size_t b = 0; b < 16; ++b) _mm512_store_si512(scales[b], t[b]);
  }
};

struct TransposedQ8 : Q8 {
  static size_t BlocksOfGroup(size_t most) { return Smaller(most, 2); }
  SLUICE_INLINE static void StoreGroup(const __m512i (&t)[16], size_t blocks, std::byte* to) {
    for (size_t i = 0; i < 8 * blocks; ++i) _mm512_store_si512(to + 64 * i, MakeUnsigned(t[i]));
  }
};

struct TransposedQ4 : Q4 {
  static size_t BlocksOfGroup(size_t most) { return most >= 4 ? 4 : Smaller(most, 2); }
  // The low nibbles are the first half of a group.
  SLUICE_INLINE static void StoreGroup(const __m512i (&t)[16], size_t blocks, std::byte* to) {
    const size_t half = 4 * blocks;
    for (size_t i = 0; i < half; ++i) {
      _mm512_store_si512(to + 64 * i, Low(t[i]));
      _mm512_store_si512(to + 64 * (half + i), High(t[i]));
    }
  }
};

// The lanes of kernels.h: [lane][vector][row].
using TileSums = float[16][kTileVectors][kTileRows];

SLUICE_INLINE __m512i Broadcast4(const void* p) { return _mm512_set1_epi32(LoadAs<int32_t>(p)); }

// Adds what block `block` of the rows, in w, gives with each vector.
template <int kOffsetBits>
SLUICE_INLINE void AddBlock(const std::byte (&quants)[8][64], const float* scales, size_t block,
                            const VectorView* x, size_t n_vectors, float (*sums)[kTileRows]) {
  __m512i w[8];
  for (int i = 0; i < 8; ++i) w[i] = _mm512_load_si512(quants[i]);
  const __m512 w_scale = _mm512_load_ps(scales);
  for (size_t v = 0; v < n_vectors; ++v) {
    const int8_t* q = x[v].q + block * kBlock;
    __m512i sum = _mm512_setzero_si512(), more = sum;  // two chains, to wait less for each step
    for (int i = 0; i < 4; ++i) {
      sum = _mm512_dpbusd_epi32(sum, w[i], Broadcast4(q + 4 * i));
      more = _mm512_dpbusd_epi32(more, w[4 + i], Broadcast4(q + 16 + 4 * i));
    }
    const __m512i x_sum = _mm512_slli_epi32(Broadcast4(x[v].block_sums + block), kOffsetBits);
    sum = _mm512_add_epi32(sum, _mm512_sub_epi32(more, x_sum));
    const __m512 scale = _mm512_mul_ps(w_scale, _mm512_set1_ps(x[v].scale[block]));
    const __m512 term = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
    _mm512_store_ps(sums[v], _mm512_add_ps(_mm512_load_ps(sums[v]), term));
  }
}

// 16 rows with at most kTileVectors vectors.
template <typename Weights>
void MultiplyTile(const std::byte* const (&rows)[kTileRows], size_t n, const VectorView* x,
                  size_t n_vectors, float* out, size_t out_stride) {
  TransposedBlocks blocks;
  alignas(64) TileSums sums;
  for (auto& lane : sums) {
    for (size_t v = 0; v < n_vectors; ++v) _mm512_store_ps(lane[v], _mm512_setzero_ps());
  }
  const size_t n_blocks = n / kBlock;
  for (size_t first = 0; first < n_blocks; first += 16) {
    const size_t count = Smaller(16, n_blocks - first);
    blocks.Load<Weights>(rows, n, first, count);
    for (size_t b = 0; b < count; ++b) {
      AddBlock<Weights::kOffsetBits>(blocks.quants[b], blocks.scales[b], first + b, x, n_vectors,
                                     sums[b]);
    }
  }
  for (size_t v = 0; v < n_vectors; ++v) {
    __m512 s[16];
    for (size_t l = 0; l < 16; ++l) s[l] = _mm512_load_ps(sums[l][v]);
    for (size_t half = 8; half > 0; half /= 2) {
      for (size_t l = 0; l < half; ++l) s[l] = _mm512_add_ps(s[l], s[l + half]);
    }
    _mm512_storeu_ps(out + v * out_stride, s[0]);
  }
}

// KernelTable::dot. Where there are too few rows or vectors to share the work of transposing, and
// for the last rows, Kernel does it as DotRows says.
template <typename Weights, typename Kernel>
void MultiplyRows(const RowSet& rows, size_t n, const VectorView* x, size_t n_vectors, float* out,
                  size_t out_stride) {
  size_t r = 0;
  if (n_vectors >= kWorthTransposing) {
    for (; r + kTileRows <= rows.n_rows; r += kTileRows) {
      const std::byte* tile[kTileRows];
      for (size_t i = 0; i < kTileRows; ++i) tile[i] = RowAt(rows, r + i);
      for (size_t v = 0; v < n_vectors; v += kTileVectors) {
        MultiplyTile<Weights>(tile, n, x + v, Smaller(n_vectors - v, kTileVectors),
                              out + v * out_stride + r, out_stride);
      }
    }
  }
  RowSet rest = rows;
  rest.n_rows -= r;
  if (rows.pointers != nullptr) {
    rest.pointers += r;
  } else {
    rest.base += r * rows.stride;
  }
  DotRows<Kernel>(rest, n, x, n_vectors, out + r, out_stride);
}

}  // namespace
}  // namespace sluice

#endif  // SLUICE_RUNTIME_KERNELS_AVX512_PRODUCTS_H_
