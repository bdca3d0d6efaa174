// A bounded lock-free queue between one producer thread and one consumer thread.
#ifndef SLUICE_IO_SPSC_QUEUE_H_
#define SLUICE_IO_SPSC_QUEUE_H_

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

// Positions count for ever and are masked on use, so that full and empty differ. Each side keeps
// the other's position as last seen and looks again only when that does not suffice.
template <typename T>
class SpscQueue {
 public:
  // Holds at least `capacity` items; allocates only here.
  explicit SpscQueue(size_t capacity)
      : items_(std::bit_ceil(std::max<size_t>(capacity, 1))), mask_(items_.size() - 1) {}

  // Producer. All or nothing; the consumer sees the whole batch at once.
  bool TryPush(std::span<const T> batch) {
    const uint64_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_seen_ + batch.size() > items_.size()) {
      head_seen_ = head_.load(std::memory_order_acquire);
      if (tail - head_seen_ + batch.size() > items_.size()) return false;
    }
    for (size_t i = 0; i < batch.size(); ++i) items_[(tail + i) & mask_] = batch[i];
    tail_.store(tail + batch.size(), std::memory_order_release);
    return true;
  }

  // Consumer. Takes up to out.size() items, oldest first, and returns how many.
  size_t Pop(std::span<T> out) {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    if (tail_seen_ - head < out.size()) tail_seen_ = tail_.load(std::memory_order_acquire);
    const size_t count = std::min<size_t>(out.size(), tail_seen_ - head);
    for (size_t i = 0; i < count; ++i) out[i] = items_[(head + i) & mask_];
    head_.store(head + count, std::memory_order_release);
    return count;
  }

  // Consumer.
  bool empty() const {
    return tail_.load(std::memory_order_acquire) == head_.load(std::memory_order_relaxed);
  }

 private:
  // The two sides write to cache lines of their own.
  static constexpr size_t kCacheLine = 64;

  std::vector<T> items_;
  const size_t mask_;
  alignas(kCacheLine) std::atomic<uint64_t> tail_{0};  // written by the producer
  uint64_t head_seen_ = 0;                             // of the producer
  alignas(kCacheLine) std::atomic<uint64_t> head_{0};  // written by the consumer
  uint64_t tail_seen_ = 0;                             // of the consumer
};

}  // namespace sluice

#endif  // SLUICE_IO_SPSC_QUEUE_H_
