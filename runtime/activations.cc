#include "runtime/activations.h"

#include "layout/weight_type.h"

namespace sluice {

Activations::Activations(uint32_t max_vectors, uint32_t max_length)
    : quants_(size_t{max_vectors} * max_length),
      scales_(quants_.size() / kQuantBlock),
      sums_(quants_.size() / kQuantBlock),
      views_(max_vectors) {}

std::span<const VectorView> Activations::Prepare(const KernelTable& kernels, ThreadPool& pool,
                                                 const float* x, uint32_t n, uint32_t length) {
  pool.Run(n, WorthwhileGrain(length * sizeof(float), 1), [&](size_t begin, size_t end, int) {
    for (size_t v = begin; v < end; ++v) {
      const size_t at = v * length, block = at / kQuantBlock;
      kernels.quantize(x + at, length, &quants_[at], &scales_[block], &sums_[block]);
      views_[v] = {x + at, &quants_[at], &scales_[block], &sums_[block]};
    }
  });
  return std::span(views_).first(n);
}

size_t Activations::Bytes(uint32_t max_vectors, uint32_t max_length) {
  return size_t{max_vectors} * (max_length + max_length / kQuantBlock * 8 + sizeof(VectorView));
}

}  // namespace sluice
