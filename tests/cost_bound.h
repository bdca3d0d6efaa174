// What refusing a bad file may cost: under a second of processor time (not of the clock on the
// wall, so that a busy machine fails nothing) and under 64 MiB of memory.
#ifndef SLUICE_TESTS_COST_BOUND_H_
#define SLUICE_TESTS_COST_BOUND_H_

namespace sluice {

// Expects the bound of its own life, sanitizers or not: memory is the peak of what the process has
// resident, over what it had at the beginning.
class CostBound {
 public:
  CostBound();
  ~CostBound();
  CostBound(const CostBound&) = delete;
  CostBound& operator=(const CostBound&) = delete;

 private:
  const long resident_kib_;
  const long begin_;  // of std::clock
};

}  // namespace sluice

#endif  // SLUICE_TESTS_COST_BOUND_H_
