// In which order the blocks of a range are read.
#ifndef SLUICE_IO_SUITE_OFFSET_SEQUENCE_H_
#define SLUICE_IO_SUITE_OFFSET_SEQUENCE_H_

#include <cstdint>
#include <optional>

namespace sluice {

// A permutation of 0 .. n-1 that needs no memory: a Feistel network over the next even power of
// two, walked until the value falls below n (Black and Rogaway, "Ciphers with arbitrary finite
// domains", 2002). Thread-safe.
class BlockPermutation {
 public:
  BlockPermutation(uint64_t n, uint64_t seed);
  uint64_t At(uint64_t index) const;

 private:
  uint64_t n_;
  uint64_t seed_;
  int half_bits_;
};

// The blocks that one of several jobs reads. Thread-compatible.
class OffsetSequence {
 public:
  // Random: each block of the range once over all jobs, then none. Sequential: job j has the j-th
  // part of the range, and begins again at its end if `wraps`.
  OffsetSequence(bool random, uint64_t n_blocks, uint64_t seed, int job, int n_jobs, bool wraps);

  // A block index, or nullopt when all have been given.
  std::optional<uint64_t> Next();

 private:
  const bool random_;
  const bool wraps_;
  const BlockPermutation permutation_;
  const uint64_t begin_, end_, step_;
  uint64_t next_;
};

}  // namespace sluice

#endif  // SLUICE_IO_SUITE_OFFSET_SEQUENCE_H_
