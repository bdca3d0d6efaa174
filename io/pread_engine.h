// Reads with pread on a few threads: works wherever there are threads.
#ifndef SLUICE_IO_PREAD_ENGINE_H_
#define SLUICE_IO_PREAD_ENGINE_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "io/read_engine.h"

namespace sluice {

class PreadEngine final : public ReadEngine {
 public:
  // `depth` > 0. Starts min(depth, 8) threads: more would only queue in the kernel instead of here.
  static absl::StatusOr<std::unique_ptr<PreadEngine>> Create(uint32_t depth);
  // Reads that have begun are waited for; those that have not are dropped.
  ~PreadEngine() override;

  const std::string& description() const override { return description_; }
  uint32_t depth() const override { return depth_; }
  absl::StatusOr<uint32_t> Submit(std::span<const ReadOp> ops) override;
  absl::StatusOr<uint32_t> Reap(std::span<ReadResult> results, bool wait) override;
  void Wake() override;

 private:
  // First in, first out, of fixed capacity. Not thread-safe.
  template <typename T>
  class FixedQueue {
   public:
    explicit FixedQueue(uint32_t capacity) : items_(capacity) {}
    bool empty() const { return size_ == 0; }
    void Push(const T& item) { items_[(head_ + size_++) % items_.size()] = item; }
    T Pop() {
      const T item = items_[head_];
      head_ = (head_ + 1) % items_.size();
      --size_;
      return item;
    }

   private:
    std::vector<T> items_;
    size_t head_ = 0;
    size_t size_ = 0;
  };

  explicit PreadEngine(uint32_t depth) : depth_(depth), waiting_(depth), finished_(depth) {}

  void RunWorker();

  const uint32_t depth_;
  std::string description_;
  uint32_t in_flight_ = 0;  // of the driving thread: submitted and not yet reaped

  std::mutex mutex_;  // guards the fields below
  std::condition_variable work_cv_;
  std::condition_variable result_cv_;
  FixedQueue<ReadOp> waiting_;
  FixedQueue<ReadResult> finished_;
  bool woken_ = false;
  bool stopping_ = false;

  std::vector<std::thread> workers_;
};

}  // namespace sluice

#endif  // SLUICE_IO_PREAD_ENGINE_H_
