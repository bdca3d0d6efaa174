#include "io/read_operations.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sluice {
namespace {

constexpr uint32_t kUnits = 64;
constexpr size_t kPage = 4096;
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

// The largest part that is so aligned, as are its 64 units.
std::span<std::byte> AlignedPart(std::span<std::byte> memory, size_t alignment) {
  const size_t skipped = -reinterpret_cast<uintptr_t>(memory.data()) % alignment;
  if (memory.size() < skipped) return {};
  return memory.subspan(skipped).first((memory.size() - skipped) / (kUnits * alignment) *
                                       (kUnits * alignment));
}

// Requests are told apart by slot and generation, never by the order in which they come back.
uint64_t UserOf(uint32_t index, uint32_t generation) {
  return static_cast<uint64_t>(generation) << 32 | index;
}
uint32_t IndexOf(uint64_t user) { return static_cast<uint32_t>(user); }
uint32_t GenerationOf(uint64_t user) { return static_cast<uint32_t>(user >> 32); }

}  // namespace

ReadOperations::ReadOperations(const StorageFile& file, uint32_t depth, uint32_t max_run,
                               std::span<std::byte> bounce)
    : file_(file),
      max_run_(max_run),
      bounce_(AlignedPart(bounce, std::max<size_t>(file.block(), kPage))),
      unit_bytes_(bounce_.size() / kUnits),
      slots_(depth),
      requests_(size_t{depth} * max_run) {
  free_.reserve(depth);
  ready_.reserve(depth);
  completed_.reserve(requests_.size());
  for (uint32_t i = depth; i > 0; --i) free_.push_back(i - 1);
}

size_t ReadOperations::Bytes(uint32_t depth, uint32_t max_run) {
  constexpr size_t kPerRequest = sizeof(IoRequest) + sizeof(IoCompletion);
  return size_t{depth} * (sizeof(Slot) + 2 * sizeof(uint32_t) + max_run * kPerRequest);
}

void ReadOperations::Add(std::span<const IoRequest> run) {
  const uint32_t index = free_.back();
  free_.pop_back();
  Slot& slot = slots_[index];
  slot = Slot{.count = static_cast<uint32_t>(run.size()),
              .together = run.size() > 1 && SpanBytes(run) <= unit_bytes_ * kUnits,
              .generation = slot.generation,
              .active = true};
  std::copy(run.begin(), run.end(), requests_.begin() + ptrdiff_t{index} * max_run_);
  ready_.push_back(index);
}

