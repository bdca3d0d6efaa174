// AVX2 with F16C: the 16 float lanes lie in two registers.
//
// Quantised dots take 8 blocks (256 elements) at a time, a register each: VPMADDUBSW gives 16-bit
// sums of two products, a tree of shuffles and adds makes one 32-bit sum per block, and the rest of
// the float work is one instruction per 8 blocks.
#include <immintrin.h>

#include "runtime/kernels/isa_tables.h"
#include "runtime/kernels/row_loops.h"

namespace sluice {
namespace {

__m256i Load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
__m128i Load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
__m128i Load64(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }

struct Lanes {
  __m256 low = _mm256_setzero_ps();   // lanes 0 .. 7
  __m256 high = _mm256_setzero_ps();  // lanes 8 .. 15

  // The fold of kernels.h: l += l+8, l += l+4, l += l+2, l += l+1.
  float Fold() const {
    const __m256 l8 = _mm256_add_ps(low, high);
    const __m128 l4 = _mm_add_ps(_mm256_castps256_ps128(l8), _mm256_extractf128_ps(l8, 1));
    const __m128 l2 = _mm_add_ps(l4, _mm_movehl_ps(l4, l4));
    return _mm_cvtss_f32(_mm_add_ss(l2, _mm_movehdup_ps(l2)));
  }
};

__m256 AddProduct(__m256 sum, __m256 a, __m256 b) {
  return _mm256_add_ps(sum, _mm256_mul_ps(a, b));
}

// ---- f32 and f16 ----

struct F32 {
  static constexpr size_t kBytes = 4;
  static __m256 Load8(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
  static float Load1(const void* p) { return LoadAs<float>(p); }
};

struct F16 {
  static constexpr size_t kBytes = 2;
  static __m256 Load8(const void* p) { return _mm256_cvtph_ps(Load128(p)); }
  static float Load1(const void* p) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(LoadAs<uint16_t>(p))));
  }
};

template <typename Weights>
struct FloatKernel {
  static size_t RowBytes(size_t n) { return n * Weights::kBytes; }

  template <int V>
  static void Dot(const std::byte* row, const std::byte* ahead, size_t n, const VectorView* x,
                  float* out, size_t out_stride) {
    Prefetch(ahead, RowBytes(n));
    Lanes lanes[V];
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
      const __m256 w_low = Weights::Load8(row + i * Weights::kBytes);
      const __m256 w_high = Weights::Load8(row + (i + 8) * Weights::kBytes);
      for (int v = 0; v < V; ++v) {
        lanes[v].low = AddProduct(lanes[v].low, w_low, _mm256_loadu_ps(x[v].f + i));
        lanes[v].high = AddProduct(lanes[v].high, w_high, _mm256_loadu_ps(x[v].f + i + 8));
      }
    }
    for (int v = 0; v < V; ++v) {
      if (i < n) AddLast(row + i * Weights::kBytes, x[v].f + i, n - i, lanes[v]);
      out[v * out_stride] = lanes[v].Fold();
    }
  }

  // The last 1 to 15 elements of a row.
  static void AddLast(const std::byte* w, const float* x, size_t count, Lanes& lanes) {
    float sums[16];
    _mm256_storeu_ps(sums, lanes.low);
    _mm256_storeu_ps(sums + 8, lanes.high);
    for (size_t l = 0; l < count; ++l) sums[l] += Weights::Load1(w + l * Weights::kBytes) * x[l];
    lanes.low = _mm256_loadu_ps(sums);
    lanes.high = _mm256_loadu_ps(sums + 8);
  }

  static void Axpy(const AxpyTile& tile, const AxpyTile& ahead, size_t /*n*/, size_t begin,
                   size_t end, float* y) {
    FetchColumns(ahead, begin * Weights::kBytes, (end - begin) * Weights::kBytes);
    size_t j = begin;
    for (; j + 32 <= end; j += 32) {
      __m256 sum[4];
      for (size_t k = 0; k < 4; ++k) sum[k] = _mm256_loadu_ps(y + j + 8 * k);
      for (size_t r = 0; r < tile.count; ++r) {
        const __m256 c = _mm256_set1_ps(tile.c[r]);
        for (size_t k = 0; k < 4; ++k) {
          const std::byte* w = tile.row[r] + (j + 8 * k) * Weights::kBytes;
          sum[k] = AddProduct(sum[k], c, Weights::Load8(w));
        }
      }
      for (size_t k = 0; k < 4; ++k) _mm256_storeu_ps(y + j + 8 * k, sum[k]);
    }
    for (; j < end; ++j) {
      for (size_t r = 0; r < tile.count; ++r) {
        y[j] += tile.c[r] * Weights::Load1(tile.row[r] + j * Weights::kBytes);
      }
    }
  }
};

