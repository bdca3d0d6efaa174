#include "io/io_thread.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/clock.h"
#include "io/cpu_topology.h"
#include "io/futex.h"
#include "io/read_operations.h"
#include "io/scoped_signal_block.h"
#include "io/spsc_queue.h"
#include "io/status.h"

namespace sluice {
namespace {

// A counter with one writer.
class Counter {
 public:
  void Set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  void Add(uint64_t amount) { Set(value() + amount); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// How each side sleeps without missing the other: the sleeper announces itself with an exchange on
// its state and looks for work once more; the waker publishes the work and then takes the state
// with an exchange. Whichever exchange comes second sees what the other side did before.
class IoThreadImpl final : public IoThread {
 public:
  IoThreadImpl(const StorageFile& file, std::unique_ptr<ReadEngine> engine, uint32_t capacity,
               std::unique_ptr<ReadMerger> merger, std::span<std::byte> bounce)
      : capacity_(capacity),
        file_(file),
        demand_(capacity),
        look_ahead_(capacity),
        completions_(capacity),
        engine_(std::move(engine)),
        merger_(std::move(merger)),
        reads_(file, engine_->depth(), merger_ != nullptr ? ReadMerger::kMostRequests : 1, bounce),
        ops_(engine_->depth()),
        results_(engine_->depth()) {
    for (Batch* b : {&demand_batch_, &look_ahead_batch_}) b->runs.reserve(ReadMerger::kMostBatch);
  }

  ~IoThreadImpl() override {
    if (!thread_.joinable()) return;
    stopping_.store(true, std::memory_order_release);
    WakeIoThread();
    thread_.join();
  }

  absl::Status StartThread(int core) {
    const ScopedSignalBlock no_signals;
    try {
      thread_ = std::thread([this, core] { Run(core); });
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot start the I/O thread: ", error.what()));
    }
    started_.wait(false, std::memory_order_acquire);
    return absl::OkStatus();
  }

  bool Submit(std::span<const IoRequest> batch, IoPriority priority) override;
  size_t Poll(std::span<IoCompletion> out) override;
  void WaitForCompletion() override;
  size_t in_flight() const override { return in_flight_; }

  IoStats stats() const override {
    return {.operations = operations_.value(),
            .bytes = bytes_.value(),
            .retries = retries_.value(),
            .busy_ns = busy_ns_.value()};
  }
  const std::string& affinity_note() const override { return affinity_note_; }
  std::string mode_change_note() const override {
    const std::lock_guard lock(note_mutex_);
    return mode_change_note_;
  }

 private:
  // What a side does, for the other side; of either thread.
  enum State : uint32_t {
    kAwake,
    kParked,   // sleeps on its state
    kReaping,  // the I/O thread is blocked in the engine with room for more: engine_->Wake()
  };

  // Requests taken from a queue.
  struct Batch {
    std::vector<IoRequest> requests = std::vector<IoRequest>(ReadMerger::kMostBatch);
    size_t begin = 0, end = 0;   // those that were not started
    std::vector<uint32_t> runs;  // how all of them are done, if there is a merger
    size_t next_run = 0;
    bool empty() const { return begin == end; }
  };

  // On the producer thread.
  void WakeIoThread();

  // On the I/O thread.
  void Run(int core);
  bool HasWork() const;
  void Fill(SpscQueue<IoRequest>& queue, Batch* batch);
  std::span<const IoRequest> NextRun();
  void StartReads();
  void ReapReads();
  void Park();
  void HandleResult(const ReadResult& result, uint64_t now_ns);
  void Complete(const IoCompletion& completion);
  void FailRun(std::span<const IoRequest> run);
  void AnnounceCompletions();
  void UpdateStats(uint64_t now_ns);
  void AddNote(const std::string& note);
  void FailEngine(const absl::Status& status);
  void RetireEngine();

  const uint32_t capacity_;
  const StorageFile& file_;
  SpscQueue<IoRequest> demand_;
  SpscQueue<IoRequest> look_ahead_;
  SpscQueue<IoCompletion> completions_;

  std::atomic<uint32_t> io_state_{kAwake};
  std::atomic<uint32_t> producer_state_{kAwake};
  std::atomic<bool> started_{false};
  std::atomic<bool> stopping_{false};
  // The engine is destroyed only once it is marked as retired and the producer is not inside Wake.
  std::atomic<bool> engine_retired_{false};
  std::atomic<bool> producer_in_engine_{false};

  // Of the producer thread: accepted and not yet taken back.
  size_t in_flight_ = 0;

  // Of the I/O thread.
  std::unique_ptr<ReadEngine> engine_;  // null once it failed
  std::unique_ptr<ReadMerger> merger_;  // null: none
  ReadOperations reads_;
  Batch demand_batch_, look_ahead_batch_;
  std::vector<ReadOp> ops_;
  std::vector<ReadResult> results_;
  uint32_t unannounced_ = 0;  // completions that were queued and the producer was not told of
  bool direct_change_noted_ = false;
  uint64_t busy_since_ns_ = 0;  // 0: nothing is being read

  // Written by the I/O thread, read by the producer.
  Counter operations_;
  Counter bytes_;
  Counter retries_;
  Counter busy_ns_;
  std::string affinity_note_;  // written before started_
  mutable std::mutex note_mutex_;
  std::string mode_change_note_;  // guarded by note_mutex_

  std::thread thread_;
};

bool IoThreadImpl::Submit(std::span<const IoRequest> batch, IoPriority priority) {
  if (batch.empty()) return true;
  if (batch.size() > capacity_ - in_flight_) return false;
  SpscQueue<IoRequest>& queue = priority == IoPriority::kDemand ? demand_ : look_ahead_;
  if (!queue.TryPush(batch)) return false;
  in_flight_ += batch.size();
  WakeIoThread();
  return true;
}

size_t IoThreadImpl::Poll(std::span<IoCompletion> out) {
  const size_t count = completions_.Pop(out);
  in_flight_ -= count;
  return count;
}

void IoThreadImpl::WaitForCompletion() {
  // A few microseconds: less than it takes to sleep and be woken.
  constexpr int kSpins = 200;
  if (in_flight_ == 0) return;
  for (int i = 0; i < kSpins; ++i) {
    if (!completions_.empty()) return;
    CpuRelax();
  }
  while (completions_.empty()) {
    producer_state_.exchange(kParked, std::memory_order_acq_rel);
    if (completions_.empty()) {
      FutexWait(producer_state_, kParked);
    }
    producer_state_.exchange(kAwake, std::memory_order_acq_rel);
  }
}

void IoThreadImpl::WakeIoThread() {
  switch (io_state_.exchange(kAwake, std::memory_order_acq_rel)) {
    case kAwake:
      break;
    case kParked:
      FutexWake(io_state_);
      break;
    case kReaping:
      producer_in_engine_.store(true, std::memory_order_seq_cst);
      if (!engine_retired_.load(std::memory_order_seq_cst)) engine_->Wake();
      producer_in_engine_.store(false, std::memory_order_seq_cst);
      break;
  }
}

void IoThreadImpl::Run(int core) {
  pthread_setname_np(pthread_self(), "sluice-io");
  bool granted = false;
  affinity_note_ = PinThisThread(core >= 0 ? core : FastestCore(AllowedCores()), &granted);
  started_.store(true, std::memory_order_release);
  started_.notify_one();

  while (!stopping_.load(std::memory_order_acquire)) {
    StartReads();
    AnnounceCompletions();
    if (reads_.in_engine() == 0) {
      Park();
    } else {
      ReapReads();
    }
  }
  if (engine_ != nullptr) RetireEngine();
}

// Whether there is something that the I/O thread could act on now.
bool IoThreadImpl::HasWork() const {
  const bool requests = !demand_batch_.empty() || !look_ahead_batch_.empty() || !demand_.empty() ||
                        !look_ahead_.empty();
  return (requests && !reads_.full()) || stopping_.load(std::memory_order_acquire);
}

void IoThreadImpl::Fill(SpscQueue<IoRequest>& queue, Batch* batch) {
  batch->begin = batch->next_run = 0;
  batch->end = queue.Pop(batch->requests);
  if (merger_ == nullptr || batch->empty()) return;
  const auto runs = merger_->Split(std::span(batch->requests).first(batch->end));
  batch->runs.assign(runs.begin(), runs.end());
}

// The requests of the next operation, as the merger groups them: demand reads, else look-ahead.
// Empty if there are none. Valid until the next call.
std::span<const IoRequest> IoThreadImpl::NextRun() {
  if (demand_batch_.empty()) Fill(demand_, &demand_batch_);
  if (demand_batch_.empty() && look_ahead_batch_.empty()) Fill(look_ahead_, &look_ahead_batch_);
  Batch& batch = demand_batch_.empty() ? look_ahead_batch_ : demand_batch_;
  if (batch.empty()) return {};
  const size_t count = merger_ != nullptr ? batch.runs[batch.next_run++] : 1;
  const std::span<const IoRequest> run(&batch.requests[batch.begin], count);
  batch.begin += count;
  return run;
}

// Gives the engine what it has room for: retries, then demand, then look-ahead.
void IoThreadImpl::StartReads() {
  while (!reads_.full()) {
    const std::span<const IoRequest> run = NextRun();
    if (run.empty()) break;
    if (run.front().length == 0) {
      Complete({run.front().tag, 0, run.front().offset});
    } else if (engine_ == nullptr) {
      FailRun(run);
    } else {
      reads_.Add(run);
    }
  }
  if (engine_ == nullptr) return;
  const uint64_t now_ns = NowNs();
  UpdateStats(now_ns);
  const std::span<const ReadOp> ops(ops_.data(), reads_.TakeReady(now_ns, ops_));
  if (ops.empty()) return;
  const absl::StatusOr<uint32_t> taken = engine_->Submit(ops);
  if (!taken.ok()) return FailEngine(taken.status());
  const bool holds_some = reads_.in_engine() > ops.size() - *taken;
  for (const ReadOp& op : ops.subspan(*taken)) {
    if (holds_some) {
      reads_.PutBack(op);
    } else {
      // It holds nothing and takes nothing: to be tried again like a busy device, not for ever.
      HandleResult({op.user, -EAGAIN}, now_ns);
    }
  }
}

// Waits for the engine, unless a request arrives that it has room for.
void IoThreadImpl::ReapReads() {
  const bool has_room = !reads_.full();
  if (has_room) {
    io_state_.exchange(kReaping, std::memory_order_acq_rel);
    if (HasWork()) {
      io_state_.exchange(kAwake, std::memory_order_acq_rel);
      return;
    }
  }
  const absl::StatusOr<uint32_t> count = engine_->Reap(results_, /*wait=*/true);
  if (has_room) io_state_.exchange(kAwake, std::memory_order_acq_rel);
  if (!count.ok()) return FailEngine(count.status());
  operations_.Add(*count);
  const uint64_t now_ns = NowNs();
  for (uint32_t i = 0; i < *count; ++i) HandleResult(results_[i], now_ns);
  UpdateStats(now_ns);
}

// Sleeps until a request arrives, or until the pause of one that met EAGAIN ends.
void IoThreadImpl::Park() {
  const uint64_t now_ns = NowNs();
  UpdateStats(now_ns);
  uint64_t limit_ns = 0;
  if (reads_.active() > 0) {
    const uint64_t due_ns = reads_.NextDue();
    if (due_ns <= now_ns) return;
    limit_ns = due_ns - now_ns;
  }
  io_state_.exchange(kParked, std::memory_order_acq_rel);
  if (!HasWork()) FutexWait(io_state_, kParked, limit_ns);
  io_state_.exchange(kAwake, std::memory_order_acq_rel);
}

void IoThreadImpl::HandleResult(const ReadResult& result, uint64_t now_ns) {
  for (const IoCompletion& completion : reads_.OnResult(result, now_ns)) Complete(completion);
  if (reads_.direct_error() != 0 && !direct_change_noted_) {
    direct_change_noted_ = true;
    AddNote(absl::StrCat(file_.path(), ": a direct read at offset ", reads_.direct_error_offset(),
                         " failed (", strerror(reads_.direct_error()),
                         "); reading goes on through the page cache"));
  }
}

// There is always room: no more requests are accepted than the queue holds. Who sees a completion
// sees its bytes in the statistics.
void IoThreadImpl::Complete(const IoCompletion& completion) {
  bytes_.Set(reads_.bytes());
  retries_.Set(reads_.retries());
  completions_.TryPush({&completion, 1});
  ++unannounced_;
}

void IoThreadImpl::FailRun(std::span<const IoRequest> run) {
  for (const IoRequest& r : run) Complete({r.tag, EIO, r.offset});
}

// Wakes the producer if it sleeps, once for many completions: while as many reads are in flight as
// may be, more are about to complete, and waking takes as long as a small read.
void IoThreadImpl::AnnounceCompletions() {
  constexpr size_t kDeep = 16;  // in a shallow queue the next one may take long
  const size_t enough = ops_.size() >= kDeep ? ops_.size() / 2 : 1;
  if (unannounced_ == 0 || (reads_.full() && unannounced_ < enough)) return;
  unannounced_ = 0;
  if (producer_state_.exchange(kAwake, std::memory_order_acq_rel) == kParked) {
    FutexWake(producer_state_);
  }
}

void IoThreadImpl::UpdateStats(uint64_t now_ns) {
  if (busy_since_ns_ != 0) busy_ns_.Add(now_ns - busy_since_ns_);
  busy_since_ns_ = reads_.active() > 0 ? now_ns : 0;
}

void IoThreadImpl::AddNote(const std::string& note) {
  const std::lock_guard lock(note_mutex_);
  absl::StrAppend(&mode_change_note_, mode_change_note_.empty() ? "" : "; ", note);
}

void IoThreadImpl::FailEngine(const absl::Status& status) {
  AddNote(absl::StrCat(file_.path(), ": reading ended: ", status.message()));
  // First the engine, since until then reads may still land in the memory of the requests.
  RetireEngine();
  for (const IoCompletion& completion : reads_.Abandon()) Complete(completion);
}

// Destroys the engine, which waits until nothing is in flight.
void IoThreadImpl::RetireEngine() {
  engine_retired_.store(true, std::memory_order_seq_cst);
  while (producer_in_engine_.load(std::memory_order_seq_cst)) std::this_thread::yield();
  engine_.reset();
}

}  // namespace

size_t IoThread::Bytes(uint32_t capacity, uint32_t depth) {
  return std::bit_ceil(size_t{capacity}) * (2 * sizeof(IoRequest) + sizeof(IoCompletion)) +
         ReadOperations::Bytes(depth, ReadMerger::kMostRequests) + ReadMerger::Bytes() +
         2 * ReadMerger::kMostBatch * (sizeof(IoRequest) + sizeof(uint32_t));
}

absl::StatusOr<std::unique_ptr<IoThread>> IoThread::Start(const StorageFile& file,
                                                          std::unique_ptr<ReadEngine> engine,
                                                          IoThreadOptions options) {
  if (options.capacity == 0) {
    return absl::InvalidArgumentError("the I/O thread needs a capacity of at least one request");
  }
  auto thread = std::make_unique<IoThreadImpl>(file, std::move(engine), options.capacity,
                                               std::move(options.merger), options.bounce);
  SLUICE_RETURN_IF_ERROR(thread->StartThread(options.core));
  return thread;
}

}  // namespace sluice
