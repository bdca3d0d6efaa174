// How AVX-512 loads weights: the rows of each packing, whole and cut short by masks. In an unnamed
// namespace, as row_loops.h.
#ifndef SLUICE_RUNTIME_KERNELS_AVX512_LOADS_H_
#define SLUICE_RUNTIME_KERNELS_AVX512_LOADS_H_

#include <immintrin.h>

#include "runtime/kernels/row_loops.h"

namespace sluice {
namespace {

inline __m128i Load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

// The first `count` of 16 or 64 lanes; all of them if there are more.
inline __mmask16 First16(size_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << count) - 1);
}
inline __mmask64 First64(size_t count) {
  return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

struct F32 {
  static constexpr size_t kBytes = 4;
  static __m512 Load(const std::byte* p) { return _mm512_loadu_ps(p); }
  static __m512 LoadFirst(__mmask16 mask, const std::byte* p) {
    return _mm512_maskz_loadu_ps(mask, p);
  }
};

struct F16 {
  static constexpr size_t kBytes = 2;
  static __m512 Load(const std::byte* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static __m512 LoadFirst(__mmask16 mask, const std::byte* p) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p));
  }
};

struct Q8 {
  static constexpr int kOffsetBits = 7;  // a weight w is held as the unsigned byte w + 128
  static size_t QuantBytes(size_t n) { return n; }

  SLUICE_INLINE static void Load16Blocks(const std::byte* p, __m512i (&w)[8]) {
    for (int i = 0; i < 8; ++i) w[i] = MakeUnsigned(_mm512_loadu_si512(p + 64 * i));
  }
  SLUICE_INLINE static void LoadLastBlocks(const std::byte* p, size_t blocks, __m512i (&w)[8]) {
    for (size_t i = 0; i < 8; ++i) {
      const size_t at = 64 * i;
      const size_t left = kBlock * blocks > at ? kBlock * blocks - at : 0;
      w[i] = MakeUnsigned(_mm512_maskz_loadu_epi8(First64(left), p + at));
    }
  }
  static __m512i MakeUnsigned(__m512i w) {
    return _mm512_xor_si512(w, _mm512_set1_epi8(static_cast<char>(0x80)));
  }
};

struct Q4 {
  static constexpr int kOffsetBits = 3;  // a nibble is w + 8
  static size_t QuantBytes(size_t n) { return n / 2; }

  static __m512i Low(__m512i bytes) { return _mm512_and_si512(bytes, _mm512_set1_epi8(15)); }
  static __m512i High(__m512i bytes) { return Low(_mm512_srli_epi16(bytes, 4)); }

  SLUICE_INLINE static void LoadGroup(const std::byte* p, __m512i& low, __m512i& high) {
    const __m512i bytes = _mm512_loadu_si512(p);
    low = Low(bytes);
    high = High(bytes);
  }
  SLUICE_INLINE static void Load16Blocks(const std::byte* p, __m512i (&w)[8]) {
    for (int g = 0; g < 4; ++g) LoadGroup(p + 64 * g, w[2 * g], w[2 * g + 1]);
  }
  SLUICE_INLINE static void LoadLastBlocks(const std::byte* p, size_t blocks, __m512i (&w)[8]) {
    for (int i = 0; i < 8; ++i) w[i] = _mm512_setzero_si512();
    size_t i = 0;
    for (; blocks >= 4; blocks -= 4, i += 2, p += 64) LoadGroup(p, w[i], w[i + 1]);
    if (blocks >= 2) {  // a group of 64: 32 low nibbles, then 32 high ones
      const __m512i bytes = _mm512_maskz_loadu_epi8(First64(32), p);
      w[i] = _mm512_inserti64x4(Low(bytes), _mm512_castsi512_si256(High(bytes)), 1);
      blocks -= 2, i += 1, p += 32;
    }
    if (blocks == 1) {  // a group of 32
      const __m512i bytes = _mm512_maskz_loadu_epi8(First64(16), p);
      w[i] = _mm512_inserti32x4(Low(bytes), _mm512_castsi512_si128(High(bytes)), 1);
    }
  }
};

}  // namespace
}  // namespace sluice

#endif  // SLUICE_RUNTIME_KERNELS_AVX512_LOADS_H_
