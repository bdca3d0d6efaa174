// Counter-based random numbers: element i of a named stream is a pure function of (seed, stream,
// row, i), so that rows come out alike whatever order or thread makes them.
//
// The generator is SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
// 2014) started at a hash of the key. Thread-safe.
#ifndef SLUICE_LAYOUT_COUNTER_RNG_H_
#define SLUICE_LAYOUT_COUNTER_RNG_H_

#include <cstdint>

namespace sluice {

class CounterRng {
 public:
  CounterRng(uint64_t seed, uint64_t stream, uint64_t row)
      : state_(Mix(Mix(Mix(seed + kStep) + stream) + row)) {}

  uint64_t Next() { return Mix(state_ += kStep); }
  // Uniform in [0, n); n > 0. The bias is below n / 2^32.
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>((Next() >> 32) * n >> 32); }
  // Nearly normal, mean 0 and variance 1: the sum of four uniform 16-bit numbers. Its tails end at
  // 3.46, which suits weights: no outlier stretches the scale of a quantisation block.
  float Normal() {
    const uint64_t u = Next();
    const auto sum =
        static_cast<float>((u & 0xffff) + (u >> 16 & 0xffff) + (u >> 32 & 0xffff) + (u >> 48));
    return (sum - 131070.0f) * (1.0f / 37837.227f);
  }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15;
  static constexpr uint64_t Mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  uint64_t state_;
};

}  // namespace sluice

#endif  // SLUICE_LAYOUT_COUNTER_RNG_H_
