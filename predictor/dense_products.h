// Products of dense float matrices, for training: every element is one dot of runtime/kernels,
// whose order of summation is written down, so the result depends neither on the number of threads
// nor on the machine's instruction set.
#ifndef SLUICE_PREDICTOR_DENSE_PRODUCTS_H_
#define SLUICE_PREDICTOR_DENSE_PRODUCTS_H_

#include <cstddef>
#include <vector>

#include "predictor/parallel_for.h"
#include "runtime/kernels/kernels.h"

namespace sluice {

// One call at a time; keeps scratch between calls.
class DenseProducts {
 public:
  DenseProducts(const KernelTable& kernels, ParallelFor parallel)
      : kernels_(kernels), parallel_(std::move(parallel)) {}

  // out[m x n] = a[m x k] * b[n x k] transposed.
  void MultiplyTransposed(const float* a, size_t m, const float* b, size_t n, size_t k, float* out);
  // out[columns x rows] = in[rows x columns] transposed.
  void Transpose(const float* in, size_t rows, size_t columns, float* out);

  const KernelTable& kernels() const { return kernels_; }
  const ParallelFor& parallel() const { return parallel_; }

 private:
  const KernelTable& kernels_;
  ParallelFor parallel_;
  std::vector<VectorView> views_;
};

}  // namespace sluice

#endif  // SLUICE_PREDICTOR_DENSE_PRODUCTS_H_
