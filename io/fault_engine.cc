#include "io/fault_engine.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/status.h"

namespace sluice {
namespace {

// The output function of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
// Generators, OOPSLA 2014).
uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15;

// Overwrites what came from bytes [begin, end) of the operation.
void Spoil(const ReadOp& op, size_t begin, size_t end) {
  memset(op.dst + begin, 0xdb, end - begin);
}

uint64_t Hash(uint64_t a, uint64_t b) { return Mix(Mix(a + kGoldenGamma) + b * kGoldenGamma + 1); }

}  // namespace

FaultEngine::FaultEngine(std::unique_ptr<ReadEngine> inner, const FaultConfig& config,
                         int direct_fd)
    : inner_(std::move(inner)),
      config_(config),
      direct_fd_(direct_fd),
      description_(
          absl::StrCat(inner_->description(), " with injected faults (seed ", config.seed, ")")),
      slots_(inner_->depth()),
      inner_results_(inner_->depth()),
      random_state_(config.seed) {
  for (uint32_t i = 0; i < inner_->depth(); ++i) free_.push_back(i);
}

uint64_t FaultEngine::NextRandom() { return Mix(random_state_ += kGoldenGamma); }

bool FaultEngine::Draw(Kind kind, double share, uint64_t offset, uint64_t attempt) const {
  if (share <= 0) return false;
  const uint64_t kind_seed = Hash(config_.seed, static_cast<uint64_t>(kind));
  const uint64_t bits = Hash(Hash(kind_seed, offset), attempt) >> 11;
  return static_cast<double>(bits) < share * 0x1p53;
}

bool FaultEngine::Replace(const ReadOp& op, uint64_t attempt, int32_t* result) const {
  if (op.offset < config_.eio_end && op.offset + op.length > config_.eio_begin) {
    *result = -EIO;
  } else if (op.fd == direct_fd_ && Draw(Kind::kEinval, config_.einval, op.offset, attempt)) {
    *result = -EINVAL;
  } else if (attempt == 0 && Draw(Kind::kEioOnce, config_.eio_once, op.offset, 0)) {
    *result = -EIO;
  } else if (Draw(Kind::kEintr, config_.eintr, op.offset, attempt)) {
    *result = -EINTR;
  } else if (Draw(Kind::kEagain, config_.eagain, op.offset, attempt)) {
    *result = -EAGAIN;
  } else if (Draw(Kind::kUnwritten, config_.unwritten, op.offset, attempt)) {
    *result = static_cast<int32_t>(op.length);
  } else {
    return false;
  }
  return true;
}

absl::StatusOr<uint32_t> FaultEngine::Submit(std::span<const ReadOp> ops) {
  size_t count = std::min(ops.size(), free_.size());
  if (config_.few && count > 1) count = 1 + NextRandom() % count;
  for (const ReadOp& op : ops.first(count)) SLUICE_RETURN_IF_ERROR(Start(op));
  return static_cast<uint32_t>(count);
}

absl::Status FaultEngine::Start(const ReadOp& op) {
  const uint64_t attempt = attempts_[op.offset]++;
  const uint32_t delay =
      Draw(Kind::kDelay, config_.delay, op.offset, attempt) ? config_.delay_reaps : 0;
  const uint32_t index = free_.back();
  free_.pop_back();
  Slot& slot = slots_[index];
  slot = {.op = op, .shorten_to = 0, .delay = delay};

  int32_t replaced = 0;
  if (Replace(op, attempt, &replaced)) {
    ++faults_;
    held_.push_back({{index, replaced}, reaps_ + delay});
    return absl::OkStatus();
  }
  if (op.length > 1 && Draw(Kind::kShort, config_.short_read, op.offset, attempt)) {
    ++faults_;
    slot.shorten_to =
        1 + static_cast<uint32_t>(Hash(config_.seed ^ op.offset, attempt) % (op.length - 1));
  }
  ReadOp inner_op = op;
  inner_op.user = index;
  SLUICE_ASSIGN_OR_RETURN(const uint32_t taken, inner_->Submit({&inner_op, 1}));
  if (taken != 1) return absl::InternalError("the inner engine takes less than its depth");
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> FaultEngine::Reap(std::span<ReadResult> results, bool wait) {
  if (results.empty()) return 0;
  for (;;) {
    ++reaps_;
    // With results held back one must not sleep: they come of age by being asked for.
    const bool sleep = wait && held_.empty();
    SLUICE_ASSIGN_OR_RETURN(const uint32_t reaped, ReapInner(sleep));
    const uint32_t delivered = Deliver(results);
    const bool woken = sleep && reaped == 0;
    if (delivered > 0 || !wait || woken) return delivered;
  }
}

// Moves what the inner engine has finished to held_.
absl::StatusOr<uint32_t> FaultEngine::ReapInner(bool wait) {
  SLUICE_ASSIGN_OR_RETURN(const uint32_t count, inner_->Reap(inner_results_, wait));
  for (uint32_t i = 0; i < count; ++i) {
    ReadResult result = inner_results_[i];
    const Slot& slot = slots_[result.user];
    const int32_t shortened = static_cast<int32_t>(slot.shorten_to);
    if (shortened != 0 && result.result > shortened) {
      Spoil(slot.op, static_cast<size_t>(shortened), static_cast<size_t>(result.result));
      result.result = shortened;
    }
    held_.push_back({result, reaps_ + slot.delay});
  }
  return count;
}

// Stores the results that are due and frees their slots.
uint32_t FaultEngine::Deliver(std::span<ReadResult> results) {
  if (config_.reorder) {
    for (size_t i = held_.size(); i > 1; --i) std::swap(held_[i - 1], held_[NextRandom() % i]);
  }
  uint32_t delivered = 0;
  size_t kept = 0;
  for (const Held& held : held_) {
    if (delivered == results.size() || held.due > reaps_) {
      held_[kept++] = held;
      continue;
    }
    const uint32_t index = static_cast<uint32_t>(held.result.user);
    results[delivered++] = {slots_[index].op.user, held.result.result};
    free_.push_back(index);
  }
  held_.resize(kept);
  return delivered;
}

}  // namespace sluice