// ---- q8 and q4 ----

// Sums the partial sums of 8 blocks, a block in each s[i], with `add` on lanes of 16 or 32 bits.
// 32-bit element b of the result belongs to block b.
template <typename Add>
SLUICE_INLINE __m256i MergeBlocks(const __m256i (&s)[8], Add add) {
  __m256i four[2];  // in each 128-bit lane one element of each of 4 blocks
  for (int k = 0; k < 2; ++k) {
    const __m256i a = add(_mm256_unpacklo_epi32(s[4 * k], s[4 * k + 1]),
                          _mm256_unpackhi_epi32(s[4 * k], s[4 * k + 1]));
    const __m256i b = add(_mm256_unpacklo_epi32(s[4 * k + 2], s[4 * k + 3]),
                          _mm256_unpackhi_epi32(s[4 * k + 2], s[4 * k + 3]));
    four[k] = add(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
  }
  return add(_mm256_permute2x128_si256(four[0], four[1], 0x20),
             _mm256_permute2x128_si256(four[0], four[1], 0x31));
}

__m256i WidenPairs(__m256i sums16) { return _mm256_madd_epi16(sums16, _mm256_set1_epi16(1)); }

struct Q8 {
  static size_t QuantBytes(size_t n) { return n; }

  SLUICE_INLINE static void Load8Blocks(const std::byte* p, size_t blocks, __m256i (&w)[8]) {
    for (size_t b = 0; b < 8; ++b) {
      w[b] = b < blocks ? Load256(p + kBlock * b) : _mm256_setzero_si256();
    }
  }

  // VPMADDUBSW wants one unsigned factor: |w| <= 128, and x takes w's sign. Two products are at
  // most 2 * 128 * 127, so they do not saturate 16 bits, but more of them need 32.
  SLUICE_INLINE static __m256i Partial(__m256i w, __m256i x) {
    return WidenPairs(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)));
  }
  SLUICE_INLINE static __m256i SumBlocks(const __m256i (&partial)[8], __m256i /*x_sums*/) {
    return MergeBlocks(partial, [](__m256i a, __m256i b) { return _mm256_add_epi32(a, b); });
  }
};

struct Q4 {
  static size_t QuantBytes(size_t n) { return n / 2; }

  static __m256i Low(__m256i bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(15)); }
  static __m256i High(__m256i bytes) { return Low(_mm256_srli_epi16(bytes, 4)); }

  SLUICE_INLINE static void Load8Blocks(const std::byte* p, size_t blocks, __m256i (&w)[8]) {
    size_t b = 0;
    for (; b + 4 <= blocks; b += 4, p += 64) {
      const __m256i first = Load256(p);
      const __m256i second = Load256(p + 32);
      w[b] = Low(first);
      w[b + 1] = Low(second);
      w[b + 2] = High(first);
      w[b + 3] = High(second);
    }
    if (b + 2 <= blocks) {  // a group of 64
      const __m256i bytes = Load256(p);
      w[b] = Low(bytes);
      w[b + 1] = High(bytes);
      b += 2, p += 32;
    }
    if (b < blocks) {  // a group of 32
      const __m128i bytes = Load128(p);
      w[b] = Low(_mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes));
      ++b;
    }
    for (; b < 8; ++b) w[b] = _mm256_setzero_si256();
  }

  // A whole block fits 16 bits: each of the 16 lanes ends as the sum of at most 16 products of a
  // nibble with |x| <= 127, and 16 * 15 * 127 < 2^15.
  SLUICE_INLINE static __m256i Partial(__m256i w, __m256i x) { return _mm256_maddubs_epi16(w, x); }
  SLUICE_INLINE static __m256i SumBlocks(const __m256i (&partial)[8], __m256i x_sums) {
    const __m256i sums =
        MergeBlocks(partial, [](__m256i a, __m256i b) { return _mm256_add_epi16(a, b); });
    return _mm256_sub_epi32(WidenPairs(sums), _mm256_slli_epi32(x_sums, 3));  // a nibble is w + 8
  }
};

template <typename Weights>
struct QuantDot {
  static size_t RowBytes(size_t n) { return Weights::QuantBytes(n) + n / kBlock * 2; }

  // Adds the terms of 8 blocks to 8 lanes.
  SLUICE_INLINE static __m256 AddTerms(__m256 lanes, const __m256i (&partial)[8], __m256i x_sums,
                                       __m256 w_scale, __m256 x_scale) {
    const __m256i sums = Weights::SumBlocks(partial, x_sums);
    return AddProduct(lanes, _mm256_cvtepi32_ps(sums), _mm256_mul_ps(w_scale, x_scale));
  }

