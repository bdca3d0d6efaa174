// The inner loops: dot products of many rows with one or several vectors, and AXPY of many rows
// into one vector, for every weight packing of layout/weight_type.h.
//
// Every ISA gives the same bits. Integer sums are exact; float sums follow one written order:
//   * a float dot keeps 16 lanes, lane l sums w[i]*x[i] over i = l (mod 16) in rising i, each
//     product rounded before it is added (no FMA);
//   * a quantised dot: block b of 32 elements gives one exact int32 sum of w_quant*x_quant; it is
//     converted to float (exact: it is below 2^20), multiplied by (w_scale[b]*x_scale[b]) and added
//     to lane b mod 16, in rising b;
//   * 16 lanes are folded l += l+8, then l += l+4, l += l+2, l += l+1;
//   * AXPY adds row after row: y[j] += c*w[j] for floats, y[j] += (c*w_scale)*q[j] for quants.
// So a result does not depend on the ISA, on how rows are batched, on threads or on the order in
// which weights arrived. (Where a result is NaN, its sign and payload are not specified.)
//
// Plain functions on the caller's memory: no allocation, no state, thread-safe. Rows may lie at any
// address; floats and integers need only their own alignment. Lengths: n is a multiple of 32 for q8
// and q4, any for f32 and f16. The rounding mode must be to-nearest and denormals must not be
// flushed, as a C++ program starts.
#ifndef SLUICE_RUNTIME_KERNELS_KERNELS_H_
#define SLUICE_RUNTIME_KERNELS_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace sluice {

// n_rows rows: pointers[r] if pointers is set, else base + r*stride.
struct RowSet {
  const std::byte* base = nullptr;
  size_t stride = 0;
  const std::byte* const* pointers = nullptr;
  size_t n_rows = 0;

  const std::byte* row(size_t r) const { return pointers ? pointers[r] : base + r * stride; }
};

// A vector in the forms that dots need: floats for f32 and f16 rows; for q8 and q4 rows int8 quants
// with a scale per block of 32 and the sum of each block's quants (which cancels the unsigned
// offset of nibbles and of VNNI). Made by KernelTable::quantize.
struct VectorView {
  const float* f = nullptr;             // [n]
  const int8_t* q = nullptr;            // [n], in [-127, 127]
  const float* scale = nullptr;         // [n/32]
  const int32_t* block_sums = nullptr;  // [n/32]
};

struct KernelTable {
  std::string_view name;  // "scalar", "avx2", "avx512-vnni", ...

  // q, scale, block_sums of x, for each block of 32 with largest magnitude amax:
  // scale = amax/127, q = round-to-even(x * (127/amax)). A block with amax below 2^-120 (127/amax
  // nears infinity) is all zero. A block with a NaN or infinity has a NaN scale and zero quants, so
  // that every dot with it is NaN and none is plausible.
  void (*quantize)(const float* x, size_t n, int8_t* q, float* scale, int32_t* block_sums);

  // out[v*out_stride + r] = dot(rows.row(r), vectors[v]) over n elements, indexed by WeightType.
  void (*dot[4])(const RowSet& rows, size_t n, const VectorView* vectors, size_t n_vectors,
                 float* out, size_t out_stride);

  // y[j] += c[r] * row r [j] for j in [begin, end), r in rising order, indexed by WeightType. n is
  // the row length; y points to element 0 of the row. begin and end are multiples of 128 or the
  // ends of the row. Rows with c[r] == 0 are skipped.
  void (*axpy[4])(const RowSet& rows, size_t n, const float* c, size_t begin, size_t end, float* y);
};

// The scalar reference; always there.
const KernelTable& ScalarKernels();
// Every table that this machine can run, slowest first; the last is the default.
std::span<const KernelTable* const> AvailableKernels();
const KernelTable& BestKernels();
// Null if there is no such table or this machine cannot run it.
const KernelTable* FindKernels(std::string_view name);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_KERNELS_KERNELS_H_
