// The loops over rows and vectors that the vector ISAs share. A file of one ISA includes this and
// fills in the inner loops. Everything here is in an unnamed namespace on purpose: each including
// file gets its own copy, compiled for its ISA (see isa_tables.h).
#ifndef SLUICE_RUNTIME_KERNELS_ROW_LOOPS_H_
#define SLUICE_RUNTIME_KERNELS_ROW_LOOPS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/kernels/kernels.h"

// For functions that pass arrays of registers: out of line these would go through memory.
#define SLUICE_INLINE [[gnu::always_inline]] inline

namespace sluice {
namespace {

constexpr size_t kBlock = 32;               // elements that share a scale: kQuantBlock
constexpr size_t kVectorsAtOnce = 4;        // a row is unpacked once for so many vectors
constexpr size_t kRowsAtOnce = 4;           // an AXPY pass over y adds so many rows
constexpr size_t kPrefetchBytes = 1 << 10;  // how far ahead rows are fetched at least
constexpr size_t kTileBytes = 64 << 10;     // rows that stay in cache while all vectors pass by

const std::byte* RowAt(const RowSet& rows, size_t r) {
  return rows.pointers != nullptr ? rows.pointers[r] : rows.base + r * rows.stride;
}

size_t Smaller(size_t a, size_t b) { return a < b ? a : b; }

// Asks for memory that will be needed soon; p may be anything.
inline void Prefetch(const std::byte* p, size_t bytes) {
  constexpr size_t kCacheLine = 64;
  for (size_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(p + at);
}

template <typename T>
T LoadAs(const void* p) {
  T v;
  memcpy(&v, p, sizeof(v));
  return v;
}

// Kernel::Dot<V>(row, n, vectors, out, out_stride) computes one row with V vectors. Rows are
// fetched ahead as a whole, since the hardware cannot foresee where a scattered one starts.
template <typename Kernel, int V>
void DotTile(const RowSet& rows, size_t first, size_t last, size_t n, const VectorView* vectors,
             float* out, size_t out_stride) {
  const size_t bytes = Kernel::RowBytes(n);
  const size_t distance = 1 + kPrefetchBytes / (bytes + 1);
  for (size_t r = first; r < last; ++r) {
    if (r + distance < rows.n_rows) Prefetch(RowAt(rows, r + distance), bytes);
    Kernel::template Dot<V>(RowAt(rows, r), n, vectors, out + r, out_stride);
  }
}

template <typename Kernel>
void DotRows(const RowSet& rows, size_t n, const VectorView* vectors, size_t n_vectors, float* out,
             size_t out_stride) {
  const size_t tile = 1 + kTileBytes / (Kernel::RowBytes(n) + 1);
  for (size_t first = 0; first < rows.n_rows; first += tile) {
    const size_t last = Smaller(first + tile, rows.n_rows);
    for (size_t v = 0; v < n_vectors; v += kVectorsAtOnce) {
      const VectorView* x = vectors + v;
      float* o = out + v * out_stride;
      switch (Smaller(n_vectors - v, kVectorsAtOnce)) {
        case 1:
          DotTile<Kernel, 1>(rows, first, last, n, x, o, out_stride);
          break;
        case 2:
          DotTile<Kernel, 2>(rows, first, last, n, x, o, out_stride);
          break;
        case 3:
          DotTile<Kernel, 3>(rows, first, last, n, x, o, out_stride);
          break;
        default:
          DotTile<Kernel, 4>(rows, first, last, n, x, o, out_stride);
      }
    }
  }
}

// Kernel::Axpy<R>(rows, c, n, begin, end, y) adds R rows in one pass over y, each element in the
// order of the rows.
template <typename Kernel>
void AxpyRows(const RowSet& rows, size_t n, const float* c, size_t begin, size_t end, float* y) {
  const std::byte* row[kRowsAtOnce];
  float coefficient[kRowsAtOnce];
  size_t count = 0;
  for (size_t r = 0; r < rows.n_rows; ++r) {
    if (c[r] == 0.0f) continue;
    row[count] = RowAt(rows, r);
    coefficient[count] = c[r];
    if (++count == kRowsAtOnce) {
      Kernel::template Axpy<4>(row, coefficient, n, begin, end, y);
      count = 0;
    }
  }
  switch (count) {
    case 1:
      return Kernel::template Axpy<1>(row, coefficient, n, begin, end, y);
    case 2:
      return Kernel::template Axpy<2>(row, coefficient, n, begin, end, y);
    case 3:
      return Kernel::template Axpy<3>(row, coefficient, n, begin, end, y);
    default:
      return;
  }
}

// The scale of a block for quantize and the factor that makes quants of it. A block whose quants
// are all zero has inverse == 0.
struct BlockScale {
  float scale;
  float inverse;
};

// amax_bits: the largest of the elements' bits without the sign. As integers, magnitudes are
// ordered like the floats, with infinity and NaN above them all.
BlockScale ScaleOfBlock(uint32_t amax_bits) {
  constexpr uint32_t kInfinity = 0x7f800000;
  const float amax = LoadAs<float>(&amax_bits);
  if (amax_bits >= kInfinity) return {.scale = __builtin_nanf(""), .inverse = 0.0f};
  if (amax < 0x1p-120f) return {.scale = 0.0f, .inverse = 0.0f};
  return {.scale = amax / 127.0f, .inverse = 127.0f / amax};
}

}  // namespace
}  // namespace sluice

#endif  // SLUICE_RUNTIME_KERNELS_ROW_LOOPS_H_
