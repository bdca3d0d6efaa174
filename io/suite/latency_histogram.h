// Latencies in buckets of about 1.6 %: 64 to each power of two, so that percentiles of any number
// of operations take the same memory.
#ifndef SLUICE_IO_SUITE_LATENCY_HISTOGRAM_H_
#define SLUICE_IO_SUITE_LATENCY_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace sluice {

// Thread-compatible.
class LatencyHistogram {
 public:
  void Add(uint64_t ns) {
    ++counts_[BucketOf(ns)];
    ++n_;
    max_ns_ = std::max(max_ns_, ns);
  }
  void Merge(const LatencyHistogram& other) {
    for (size_t b = 0; b < counts_.size(); ++b) counts_[b] += other.counts_[b];
    n_ += other.n_;
    max_ns_ = std::max(max_ns_, other.max_ns_);
  }

  uint64_t count() const { return n_; }
  uint64_t max_ns() const { return max_ns_; }
  // Nearest rank, q in [0, 1]; the middle of its bucket, at most max_ns(). 0 if empty.
  uint64_t Percentile(double q) const {
    const auto rank =
        std::max<uint64_t>(static_cast<uint64_t>(std::ceil(q * static_cast<double>(n_))), 1);
    uint64_t seen = 0;
    for (size_t b = 0; b < counts_.size(); ++b) {
      seen += counts_[b];
      if (seen >= rank) return std::min(MiddleOf(b), max_ns_);
    }
    return 0;
  }

 private:
  static constexpr int kSubBits = 6;
  static constexpr uint64_t kSub = uint64_t{1} << kSubBits;
  static constexpr int kOctaves = 40;  // above 2^40 ns, 18 minutes, all count alike

  // Values below kSub have a bucket each; then every octave has kSub.
  static size_t BucketOf(uint64_t ns) {
    if (ns < kSub) return ns;
    const int shift = std::bit_width(ns) - 1 - kSubBits;
    const uint64_t bucket = static_cast<uint64_t>(shift) * kSub + (ns >> shift);
    return std::min<uint64_t>(bucket, kBuckets - 1);
  }
  static uint64_t MiddleOf(size_t bucket) {
    if (bucket < kSub) return bucket;
    const size_t shift = bucket / kSub - 1;
    const uint64_t lowest = (bucket - shift * kSub) << shift;
    return lowest + ((uint64_t{1} << shift) >> 1);
  }
  static constexpr size_t kBuckets = kSub * (kOctaves - kSubBits + 1);

  std::array<uint64_t, kBuckets> counts_{};
  uint64_t n_ = 0;
  uint64_t max_ns_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_IO_SUITE_LATENCY_HISTOGRAM_H_
