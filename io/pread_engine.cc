#include "io/pread_engine.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "io/scoped_signal_block.h"
#include "io/status.h"

namespace sluice {
namespace {

constexpr uint32_t kMostThreads = 8;

int32_t ReadOnce(const ReadOp& op) {
  const ssize_t got = pread(op.fd, op.dst, op.length, static_cast<off_t>(op.offset));
  return got >= 0 ? static_cast<int32_t>(got) : -errno;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreadEngine>> PreadEngine::Create(uint32_t depth) {
  std::unique_ptr<PreadEngine> engine(new PreadEngine(depth));
  const uint32_t threads = std::min(depth, kMostThreads);
  engine->description_ =
      absl::StrCat("pread with ", threads, threads == 1 ? " thread" : " threads");
  engine->workers_.reserve(threads);
  const ScopedSignalBlock no_signals;
  try {
    for (uint32_t i = 0; i < threads; ++i) {
      engine->workers_.emplace_back([e = engine.get()] { e->RunWorker(); });
    }
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start ", threads, " threads for reading: ", error.what()));
  }
  return engine;
}

PreadEngine::~PreadEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_cv_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

absl::StatusOr<uint32_t> PreadEngine::Submit(std::span<const ReadOp> ops) {
  const uint32_t count = static_cast<uint32_t>(std::min<size_t>(ops.size(), depth_ - in_flight_));
  {
    const std::lock_guard lock(mutex_);
    for (const ReadOp& op : ops.first(count)) waiting_.Push(op);
  }
  in_flight_ += count;
  if (count == 1) {
    work_cv_.notify_one();
  } else if (count > 1) {
    work_cv_.notify_all();
  }
  return count;
}

absl::StatusOr<uint32_t> PreadEngine::Reap(std::span<ReadResult> results, bool wait) {
  if (in_flight_ == 0 || results.empty()) return 0;
  uint32_t count = 0;
  std::unique_lock lock(mutex_);
  if (wait) result_cv_.wait(lock, [this] { return !finished_.empty() || woken_; });
  if (wait) woken_ = false;
  while (count < results.size() && !finished_.empty()) results[count++] = finished_.Pop();
  in_flight_ -= count;
  return count;
}

void PreadEngine::Wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  result_cv_.notify_one();
}

void PreadEngine::RunWorker() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_cv_.wait(lock, [this] { return !waiting_.empty() || stopping_; });
    if (stopping_) return;
    const ReadOp op = waiting_.Pop();
    lock.unlock();
    const ReadResult result{op.user, ReadOnce(op)};
    lock.lock();
    finished_.Push(result);
    result_cv_.notify_one();
  }
}

}  // namespace sluice
