#include "runtime/activations.h"

#include "layout/weight_type.h"

namespace sluice {
namespace {

// Between the quants of vectors: products take the same elements of many vectors in turn, which
// would share a few sets of a cache if they lay a power of two apart.
constexpr size_t kGap = 64;

}  // namespace

Activations::Activations(uint32_t max_vectors, uint32_t max_length)
    : quants_(max_vectors * (max_length + kGap)),
      scales_(size_t{max_vectors} * max_length / kQuantBlock),
      sums_(scales_.size()),
      views_(max_vectors) {}

std::span<const VectorView> Activations::Prepare(const KernelTable& kernels, ThreadPool& pool,
                                                 const float* x, uint32_t n, uint32_t length) {
  pool.Run(n, WorthwhileGrain(length * sizeof(float), 1), [&](size_t begin, size_t end, int) {
    for (size_t v = begin; v < end; ++v) {
      const size_t at = v * length, block = at / kQuantBlock;
      int8_t* quants = &quants_[v * (length + kGap)];
      kernels.quantize(x + at, length, quants, &scales_[block], &sums_[block]);
      views_[v] = {x + at, quants, &scales_[block], &sums_[block]};
    }
  });
  return std::span(views_).first(n);
}

size_t Activations::Bytes(uint32_t max_vectors, uint32_t max_length) {
  constexpr size_t kPerBlock = sizeof(float) + sizeof(int32_t);
  return max_vectors *
         (max_length + kGap + max_length / kQuantBlock * kPerBlock + sizeof(VectorView));
}

}  // namespace sluice
