#include "io/span_log.h"

#include <algorithm>

namespace sluice {

SpanLog::SpanLog(size_t n_lanes, size_t lane_capacity) : lanes_(n_lanes) {
  for (Lane& lane : lanes_) lane.spans.resize(std::max<size_t>(lane_capacity, 1));
}

std::vector<Span> SpanLog::Spans(size_t lane) const {
  const Lane& l = lanes_[lane];
  const size_t n = l.spans.size();
  if (l.n_added <= n) return {l.spans.begin(), l.spans.begin() + static_cast<long>(l.n_added)};
  std::vector<Span> spans = l.spans;
  std::rotate(spans.begin(), spans.begin() + static_cast<long>(l.n_added % n), spans.end());
  return spans;
}

uint64_t SpanLog::complete_since_ns() const {
  uint64_t since = 0;
  for (const Lane& l : lanes_) {
    // A lane's spans are added as they end.
    if (l.n_added > l.spans.size()) {
      since = std::max(since, l.spans[l.n_added % l.spans.size()].end_ns);
    }
  }
  return since;
}

}  // namespace sluice
