// How offline work is spread over threads that the caller owns.
#ifndef SLUICE_PREDICTOR_PARALLEL_FOR_H_
#define SLUICE_PREDICTOR_PARALLEL_FOR_H_

#include <cstddef>
#include <functional>

#include "absl/functional/function_ref.h"

namespace sluice {

using ParallelBody = absl::FunctionRef<void(size_t begin, size_t end)>;
// Calls the body for ranges that cover [0, n), each at least `grain` long but for the last, and
// returns when all are done. Bodies must not depend on how the range is cut.
using ParallelFor = std::function<void(size_t n, size_t grain, ParallelBody body)>;

inline void RunOnCaller(size_t n, size_t /*grain*/, ParallelBody body) {
  if (n > 0) body(0, n);
}

}  // namespace sluice

#endif  // SLUICE_PREDICTOR_PARALLEL_FOR_H_
