// AVX-512 with VNNI: 16 float lanes in one register, 64 int8 products per instruction.
//
// Quantised dots take 16 blocks (512 elements) at a time: eight registers of two blocks each, made
// unsigned, go through VPDPBUSD; a tree of shuffles and adds turns the 8 x 16 partial sums into one
// register with a sum per block; the rest of the float work is then one instruction per 16 blocks.
// Rows of at most 8 q8 blocks, as predictors have, share one such step: two rows of 8 or four of 4.
// The end of a row runs through the same code with masked loads: what is absent adds +0, which
// changes no lane (a sum that started at +0 is never -0).
#include <immintrin.h>

#include "runtime/kernels/avx512_loads.h"
#include "runtime/kernels/avx512_products.h"
#include "runtime/kernels/isa_tables.h"
#include "runtime/kernels/row_loops.h"

namespace sluice {
namespace {

// The fold of kernels.h: l += l+8, l += l+4, l += l+2, l += l+1.
float Fold(__m512 lanes) {
  const __m256 l8 = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  const __m128 l4 = _mm_add_ps(_mm256_castps256_ps128(l8), _mm256_extractf128_ps(l8, 1));
  const __m128 l2 = _mm_add_ps(l4, _mm_movehl_ps(l4, l4));
  return _mm_cvtss_f32(_mm_add_ss(l2, _mm_movehdup_ps(l2)));
}

// ---- f32 and f16 ----

template <typename Weights>
struct FloatKernel {
  static size_t RowBytes(size_t n) { return n * Weights::kBytes; }

  template <int V>
  static void Dot(const std::byte* row, const std::byte* ahead, size_t n, const VectorView* x,
                  float* out, size_t out_stride) {
    Prefetch(ahead, RowBytes(n));
    __m512 lanes[V];
    for (int v = 0; v < V; ++v) lanes[v] = _mm512_setzero_ps();
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
      const __m512 w = Weights::Load(row + i * Weights::kBytes);
      for (int v = 0; v < V; ++v) {
        lanes[v] = _mm512_add_ps(lanes[v], _mm512_mul_ps(w, _mm512_loadu_ps(x[v].f + i)));
      }
    }
    if (i < n) {
      const __mmask16 mask = First16(n - i);
      const __m512 w = Weights::LoadFirst(mask, row + i * Weights::kBytes);
      for (int v = 0; v < V; ++v) {
        const __m512 xs = _mm512_maskz_loadu_ps(mask, x[v].f + i);
        lanes[v] = _mm512_add_ps(lanes[v], _mm512_mul_ps(w, xs));
      }
    }
    for (int v = 0; v < V; ++v) out[v * out_stride] = Fold(lanes[v]);
  }

  static void Axpy(const AxpyTile& tile, const AxpyTile& ahead, size_t /*n*/, size_t begin,
                   size_t end, float* y) {
    FetchColumns(ahead, begin * Weights::kBytes, (end - begin) * Weights::kBytes);
    size_t j = begin;
    for (; j + 64 <= end; j += 64) {
      __m512 sum[4];
      for (size_t k = 0; k < 4; ++k) sum[k] = _mm512_loadu_ps(y + j + 16 * k);
      for (size_t r = 0; r < tile.count; ++r) {
        const __m512 factor = _mm512_set1_ps(tile.c[r]);
        for (size_t k = 0; k < 4; ++k) {
          const __m512 w = Weights::Load(tile.row[r] + (j + 16 * k) * Weights::kBytes);
          sum[k] = _mm512_add_ps(sum[k], _mm512_mul_ps(factor, w));
        }
      }
      for (size_t k = 0; k < 4; ++k) _mm512_storeu_ps(y + j + 16 * k, sum[k]);
    }
    for (; j < end; j += 16) {
      const __mmask16 mask = First16(end - j);
      __m512 sum = _mm512_maskz_loadu_ps(mask, y + j);
      for (size_t r = 0; r < tile.count; ++r) {
        const __m512 w = Weights::LoadFirst(mask, tile.row[r] + j * Weights::kBytes);
        sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_set1_ps(tile.c[r]), w));
      }
      _mm512_mask_storeu_ps(y + j, mask, sum);
    }
  }
};

// ---- q8 and q4 ----

