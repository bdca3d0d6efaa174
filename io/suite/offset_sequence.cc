#include "io/suite/offset_sequence.h"

#include <algorithm>
#include <bit>

namespace sluice {
namespace {

constexpr int kRounds = 4;

// SplitMix64's finaliser.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

BlockPermutation::BlockPermutation(uint64_t n, uint64_t seed)
    : n_(n), seed_(seed), half_bits_((std::bit_width(std::max<uint64_t>(n, 2) - 1) + 1) / 2) {}

uint64_t BlockPermutation::At(uint64_t index) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t value = index;
  do {
    uint64_t left = value >> half_bits_, right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = Mix(right + Mix(seed_ * kRounds + round + 1));
      left ^= mixed & mask;
      std::swap(left, right);
    }
    value = left << half_bits_ | right;
  } while (value >= n_);
  return value;
}

OffsetSequence::OffsetSequence(bool random, uint64_t n_blocks, uint64_t seed, int job, int n_jobs,
                               bool wraps)
    : random_(random),
      wraps_(wraps && !random),
      permutation_(n_blocks, seed),
      begin_(random ? static_cast<uint64_t>(job)
                    : n_blocks * static_cast<uint64_t>(job) / static_cast<uint64_t>(n_jobs)),
      end_(random ? n_blocks
                  : n_blocks * (static_cast<uint64_t>(job) + 1) / static_cast<uint64_t>(n_jobs)),
      step_(random ? static_cast<uint64_t>(n_jobs) : 1),
      next_(begin_) {}

std::optional<uint64_t> OffsetSequence::Next() {
  if (next_ >= end_) {
    if (!wraps_ || begin_ == end_) return std::nullopt;
    next_ = begin_;
  }
  const uint64_t index = next_;
  next_ += step_;
  return random_ ? permutation_.At(index) : index;
}

}  // namespace sluice
