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
constexpr size_t kRowsAtOnce = 8;           // an AXPY pass over y adds so many rows
constexpr size_t kPrefetchBytes = 4 << 10;  // how far ahead rows are fetched at least
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

// Kernel::Dot<V>(row, ahead, n, vectors, out, out_stride) computes one row with V vectors and, as
// it goes, fetches the row `ahead`, as long: the hardware cannot foresee where a scattered one
// starts, and a whole row asked for at once is more than a core can wait for.
template <typename Kernel, int V>
void DotTile(const RowSet& rows, size_t first, size_t last, size_t n, const VectorView* vectors,
             float* out, size_t out_stride) {
  const size_t distance = 1 + kPrefetchBytes / (Kernel::RowBytes(n) + 1);
  for (size_t r = first; r < last; ++r) {
    const std::byte* row = RowAt(rows, r);
    const std::byte* ahead = r + distance < rows.n_rows ? RowAt(rows, r + distance) : row;
    Kernel::template Dot<V>(row, ahead, n, vectors, out + r, out_stride);
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

// Rows that one pass over y adds, in this order, and those of the next pass, to be fetched on the
// way; of these any number may be missing.
struct AxpyTile {
  const std::byte* row[kRowsAtOnce];
  float c[kRowsAtOnce];
  size_t count = 0;

  // The next rows of `rows`, from *r on, whose coefficients are not 0.
  void Fill(const RowSet& rows, const float* coefficients, size_t* r) {
    for (count = 0; *r < rows.n_rows && count < kRowsAtOnce; ++*r) {
      if (coefficients[*r] == 0.0f) continue;
      row[count] = RowAt(rows, *r);
      c[count++] = coefficients[*r];
    }
  }
};

// Fetches the bytes [at, at + bytes) of each row.
inline void FetchColumns(const AxpyTile& tile, size_t at, size_t bytes) {
  for (size_t r = 0; r < tile.count; ++r) Prefetch(tile.row[r] + at, bytes);
}

// Kernel::Axpy(tile, ahead, n, begin, end, y) adds the rows of a tile, each element in their order.
template <typename Kernel>
void AxpyRows(const RowSet& rows, size_t n, const float* c, size_t begin, size_t end, float* y) {
  AxpyTile tiles[2];
  size_t r = 0;
  tiles[0].Fill(rows, c, &r);
  for (size_t i = 0; tiles[i % 2].count > 0; ++i) {
    AxpyTile& ahead = tiles[(i + 1) % 2];
    ahead.Fill(rows, c, &r);
    Kernel::Axpy(tiles[i % 2], ahead, n, begin, end, y);
  }
}

constexpr size_t kStrip = 4096;  // columns whose factors are made at once

// c * w_scale of each row and block of a strip.
using StripFactors = float[kRowsAtOnce][kStrip / kBlock];

// Axpy of rows of quants, each followed by its scales.
// Kernel::SetFactors(scales, n_blocks, c, factors) makes the factors of a row;
// Kernel::AddGroup<kGroup>(tile, at, factors, block, y) adds a nibble group of columns, from byte
// `at` of the rows and the block'th factor on.
template <typename Kernel>
struct QuantAxpy {
  static void Axpy(const AxpyTile& tile, const AxpyTile& ahead, size_t n, size_t begin, size_t end,
                   float* y) {
    StripFactors factors;
    for (size_t first = begin; first < end; first += kStrip) {
      const size_t last = Smaller(first + kStrip, end);
      const size_t scales_at = Kernel::QuantBytes(n) + 2 * (first / kBlock);
      const size_t n_blocks = (last - first) / kBlock;
      FetchColumns(ahead, scales_at, 2 * n_blocks);
      for (size_t r = 0; r < tile.count; ++r) {
        Kernel::SetFactors(tile.row[r] + scales_at, n_blocks, tile.c[r], factors[r]);
      }
      size_t j = first;
      for (; j + 128 <= last; j += 128) AddGroup<128>(tile, ahead, j, factors, first, y);
      if (j + 64 <= last) {
        AddGroup<64>(tile, ahead, j, factors, first, y);
        j += 64;
      }
      if (j < last) AddGroup<32>(tile, ahead, j, factors, first, y);
    }
  }

 private:
  template <size_t kGroup>
  SLUICE_INLINE static void AddGroup(const AxpyTile& tile, const AxpyTile& ahead, size_t j,
                                     const StripFactors& factors, size_t first, float* y) {
    const size_t at = Kernel::QuantBytes(j);
    FetchColumns(ahead, at, Kernel::QuantBytes(kGroup));
    Kernel::template AddGroup<kGroup>(tile, at, factors, (j - first) / kBlock, y + j);
  }
};

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