// s[i] holds 8 partial sums of block 2i, then 8 of block 2i + 1. Lane b of the result is the sum of
// block b.
SLUICE_INLINE __m512i SumBlocks(const __m512i (&s)[8]) {
  __m512i quarter[4];  // a block in each 128-bit lane
  for (int k = 0; k < 4; ++k) {
    quarter[k] = _mm512_add_epi32(_mm512_shuffle_i32x4(s[2 * k], s[2 * k + 1], 0x88),
                                  _mm512_shuffle_i32x4(s[2 * k], s[2 * k + 1], 0xdd));
  }
  __m512i half[2];
  for (int k = 0; k < 2; ++k) {
    half[k] = _mm512_add_epi32(_mm512_unpacklo_epi32(quarter[2 * k], quarter[2 * k + 1]),
                               _mm512_unpackhi_epi32(quarter[2 * k], quarter[2 * k + 1]));
  }
  const __m512i whole = _mm512_add_epi32(_mm512_unpacklo_epi64(half[0], half[1]),
                                         _mm512_unpackhi_epi64(half[0], half[1]));
  // 128-bit lane j now holds blocks j, 4 + j, 8 + j, 12 + j.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, whole);
}

template <typename Weights>
struct QuantDot {
  static size_t RowBytes(size_t n) { return Weights::QuantBytes(n) + n / kBlock * 2; }

  // The 16 terms that blocks b .. b+15 add to the lanes.
  SLUICE_INLINE static __m512 Terms(const __m512i (&partial)[8], __m512i x_sums, __m512 w_scale,
                                    __m512 x_scale) {
    const __m512i sums =
        _mm512_sub_epi32(SumBlocks(partial), _mm512_slli_epi32(x_sums, Weights::kOffsetBits));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_mul_ps(w_scale, x_scale));
  }

  template <int V>
  static void Dot(const std::byte* row, const std::byte* ahead, size_t n, const VectorView* x,
                  float* out, size_t out_stride) {
    const std::byte* scales = row + Weights::QuantBytes(n);
    const size_t n_blocks = n / kBlock;
    __m512 lanes[V];
    for (int v = 0; v < V; ++v) lanes[v] = _mm512_setzero_ps();
    __m512i w[8];
    __m512i partial[8];
    size_t b = 0;
    for (; b + 16 <= n_blocks; b += 16) {
      Prefetch(ahead + RowBytes(b * kBlock), RowBytes(16 * kBlock));
      Weights::Load16Blocks(row + Weights::QuantBytes(b * kBlock), w);
      const __m512 w_scale = F16::Load(scales + 2 * b);
      for (int v = 0; v < V; ++v) {
        const int8_t* q = x[v].q + b * kBlock;
        for (int i = 0; i < 8; ++i) {
          partial[i] =
              _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[i], _mm512_loadu_si512(q + 64 * i));
        }
        lanes[v] = _mm512_add_ps(lanes[v], Terms(partial, _mm512_loadu_si512(x[v].block_sums + b),
                                                 w_scale, _mm512_loadu_ps(x[v].scale + b)));
      }
    }
    if (b < n_blocks) {
      const size_t blocks = n_blocks - b;
      Prefetch(ahead + RowBytes(b * kBlock), RowBytes(blocks * kBlock));
      const __mmask16 mask = First16(blocks);
      Weights::LoadLastBlocks(row + Weights::QuantBytes(b * kBlock), blocks, w);
      const __m512 w_scale = F16::LoadFirst(mask, scales + 2 * b);
      for (int v = 0; v < V; ++v) {
        const int8_t* q = x[v].q + b * kBlock;
        for (size_t i = 0; i < 8; ++i) {
          const size_t left = kBlock * blocks > 64 * i ? kBlock * blocks - 64 * i : 0;
          const __m512i xq = _mm512_maskz_loadu_epi8(First64(left), q + 64 * i);
          partial[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[i], xq);
        }
        lanes[v] = _mm512_add_ps(
            lanes[v], Terms(partial, _mm512_maskz_loadu_epi32(mask, x[v].block_sums + b), w_scale,
                            _mm512_maskz_loadu_ps(mask, x[v].scale + b)));
      }
    }
    for (int v = 0; v < V; ++v) out[v * out_stride] = Fold(lanes[v]);
  }
};

// Rows of at most kBlocks blocks with one vector. What lies in the lanes of a row is what Dot has
// in its first kBlocks lanes, and the fold of those is the same, since Dot's others are +0.
template <size_t kBlocks>
struct ShortQ8Rows {
  static_assert(kBlocks == 4 || kBlocks == 8);
  static constexpr size_t kRows = 16 / kBlocks;      // that are computed together
  static constexpr size_t kRegisters = kBlocks / 2;  // of the quants of a row

  ShortQ8Rows(size_t n, const VectorView& x) : n_(n), scales_((1u << n / kBlock) - 1) {
    for (size_t i = 0; i < kRegisters; ++i) {
      quants_[i] = First64(n > 64 * i ? n - 64 * i : 0);
      x_quants_[i] = _mm512_maskz_loadu_epi8(quants_[i], x.q + 64 * i);
    }
    const __m256i sums = _mm256_maskz_loadu_epi32(scales_, x.block_sums);
    const __m256 scale = _mm256_maskz_loadu_ps(scales_, x.scale);
    if constexpr (kBlocks == 8) {
      x_sums_ = _mm512_broadcast_i32x8(sums);
      x_scale_ = _mm512_broadcast_f32x8(scale);
    } else {
      x_sums_ = _mm512_broadcast_i32x4(_mm256_castsi256_si128(sums));
      x_scale_ = _mm512_broadcast_f32x4(_mm256_castps256_ps128(scale));
    }
  }

