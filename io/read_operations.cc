#include "io/read_operations.h"

#include <algorithm>
#include <cerrno>

namespace sluice {
namespace {

constexpr uint32_t kMostPerOperation = 1u << 30;  // results are 32-bit and signed
constexpr uint16_t kMostEioTries = 3;
constexpr uint16_t kMostBusyTries = 100;
// The pause after EAGAIN doubles from the first to the second, so that all tries take about 0.1 s.
constexpr uint64_t kFirstPauseNs = 50'000;
constexpr uint64_t kLongestPauseNs = 1'000'000;

uint64_t PauseNs(uint16_t tries) {
  const int doublings = std::min<int>(tries - 1, 10);
  return std::min(kFirstPauseNs << doublings, kLongestPauseNs);
}

// Requests are told apart by slot and generation, never by the order in which they come back.
uint64_t UserOf(uint32_t index, uint32_t generation) {
  return static_cast<uint64_t>(generation) << 32 | index;
}
uint32_t IndexOf(uint64_t user) { return static_cast<uint32_t>(user); }
uint32_t GenerationOf(uint64_t user) { return static_cast<uint32_t>(user >> 32); }

}  // namespace

ReadOperations::ReadOperations(const StorageFile& file, uint32_t depth)
    : file_(file), slots_(depth) {
  free_.reserve(depth);
  ready_.reserve(depth);
  for (uint32_t i = depth; i > 0; --i) free_.push_back(i - 1);
}

void ReadOperations::Add(const IoRequest& request) {
  const uint32_t index = free_.back();
  free_.pop_back();
  Slot& slot = slots_[index];
  slot = Slot{.request = request, .generation = slot.generation, .active = true};
  ready_.push_back(index);
}

size_t ReadOperations::TakeReady(uint64_t now_ns, std::span<ReadOp> out) {
  size_t taken = 0;
  size_t kept = 0;
  for (const uint32_t index : ready_) {
    if (taken < out.size() && slots_[index].due_ns <= now_ns) {
      out[taken++] = MakeOp(index);
    } else {
      ready_[kept++] = index;
    }
  }
  ready_.resize(kept);
  return taken;
}

void ReadOperations::PutBack(const ReadOp& op) {
  TakeBack(IndexOf(op.user));
  ready_.push_back(IndexOf(op.user));
}

void ReadOperations::TakeBack(uint32_t index) {
  slots_[index].in_engine = false;
  --in_engine_;
}

ReadOp ReadOperations::MakeOp(uint32_t index) {
  Slot& slot = slots_[index];
  ReadOp op;
  op.offset = slot.request.offset + slot.done;
  op.length = std::min(slot.request.length - slot.done, kMostPerOperation);
  op.dst = slot.request.dst + slot.done;
  op.user = UserOf(index, slot.generation);
  // What is left after a short read may be unaligned; direct I/O cannot read that.
  const uint64_t alignment_bits = op.offset | op.length | reinterpret_cast<uintptr_t>(op.dst);
  slot.direct = file_.direct() && direct_error_ == 0 && (alignment_bits & (file_.block() - 1)) == 0;
  op.fd = slot.direct ? file_.fd() : file_.buffered_fd();
  slot.in_engine = true;
  ++in_engine_;
  return op;
}

std::optional<IoCompletion> ReadOperations::OnResult(const ReadResult& result, uint64_t now_ns) {
  const uint32_t index = IndexOf(result.user);
  if (index >= slots_.size()) return std::nullopt;
  Slot& slot = slots_[index];
  if (!slot.in_engine || slot.generation != GenerationOf(result.user)) return std::nullopt;
  TakeBack(index);

  if (result.result < 0) return OnError(index, -result.result, now_ns);
  if (result.result == 0) return Finish(index, ENODATA);
  const uint32_t got = static_cast<uint32_t>(result.result);
  if (got > slot.request.length - slot.done) return Finish(index, EIO);
  bytes_ += got;
  slot.done += got;
  slot.busy_tries = 0;
  slot.eio_tries = 0;
  if (slot.done == slot.request.length) return Finish(index, 0);
  return Again(index);
}

std::optional<IoCompletion> ReadOperations::OnError(uint32_t index, int error, uint64_t now_ns) {
  Slot& slot = slots_[index];
  switch (error) {
    case EINTR:
      if (++slot.busy_tries > kMostBusyTries) return Finish(index, error);
      return Again(index);
    case EAGAIN:
      if (++slot.busy_tries > kMostBusyTries) return Finish(index, error);
      slot.due_ns = now_ns + PauseNs(slot.busy_tries);
      return Again(index);
    case EIO:
      if (++slot.eio_tries > kMostEioTries) return Finish(index, error);
      return Again(index);
    case EINVAL:
    case EOPNOTSUPP:
      if (!slot.direct) return Finish(index, error);
      if (direct_error_ == 0) {
        direct_error_ = error;
        direct_error_offset_ = slot.request.offset + slot.done;
      }
      return Again(index);
    default:
      return Finish(index, error);
  }
}

std::optional<IoCompletion> ReadOperations::Again(uint32_t index) {
  ++retries_;
  ready_.push_back(index);
  return std::nullopt;
}

IoCompletion ReadOperations::Finish(uint32_t index, int error) {
  Slot& slot = slots_[index];
  slot.active = false;
  ++slot.generation;
  free_.push_back(index);
  return {slot.request.tag, error, slot.request.offset};
}

std::optional<IoCompletion> ReadOperations::Abandon() {
  ready_.clear();
  const auto found =
      std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.active; });
  if (found == slots_.end()) return std::nullopt;
  const uint32_t index = static_cast<uint32_t>(found - slots_.begin());
  if (found->in_engine) TakeBack(index);
  return Finish(index, EIO);
}

uint64_t ReadOperations::NextDue() const {
  uint64_t due = UINT64_MAX;
  for (const uint32_t index : ready_) due = std::min(due, slots_[index].due_ns);
  return due;
}

}  // namespace sluice
