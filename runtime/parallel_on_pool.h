// Lets offline parts below runtime/ spread their work over a pool.
#ifndef SLUICE_RUNTIME_PARALLEL_ON_POOL_H_
#define SLUICE_RUNTIME_PARALLEL_ON_POOL_H_

#include <cstddef>

#include "predictor/parallel_for.h"
#include "runtime/thread_pool.h"

namespace sluice {

// `pool` must outlive what is returned.
inline ParallelFor ParallelOn(ThreadPool& pool) {
  return [&pool](size_t n, size_t grain, ParallelBody body) {
    if (n > 0) pool.Run(n, grain, [body](size_t begin, size_t end, int) { body(begin, end); });
  };
}

}  // namespace sluice

#endif  // SLUICE_RUNTIME_PARALLEL_ON_POOL_H_