  // `count` rows, at most kRows, from `first` on.
  SLUICE_INLINE void Dot(const RowSet& rows, size_t first, size_t count, float* out) const {
    __m512i partial[8];
    __m128i scales[kRows];
    for (size_t r = 0; r < kRows; ++r) {
      // What a row too many computes is not stored.
      const std::byte* row = RowAt(rows, first + Smaller(r, count - 1));
      for (size_t i = 0; i < kRegisters; ++i) {
        const __m512i w = Q8::MakeUnsigned(_mm512_maskz_loadu_epi8(quants_[i], row + 64 * i));
        partial[r * kRegisters + i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w, x_quants_[i]);
      }
      scales[r] = _mm_maskz_loadu_epi16(scales_, row + n_);
    }
    const __m512 terms =
        QuantDot<Q8>::Terms(partial, x_sums_, _mm512_cvtph_ps(Joined(scales)), x_scale_);
    const __m512 sums = FoldRows(_mm512_add_ps(_mm512_setzero_ps(), terms));
    constexpr __mmask16 kFirstLanes = kBlocks == 8 ? 0x0101 : 0x1111;
    _mm_mask_storeu_ps(out + first, static_cast<__mmask8>((1u << count) - 1),
                       _mm512_castps512_ps128(_mm512_maskz_compress_ps(kFirstLanes, sums)));
  }

 private:
  static __m256i Joined(const __m128i (&scales)[kRows]) {
    if constexpr (kBlocks == 8) {
      return _mm256_set_m128i(scales[1], scales[0]);
    } else {
      return _mm256_set_m128i(_mm_unpacklo_epi64(scales[2], scales[3]),
                              _mm_unpacklo_epi64(scales[0], scales[1]));
    }
  }
  // The sum of each row in its first lane.
  static __m512 FoldRows(__m512 lanes) {
    if constexpr (kBlocks == 8) {  // l += l+4
      lanes = _mm512_add_ps(lanes, _mm512_shuffle_f32x4(lanes, lanes, 0xb1));
    }
    lanes = _mm512_add_ps(lanes, _mm512_permute_ps(lanes, 0x4e));  // l += l+2
    return _mm512_add_ps(lanes, _mm512_movehdup_ps(lanes));
  }

  const size_t n_;
  const __mmask8 scales_;  // of a row
  __mmask64 quants_[kRegisters];
  __m512i x_quants_[kRegisters];
  __m512i x_sums_;
  __m512 x_scale_;
};

template <size_t kBlocks>
void DotShortRows(const RowSet& rows, size_t n, const VectorView& x, float* out) {
  constexpr size_t kRows = ShortQ8Rows<kBlocks>::kRows;
  const ShortQ8Rows<kBlocks> kernel(n, x);
  const size_t bytes = QuantDot<Q8>::RowBytes(n);
  const size_t distance = 1 + kPrefetchBytes / (bytes + 1);
  for (size_t r = 0; r < rows.n_rows; r += kRows) {
    const size_t count = Smaller(kRows, rows.n_rows - r);
    for (size_t ahead = r + distance; ahead < Smaller(r + distance + kRows, rows.n_rows); ++ahead) {
      Prefetch(RowAt(rows, ahead), bytes);
    }
    kernel.Dot(rows, r, count, out);
  }
}

void DotQ8Rows(const RowSet& rows, size_t n, const VectorView* x, size_t n_vectors, float* out,
               size_t out_stride) {
  if (n_vectors != 1 || n > 8 * kBlock) {
    return MultiplyRows<TransposedQ8, QuantDot<Q8>>(rows, n, x, n_vectors, out, out_stride);
  }
  return n > 4 * kBlock ? DotShortRows<8>(rows, n, *x, out) : DotShortRows<4>(rows, n, *x, out);
}

struct QuantFactors {
  static void SetFactors(const std::byte* scales, size_t n_blocks, float c, float* factors) {
    for (size_t b = 0; b < n_blocks; b += 16) {
      const __mmask16 mask = First16(n_blocks - b);
      const __m512 w_scale = F16::LoadFirst(mask, scales + 2 * b);
      _mm512_mask_storeu_ps(factors + b, mask, _mm512_mul_ps(_mm512_set1_ps(c), w_scale));
    }
  }
};

