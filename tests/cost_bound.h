// What refusing a bad file may cost: under a second of processor time (not of the clock on the
// wall, so that a busy machine fails nothing) and under 64 MiB of memory.
#ifndef SLUICE_TESTS_COST_BOUND_H_
#define SLUICE_TESTS_COST_BOUND_H_

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <ctime>

namespace sluice {

// Expects the bound of its own life. Memory is the growth of the process's peak, so work on small
// files before it in the process makes it no less strict than the first file is.
class CostBound {
 public:
  CostBound() = default;
  CostBound(const CostBound&) = delete;
  CostBound& operator=(const CostBound&) = delete;
  ~CostBound() {
    EXPECT_LT(std::clock() - begin_, CLOCKS_PER_SEC);
#ifndef SLUICE_SANITIZED  // AddressSanitizer keeps freed memory
    EXPECT_LT(PeakKib() - peak_, 64 * 1024);
#endif
  }

 private:
  static long PeakKib() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  }

  const std::clock_t begin_ = std::clock();
  const long peak_ = PeakKib();
};

}  // namespace sluice

#endif  // SLUICE_TESTS_COST_BOUND_H_
