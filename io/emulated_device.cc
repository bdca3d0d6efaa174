#include "io/emulated_device.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/clock.h"
#include "io/futex.h"
#include "io/status.h"

namespace sluice {
namespace {

// A sleep may last so much longer than asked for; the rest is spun.
constexpr uint64_t kSleepSlackNs = 60'000;

}  // namespace

uint64_t EmulatedDevice::Enqueue(uint64_t now_ns, uint64_t offset, uint32_t length,
                                 CoreClass core) {
  const double contention = model_.ContentionFactor(n_submitters_.load());
  const std::lock_guard lock(mutex_);
  const bool random = offset != next_sequential_;
  next_sequential_ = offset + length;
  recent_[n_recent_++ % kRecent] = offset;
  const auto end = recent_.begin() + static_cast<ptrdiff_t>(std::min(n_recent_, kRecent));
  const auto [lowest, highest] = std::minmax_element(recent_.begin(), end);
  // Of n uniform draws the extremes span (n - 1) / (n + 1) of the range.
  const auto n = static_cast<double>(std::min(n_recent_, kRecent));
  const double span = static_cast<double>(*highest - *lowest) * (n + 1) / std::max(n - 1, 1.0);
  const auto range = static_cast<uint64_t>(span) + length;
  const double service = model_.ServiceNs(random, length, range, core) * contention;
  free_at_ns_ = std::max(free_at_ns_, now_ns) + static_cast<uint64_t>(service);
  return free_at_ns_;
}

void EmulatedDevice::CountLanded(uint64_t submitted_ns, uint64_t due_ns, uint64_t now_ns) {
  n_landed_.fetch_add(1, std::memory_order_relaxed);
  if (now_ns > due_ns + (due_ns - submitted_ns) / 20) {
    n_late_.fetch_add(1, std::memory_order_relaxed);
  }
}

double EmulatedDevice::late_share() const {
  const uint64_t landed = n_landed_.load();
  return landed == 0 ? 0 : static_cast<double>(n_late_.load()) / static_cast<double>(landed);
}

EmulatedEngine::EmulatedEngine(std::unique_ptr<ReadEngine> inner,
                               std::shared_ptr<EmulatedDevice> device, CoreClass core)
    : inner_(std::move(inner)),
      device_(std::move(device)),
      core_(core),
      depth_(std::min(inner_->depth(), device_->model().queue_entries())),
      description_(absl::StrFormat("EMULATED %s (%s core) over %s", device_->model().name(),
                                   CoreClassName(core), inner_->description())),
      slots_(depth_),
      inner_results_(depth_) {
  for (uint32_t s = depth_; s-- > 0;) free_.push_back(s);
  device_->AddSubmitter();
}

EmulatedEngine::~EmulatedEngine() { device_->RemoveSubmitter(); }

absl::StatusOr<uint32_t> EmulatedEngine::Submit(std::span<const ReadOp> ops) {
  uint32_t taken = 0;
  for (; taken < ops.size() && !free_.empty(); ++taken) {
    ReadOp op = ops[taken];
    const uint32_t slot = free_.back();
    op.user = slot;
    SLUICE_ASSIGN_OR_RETURN(const uint32_t accepted, inner_->Submit({&op, 1}));
    if (accepted == 0) break;
    free_.pop_back();
    ++in_inner_;
    const uint64_t now_ns = NowNs();
    slots_[slot] = {.user = ops[taken].user,
                    .submitted_ns = now_ns,
                    .due_ns = device_->Enqueue(now_ns, op.offset, op.length, core_),
                    .busy = true};
  }
  return taken;
}

absl::Status EmulatedEngine::CollectInner(bool wait) {
  if (in_inner_ == 0) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const uint32_t count, inner_->Reap(inner_results_, wait));
  const uint64_t now_ns = count > 0 ? NowNs() : 0;
  for (const ReadResult& r : std::span(inner_results_).first(count)) {
    Slot& slot = slots_[r.user];
    slot.result = r.result;
    slot.landed = true;
    device_->CountLanded(slot.submitted_ns, slot.due_ns, now_ns);
  }
  in_inner_ -= count;
  return absl::OkStatus();
}

// Hands out what has landed and is due; *next_due_ns is when the next that has landed will be.
uint32_t EmulatedEngine::Deliver(std::span<ReadResult> results, uint64_t now_ns,
                                 uint64_t* next_due_ns) {
  uint32_t count = 0;
  *next_due_ns = UINT64_MAX;
  for (uint32_t s = 0; s < slots_.size(); ++s) {
    Slot& slot = slots_[s];
    if (!slot.busy || !slot.landed) continue;
    if (slot.due_ns > now_ns || count == results.size()) {
      *next_due_ns = std::min(*next_due_ns, slot.due_ns);
      continue;
    }
    results[count++] = {slot.user, slot.result};
    slot.busy = false;
    free_.push_back(s);
  }
  return count;
}

absl::StatusOr<uint32_t> EmulatedEngine::Reap(std::span<ReadResult> results, bool wait) {
  if (free_.size() == slots_.size() || results.empty()) return 0;
  while (true) {
    SLUICE_RETURN_IF_ERROR(CollectInner(false));
    const uint64_t now_ns = NowNs();
    uint64_t next_due_ns;
    const uint32_t count = Deliver(results, now_ns, &next_due_ns);
    if (count > 0 || !wait) return count;
    const uint32_t wakes = wakes_.load();
    if (wakes != wakes_seen_) {
      wakes_seen_ = wakes;
      return 0;
    }
    if (next_due_ns == UINT64_MAX) {
      SLUICE_RETURN_IF_ERROR(CollectInner(true));  // Wake reaches it
    } else if (next_due_ns > now_ns + kSleepSlackNs) {
      // What has not landed yet may be due before.
      const uint64_t most_ns = in_inner_ > 0 ? 100'000 : 900'000'000;
      const uint64_t sleep_ns = std::min(next_due_ns - now_ns - kSleepSlackNs, most_ns);
      FutexWait(wakes_, wakes, sleep_ns);
    } else {
      CpuRelax();
    }
  }
}

void EmulatedEngine::Wake() {
  wakes_.fetch_add(1);
  FutexWake(wakes_);
  inner_->Wake();
}

}  // namespace sluice