struct Q8Axpy : QuantFactors, Q8 {
  template <size_t kGroup>
  SLUICE_INLINE static void AddGroup(const AxpyTile& tile, size_t at, const StripFactors& factors,
                                     size_t block, float* y) {
    constexpr size_t kRegisters = kGroup / 16;
    __m512 sum[kRegisters];
    for (size_t k = 0; k < kRegisters; ++k) sum[k] = _mm512_loadu_ps(y + 16 * k);
    for (size_t r = 0; r < tile.count; ++r) {
      for (size_t k = 0; k < kRegisters; ++k) {
        const __m512 factor = _mm512_set1_ps(factors[r][block + k / 2]);
        const __m512i w = _mm512_cvtepi8_epi32(Load128(tile.row[r] + at + 16 * k));
        sum[k] = _mm512_add_ps(sum[k], _mm512_mul_ps(factor, _mm512_cvtepi32_ps(w)));
      }
    }
    for (size_t k = 0; k < kRegisters; ++k) _mm512_storeu_ps(y + 16 * k, sum[k]);
  }
};

struct Q4Axpy : QuantFactors, Q4 {
  // A permutation looks up all 16 products of a block's factor by nibble, which saves the
  // conversion to float and its multiplication.
  template <size_t kGroup>
  SLUICE_INLINE static void AddGroup(const AxpyTile& tile, size_t at, const StripFactors& factors,
                                     size_t block, float* y) {
    constexpr size_t kRegisters = kGroup / 16;
    constexpr size_t kHalf = kRegisters / 2;  // of low nibbles, then as many of high ones
    const __m512 values = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    __m512 sum[kRegisters];
    for (size_t k = 0; k < kRegisters; ++k) sum[k] = _mm512_loadu_ps(y + 16 * k);
    for (size_t r = 0; r < tile.count; ++r) {
      const float* f = factors[r] + block;
      for (size_t k = 0; k < kHalf; ++k) {
        const __m512i low = _mm512_cvtepu8_epi32(Load128(tile.row[r] + at + 16 * k));
        const __m512i high = _mm512_srli_epi32(low, 4);  // permutations use 4 bits of an index
        const __m512 of_low = _mm512_mul_ps(_mm512_set1_ps(f[k / 2]), values);
        const __m512 of_high = _mm512_mul_ps(_mm512_set1_ps(f[(kHalf + k) / 2]), values);
        sum[k] = _mm512_add_ps(sum[k], _mm512_permutexvar_ps(low, of_low));
        sum[kHalf + k] = _mm512_add_ps(sum[kHalf + k], _mm512_permutexvar_ps(high, of_high));
      }
    }
    for (size_t k = 0; k < kRegisters; ++k) _mm512_storeu_ps(y + 16 * k, sum[k]);
  }
};

void Quantize(const float* x, size_t n, int8_t* q, float* scale, int32_t* block_sums) {
  for (size_t b = 0; b < n / kBlock; ++b) {
    const __m512 x0 = _mm512_loadu_ps(x + b * kBlock);
    const __m512 x1 = _mm512_loadu_ps(x + b * kBlock + 16);
    const __m512i amax = _mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(x0)),
                                          _mm512_castps_si512(_mm512_abs_ps(x1)));
    const BlockScale s = ScaleOfBlock(static_cast<uint32_t>(_mm512_reduce_max_epi32(amax)));
    scale[b] = s.scale;
    // Masked off where all quants are zero: infinity times zero has no integer.
    const __mmask16 keep = s.inverse != 0.0f ? 0xffff : 0;
    const __m512 inverse = _mm512_set1_ps(s.inverse);
    const __m512i q0 = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(x0, inverse));
    const __m512i q1 = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(x1, inverse));
    auto* bytes = reinterpret_cast<__m128i*>(q + b * kBlock);
    _mm_storeu_si128(bytes, _mm512_cvtepi32_epi8(q0));
    _mm_storeu_si128(bytes + 1, _mm512_cvtepi32_epi8(q1));
    block_sums[b] = _mm512_reduce_add_epi32(_mm512_add_epi32(q0, q1));
  }
}

constexpr KernelTable kTable = {
    .name = "avx512-vnni",
    .quantize = Quantize,
    .dot = {DotRows<FloatKernel<F32>>, DotRows<FloatKernel<F16>>, DotQ8Rows,
            MultiplyRows<TransposedQ4, QuantDot<Q4>>},
    .axpy = {AxpyRows<FloatKernel<F32>>, AxpyRows<FloatKernel<F16>>, AxpyRows<QuantAxpy<Q8Axpy>>,
             AxpyRows<QuantAxpy<Q4Axpy>>},
};

}  // namespace

const KernelTable& Avx512VnniKernels() { return kTable; }

}  // namespace sluice