  // Blocks b .. b+7 of a row.
  SLUICE_INLINE static __m256 Add8Blocks(__m256 lanes, const __m256i (&w)[8], __m256 w_scale,
                                         const VectorView& x, size_t b) {
    __m256i partial[8];
    for (int i = 0; i < 8; ++i) {
      partial[i] = Weights::Partial(w[i], Load256(x.q + (b + i) * kBlock));
    }
    return AddTerms(lanes, partial, Load256(x.block_sums + b), w_scale,
                    _mm256_loadu_ps(x.scale + b));
  }

  // The last 1 to 7 blocks, the rest as zeros: absent blocks add +0, which changes no lane (a sum
  // that started at +0 is never -0).
  SLUICE_INLINE static __m256 AddLastBlocks(__m256 lanes, const __m256i (&w)[8], __m256 w_scale,
                                            const VectorView& x, size_t b, size_t blocks) {
    __m256i partial[8];
    for (size_t i = 0; i < 8; ++i) {
      partial[i] = i < blocks ? Weights::Partial(w[i], Load256(x.q + (b + i) * kBlock))
                              : _mm256_setzero_si256();
    }
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(blocks)),
                                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return AddTerms(lanes, partial, _mm256_maskload_epi32(x.block_sums + b, mask), w_scale,
                    _mm256_maskload_ps(x.scale + b, mask));
  }

  template <int V>
  static void Dot(const std::byte* row, const std::byte* ahead, size_t n, const VectorView* x,
                  float* out, size_t out_stride) {
    Prefetch(ahead, RowBytes(n));
    const std::byte* scales = row + Weights::QuantBytes(n);
    const size_t n_blocks = n / kBlock;
    Lanes lanes[V];
    __m256i w[8];
    size_t b = 0;
    const auto add_8_blocks = [&](__m256 Lanes::*half) {
      Weights::Load8Blocks(row + Weights::QuantBytes(b * kBlock), 8, w);
      const __m256 w_scale = F16::Load8(scales + 2 * b);
      for (int v = 0; v < V; ++v) {
        lanes[v].*half = Add8Blocks(lanes[v].*half, w, w_scale, x[v], b);
      }
      b += 8;
    };
    const auto add_last_blocks = [&](__m256 Lanes::*half) {
      const size_t blocks = n_blocks - b;
      Weights::Load8Blocks(row + Weights::QuantBytes(b * kBlock), blocks, w);
      uint16_t halfs[8] = {};
      memcpy(halfs, scales + 2 * b, 2 * blocks);
      const __m256 w_scale = F16::Load8(halfs);
      for (int v = 0; v < V; ++v) {
        lanes[v].*half = AddLastBlocks(lanes[v].*half, w, w_scale, x[v], b, blocks);
      }
    };
    while (b + 16 <= n_blocks) {
      add_8_blocks(&Lanes::low);
      add_8_blocks(&Lanes::high);
    }
    if (b + 8 <= n_blocks) {
      add_8_blocks(&Lanes::low);
      if (b < n_blocks) add_last_blocks(&Lanes::high);
    } else if (b < n_blocks) {
      add_last_blocks(&Lanes::low);
    }
    for (int v = 0; v < V; ++v) out[v * out_stride] = lanes[v].Fold();
  }
};

struct QuantFactors {
  static void SetFactors(const std::byte* scales, size_t n_blocks, float c, float* factors) {
    size_t b = 0;
    for (; b + 8 <= n_blocks; b += 8) {
      const __m256 w_scale = F16::Load8(scales + 2 * b);
      _mm256_storeu_ps(factors + b, _mm256_mul_ps(_mm256_set1_ps(c), w_scale));
    }
    for (; b < n_blocks; ++b) factors[b] = c * F16::Load1(scales + 2 * b);
  }
};

struct Q8Axpy : QuantFactors, Q8 {
  template <size_t kGroup>
  SLUICE_INLINE static void AddGroup(const AxpyTile& tile, size_t at, const StripFactors& factors,
                                     size_t block, float* y) {
    for (size_t j = 0; j < kGroup; j += kBlock) {
      __m256 sum[4];
      for (size_t k = 0; k < 4; ++k) sum[k] = _mm256_loadu_ps(y + j + 8 * k);
      for (size_t r = 0; r < tile.count; ++r) {
        const __m256 factor = _mm256_broadcast_ss(&factors[r][block + j / kBlock]);
        for (size_t k = 0; k < 4; ++k) {
          const __m256i q = _mm256_cvtepi8_epi32(Load64(tile.row[r] + at + j + 8 * k));
          sum[k] = AddProduct(sum[k], factor, _mm256_cvtepi32_ps(q));
        }
      }
      for (size_t k = 0; k < 4; ++k) _mm256_storeu_ps(y + j + 8 * k, sum[k]);
    }
  }
};

