// Splits a range of rows over threads that live for one call: for offline work in pieces of
// milliseconds. (The decoder has its own pool.)
#ifndef SLUICE_LAYOUT_PARALLEL_ROWS_H_
#define SLUICE_LAYOUT_PARALLEL_ROWS_H_

#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace sluice {

// Calls body(begin, end) for consecutive ranges that cover [0, n), at most one a thread, and
// returns when all are done. `body` must be thread-safe and must not throw.
template <typename Body>
void ParallelRows(size_t n_threads, size_t n, const Body& body) {
  std::vector<std::thread> threads;
  size_t begin = 0;
  for (size_t left = n_threads; left > 1; --left) {
    const size_t end = begin + (n - begin) / left;
    try {
      if (end > begin) threads.emplace_back(body, begin, end);
    } catch (const std::system_error&) {
      break;  // no more threads to be had: the rest is done here
    }
    begin = end;
  }
  if (begin < n) body(begin, n);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace sluice

#endif  // SLUICE_LAYOUT_PARALLEL_ROWS_H_