size_t ReadOperations::TakeReady(uint64_t now_ns, std::span<ReadOp> out) {
  size_t taken = 0;
  size_t kept = 0;
  for (const uint32_t index : ready_) {
    if (taken < out.size() && slots_[index].due_ns <= now_ns && MakeOp(index, &out[taken])) {
      ++taken;
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

// The bytes that were read stay where they are until the next TakeReady.
void ReadOperations::TakeBack(uint32_t index) {
  slots_[index].in_engine = false;
  used_units_ &= ~slots_[index].units;
  --in_engine_;
}

// The requests of a run that are not complete.
std::span<const IoRequest> ReadOperations::Left(uint32_t index) const {
  const Slot& slot = slots_[index];
  return std::span(requests_).subspan(size_t{index} * max_run_ + slot.first,
                                      slot.count - slot.first);
}

// False if there is no memory for it now.
bool ReadOperations::MakeOp(uint32_t index, ReadOp* op) {
  Slot& slot = slots_[index];
  const IoRequest& first = Left(index).front();
  *op = ReadOp{};
  op->user = UserOf(index, slot.generation);
  op->offset = first.offset + slot.done;
  if (slot.together) {
    const uint64_t bytes = SpanBytes(Left(index));
    if (!TakeBounce(bytes, &slot)) return false;
    op->length = static_cast<uint32_t>(bytes);
    op->dst = slot.bounce;
  } else {
    op->length = std::min(first.length - slot.done, kMostPerOperation);
    op->dst = first.dst + slot.done;
  }
  // What is left after a short read may be unaligned; direct I/O cannot read that.
  const uint64_t alignment_bits = op->offset | op->length | reinterpret_cast<uintptr_t>(op->dst);
  slot.direct = file_.direct() && direct_error_ == 0 && (alignment_bits & (file_.block() - 1)) == 0;
  op->fd = slot.direct ? file_.fd() : file_.buffered_fd();
  slot.in_engine = true;
  ++in_engine_;
  return true;
}

// The first units in a row that are free.
bool ReadOperations::TakeBounce(uint64_t bytes, Slot* slot) {
  const uint64_t count = (bytes + unit_bytes_ - 1) / unit_bytes_;
  const uint64_t row = count == kUnits ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
  for (uint64_t at = 0; at + count <= kUnits; ++at) {
    if ((used_units_ & row << at) != 0) continue;
    slot->units = row << at;
    slot->bounce = bounce_.data() + at * unit_bytes_;
    used_units_ |= slot->units;
    return true;
  }
  return false;
}

std::span<const IoCompletion> ReadOperations::OnResult(const ReadResult& result, uint64_t now_ns) {
  completed_.clear();
  const uint32_t index = IndexOf(result.user);
  if (index >= slots_.size()) return {};
  Slot& slot = slots_[index];
  if (!slot.in_engine || slot.generation != GenerationOf(result.user)) return {};
  TakeBack(index);

  if (result.result < 0) {
    OnError(index, -result.result, now_ns);
  } else if (result.result > 0) {
    OnBytes(index, static_cast<uint32_t>(result.result));
  } else if (slot.together) {
    AgainOneByOne(index);
  } else {
    FinishFirst(index, ENODATA);
  }
  return completed_;
}

void ReadOperations::OnBytes(uint32_t index, uint32_t got) {
  Slot& slot = slots_[index];
  const uint64_t begin = Left(index).front().offset + slot.done;
  const IoRequest& last = slot.together ? Left(index).back() : Left(index).front();
  if (got > last.offset + last.length - begin) return OnError(index, EOVERFLOW, 0);
  bytes_ += got;
  slot.busy_tries = 0;
  slot.eio_tries = 0;
  if (slot.together) CopyOut(index, got);
  // As many requests as these bytes reach to the end of.
  uint32_t n = 0;
  for (const IoRequest& r : Left(index)) {
    if (r.offset + r.length > begin + got) break;
    completed_.push_back({r.tag, 0, r.offset});
    ++n;
    if (!slot.together) break;
  }
  if (n > 0) slot.done = 0;
  slot.first += n;
  if (slot.first == slot.count) return Release(index);
  const uint64_t next = Left(index).front().offset;
  if (begin + got > next) slot.done = static_cast<uint32_t>(begin + got - next);
  if (slot.together) return AgainOneByOne(index);
  if (n == 0) ++retries_;
  ready_.push_back(index);
}

// What the operation in the bounce buffer has of the requests, of the last one perhaps a part.
void ReadOperations::CopyOut(uint32_t index, uint64_t got) {
  const uint64_t begin = Left(index).front().offset;
  for (const IoRequest& r : Left(index)) {
    const uint64_t at = r.offset - begin;
    if (at >= got) break;
    memcpy(r.dst, slots_[index].bounce + at, std::min<uint64_t>(r.length, got - at));
  }
}

void ReadOperations::OnError(uint32_t index, int error, uint64_t now_ns) {
  Slot& slot = slots_[index];
  const bool busy = error == EINTR || error == EAGAIN;
  if (busy && ++slot.busy_tries <= kMostBusyTries) {
    if (error == EAGAIN) slot.due_ns = now_ns + PauseNs(slot.busy_tries);
    return Again(index);
  }
  if (slot.together) return AgainOneByOne(index);
  if (error == EIO && ++slot.eio_tries <= kMostEioTries) return Again(index);
  if ((error == EINVAL || error == EOPNOTSUPP) && slot.direct) {
    if (direct_error_ == 0) {
      direct_error_ = error;
      direct_error_offset_ = Left(index).front().offset + slot.done;
    }
    return Again(index);
  }
  FinishFirst(index, error == EOVERFLOW ? EIO : error);
}

void ReadOperations::Again(uint32_t index) {
  ++retries_;
  ready_.push_back(index);
}

void ReadOperations::AgainOneByOne(uint32_t index) {
  slots_[index].together = false;
  slots_[index].units = 0;
  slots_[index].busy_tries = 0;
  Again(index);
}

// The first request of what is left ends with this error; the next one begins.
void ReadOperations::FinishFirst(uint32_t index, int error) {
  Slot& slot = slots_[index];
  const IoRequest& request = Left(index).front();
  completed_.push_back({request.tag, error, request.offset});
  slot.done = 0;
  slot.busy_tries = 0;
  slot.eio_tries = 0;
  if (++slot.first == slot.count) return Release(index);
  ready_.push_back(index);
}

void ReadOperations::Release(uint32_t index) {
  slots_[index].active = false;
  ++slots_[index].generation;
  free_.push_back(index);
}

std::span<const IoCompletion> ReadOperations::Abandon() {
  completed_.clear();
  ready_.clear();
  for (uint32_t index = 0; index < slots_.size(); ++index) {
    if (!slots_[index].active) continue;
    if (slots_[index].in_engine) TakeBack(index);
    for (const IoRequest& r : Left(index)) completed_.push_back({r.tag, EIO, r.offset});
    Release(index);
  }
  return completed_;
}

uint64_t ReadOperations::NextDue() const {
  uint64_t due = UINT64_MAX;
  for (const uint32_t index : ready_) due = std::min(due, slots_[index].due_ns);
  return due;
}

}  // namespace sluice