struct Q4Axpy : QuantFactors, Q4 {
  // sum[0..1] += 16 low nibbles times their factor, sum[2..3] += the high ones.
  SLUICE_INLINE static void AddStrip(const std::byte* p, const float* low_factor,
                                     const float* high_factor, __m256 (&sum)[4]) {
    const __m256 offset = _mm256_set1_ps(8.0f);
    for (size_t k = 0; k < 2; ++k) {
      const __m256i bytes = _mm256_cvtepu8_epi32(Load64(p + 8 * k));
      const __m256i low = _mm256_and_si256(bytes, _mm256_set1_epi32(15));
      const __m256i high = _mm256_srli_epi32(bytes, 4);
      sum[k] = AddProduct(sum[k], _mm256_broadcast_ss(low_factor),
                          _mm256_sub_ps(_mm256_cvtepi32_ps(low), offset));
      sum[2 + k] = AddProduct(sum[2 + k], _mm256_broadcast_ss(high_factor),
                              _mm256_sub_ps(_mm256_cvtepi32_ps(high), offset));
    }
  }

  template <size_t kGroup>
  SLUICE_INLINE static void AddGroup(const AxpyTile& tile, size_t at, const StripFactors& factors,
                                     size_t block, float* y) {
    constexpr size_t kHalf = kGroup / 2;  // elements in low nibbles, then as many in high ones
    for (size_t j = 0; j < kHalf; j += 16) {
      float* low = y + j;
      float* high = y + kHalf + j;
      __m256 sum[4] = {_mm256_loadu_ps(low), _mm256_loadu_ps(low + 8), _mm256_loadu_ps(high),
                       _mm256_loadu_ps(high + 8)};
      for (size_t r = 0; r < tile.count; ++r) {
        const float* f = factors[r] + block;
        AddStrip(tile.row[r] + at + j, f + j / kBlock, f + (kHalf + j) / kBlock, sum);
      }
      _mm256_storeu_ps(low, sum[0]);
      _mm256_storeu_ps(low + 8, sum[1]);
      _mm256_storeu_ps(high, sum[2]);
      _mm256_storeu_ps(high + 8, sum[3]);
    }
  }
};

int32_t SumLanes(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}

int32_t MaxLane(__m256i v) {
  __m128i s = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}

void Quantize(const float* x, size_t n, int8_t* q, float* scale, int32_t* block_sums) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  for (size_t b = 0; b < n / kBlock; ++b) {
    __m256i amax = _mm256_setzero_si256();
    for (int k = 0; k < 4; ++k) {
      amax = _mm256_max_epi32(amax, _mm256_and_si256(Load256(x + b * kBlock + 8 * k), magnitude));
    }
    const BlockScale s = ScaleOfBlock(static_cast<uint32_t>(MaxLane(amax)));
    scale[b] = s.scale;
    // Masked off where all quants are zero: infinity times zero has no integer.
    const __m256i keep = _mm256_set1_epi32(s.inverse != 0.0f ? -1 : 0);
    __m256i quants[4];
    for (int k = 0; k < 4; ++k) {
      const __m256 scaled =
          _mm256_mul_ps(_mm256_loadu_ps(x + b * kBlock + 8 * k), _mm256_set1_ps(s.inverse));
      quants[k] = _mm256_and_si256(_mm256_cvtps_epi32(scaled), keep);
    }
    block_sums[b] = SumLanes(_mm256_add_epi32(_mm256_add_epi32(quants[0], quants[1]),
                                              _mm256_add_epi32(quants[2], quants[3])));
    // Packing works within 128-bit lanes: 4 quants of each of the 4 registers, then the other 4.
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(quants[0], quants[1]),
                                              _mm256_packs_epi32(quants[2], quants[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + b * kBlock),
                        _mm256_permutevar8x32_epi32(packed, order));
  }
}

constexpr KernelTable kTable = {
    .name = "avx2",
    .quantize = Quantize,
    .dot = {DotRows<FloatKernel<F32>>, DotRows<FloatKernel<F16>>, DotRows<QuantDot<Q8>>,
            DotRows<QuantDot<Q4>>},
    .axpy = {AxpyRows<FloatKernel<F32>>, AxpyRows<FloatKernel<F16>>, AxpyRows<QuantAxpy<Q8Axpy>>,
             AxpyRows<QuantAxpy<Q4Axpy>>},
};

}  // namespace

const KernelTable& Avx2Kernels() { return kTable; }

}  // namespace sluice
