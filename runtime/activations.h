// Vectors in the forms that dot kernels need: see VectorView.
#ifndef SLUICE_RUNTIME_ACTIVATIONS_H_
#define SLUICE_RUNTIME_ACTIVATIONS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/kernels/kernels.h"
#include "runtime/thread_pool.h"

namespace sluice {

// Room for a number of vectors of bounded length. Allocates only in the constructor.
class Activations {
 public:
  Activations(uint32_t max_vectors, uint32_t max_length);

  // Quantises n vectors of `length` (a multiple of 32), one after another at x, which is borrowed.
  // The views stay valid until the next call.
  std::span<const VectorView> Prepare(const KernelTable& kernels, ThreadPool& pool, const float* x,
                                      uint32_t n, uint32_t length);

  static size_t Bytes(uint32_t max_vectors, uint32_t max_length);

 private:
  std::vector<int8_t> quants_;
  std::vector<float> scales_;
  std::vector<int32_t> sums_;
  std::vector<VectorView> views_;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_ACTIVATIONS_H_
