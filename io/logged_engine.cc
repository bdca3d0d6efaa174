#include "io/logged_engine.h"

#include <algorithm>

#include "io/clock.h"
#include "io/status.h"

namespace sluice {

absl::StatusOr<uint32_t> LoggedEngine::Submit(std::span<const ReadOp> ops) {
  const uint64_t now_ns = NowNs();
  SLUICE_ASSIGN_OR_RETURN(const uint32_t taken, inner_->Submit(ops));
  for (const ReadOp& op : ops.first(taken)) {
    const Span span = {.name = "read", .begin_ns = now_ns, .id = op.offset, .bytes = op.length};
    in_flight_.push_back({op.user, span});
  }
  return taken;
}

absl::StatusOr<uint32_t> LoggedEngine::Reap(std::span<ReadResult> results, bool wait) {
  SLUICE_ASSIGN_OR_RETURN(const uint32_t count, inner_->Reap(results, wait));
  const uint64_t now_ns = NowNs();
  for (const ReadResult& r : results.first(count)) {
    const auto it = std::ranges::find(in_flight_, r.user, &InFlight::user);
    if (it == in_flight_.end()) continue;
    it->span.end_ns = now_ns;
    log_->Add(lane_, it->span);
    *it = in_flight_.back();
    in_flight_.pop_back();
  }
  return count;
}

}  // namespace sluice
