#include "runtime/memory_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>

#include "io/aligned_buffer.h"
#include "io/clock.h"
#include "io/status.h"
#include "runtime/thread_pool.h"

namespace sluice {
namespace {

constexpr size_t kLine = 64;
constexpr int kPasses = 6;

// Independent sums of all of it, so that loads are all that bounds the loop. Two streams: one alone
// leaves part of what a core may have in flight unused.
uint64_t SumOf(std::span<const std::byte> bytes) {
  constexpr size_t kSums = 8;
  uint64_t sums[2 * kSums] = {};
  const size_t half = bytes.size() / (2 * kLine) * kLine;
  for (size_t at = 0; at < half; at += kLine) {
    uint64_t words[2 * kSums];
    std::memcpy(words, bytes.data() + at, kLine);
    std::memcpy(words + kSums, bytes.data() + half + at, kLine);
    for (size_t i = 0; i < 2 * kSums; ++i) sums[i] += words[i];
  }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  return sum;
}

}  // namespace

absl::StatusOr<double> MeasureMemoryBandwidth(int n_threads, size_t buffer_bytes) {
  constexpr uint64_t kSpinNs = 50'000;
  SLUICE_ASSIGN_OR_RETURN(const AlignedBuffer buffer, AlignedBuffer::Allocate(buffer_bytes));
  SLUICE_ASSIGN_OR_RETURN(const auto pool, ThreadPool::Create(n_threads, kSpinNs));
  std::memset(buffer.data(), 1, buffer.size());  // untouched pages are all one page of zeros
  std::atomic<uint64_t> sum{0};                  // so that the compiler may leave nothing out
  uint64_t best_ns = UINT64_MAX;
  for (int pass = 0; pass < kPasses; ++pass) {
    const uint64_t begin_ns = NowNs();
    pool->Run(buffer.size(), 2 * kLine, [&](size_t begin, size_t end, int) {
      sum += SumOf(std::span<const std::byte>(buffer.data() + begin, end - begin));
    });
    best_ns = std::min(best_ns, NowNs() - begin_ns);
  }
  if (sum == 0) return absl::InternalError("memory that was written reads as zero");
  return static_cast<double>(buffer.size()) * 1e9 / static_cast<double>(best_ns);
}

}  // namespace sluice
