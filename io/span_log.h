// What threads and reads did, and when: for a picture of a token. Every lane has one writer, which
// overwrites the oldest span of its lane once the lane is full; nothing is allocated or locked
// after construction. To be read when no lane is being written: after the threads have ended.
#ifndef SLUICE_IO_SPAN_LOG_H_
#define SLUICE_IO_SPAN_LOG_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "io/clock.h"

namespace sluice {

struct Span {
  const char* name = "";  // of static lifetime
  uint64_t begin_ns = 0, end_ns = 0;
  uint64_t id = 0;     // a layer, a position, an offset in the file
  uint64_t bytes = 0;  // of a read
};

class SpanLog {
 public:
  SpanLog(size_t n_lanes, size_t lane_capacity);

  // By the lane's thread only.
  void Add(size_t lane, const Span& span) {
    Lane& l = lanes_[lane];
    l.spans[l.n_added++ % l.spans.size()] = span;
  }

  size_t n_lanes() const { return lanes_.size(); }
  // Those that are still there, in the order in which they were added.
  std::vector<Span> Spans(size_t lane) const;
  // Spans that ended before this time may have been overwritten; 0: none were.
  uint64_t complete_since_ns() const;

  // What goes on now, for those who do a part of it on another thread.
  const char* stage() const { return stage_.load(std::memory_order_relaxed); }
  void set_stage(const char* name) { stage_.store(name, std::memory_order_relaxed); }

 private:
  struct Lane {
    std::vector<Span> spans;
    uint64_t n_added = 0;
  };
  std::vector<Lane> lanes_;
  std::atomic<const char*> stage_{"other"};
};

// From here to the end of the block, on lane 0, whose stage it is. Null: nothing is logged.
class StageSpan {
 public:
  StageSpan(SpanLog* log, const char* name, uint64_t id) : log_(log), name_(name), id_(id) {
    if (log_ == nullptr) return;
    outer_ = log_->stage();
    log_->set_stage(name);
    begin_ns_ = NowNs();
  }
  ~StageSpan() {
    if (log_ == nullptr) return;
    log_->Add(0, {.name = name_, .begin_ns = begin_ns_, .end_ns = NowNs(), .id = id_});
    log_->set_stage(outer_);
  }
  StageSpan(const StageSpan&) = delete;
  StageSpan& operator=(const StageSpan&) = delete;

 private:
  SpanLog* const log_;
  const char* const name_;
  const uint64_t id_;
  const char* outer_ = nullptr;
  uint64_t begin_ns_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_IO_SPAN_LOG_H_
