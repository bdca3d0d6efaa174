#include "runtime/weight_io.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "io/clock.h"
#include "io/status.h"

namespace sluice {
namespace {

// Tags of stream buffers and of tiles carry these bits; those of slots do not.
constexpr uint32_t kStreamTag = 1u << 31;
constexpr uint32_t kTileTag = 1u << 30;
constexpr size_t kCompletionsAtOnce = 256;

}  // namespace

WeightIo::WeightIo(IoThread& io, const StorageFile& file, uint32_t capacity,
                   uint32_t n_stream_buffers, SpanLog* spans)
    : io_(io), file_(file), capacity_(capacity), spans_(spans), completions_(kCompletionsAtOnce) {
  landed_.reserve(capacity);
  stream_landed_.resize(n_stream_buffers);
}

size_t WeightIo::Bytes(uint32_t capacity, uint32_t n_stream_buffers) {
  return IoThread::Bytes(capacity, kMostInFlight) + kCompletionsAtOnce * sizeof(IoCompletion) +
         capacity * sizeof(uint32_t) + n_stream_buffers;
}

void WeightIo::SubmitStream(IoRequest read) {
  stream_landed_[read.tag] = false;
  read.tag |= kStreamTag;
  Submit({&read, 1}, IoPriority::kLookAhead);
}

absl::Status WeightIo::SubmitTiles(std::span<IoRequest> reads) {
  n_tiles_landed_ = 0;
  for (IoRequest& read : reads) read.tag = kTileTag;
  while (!reads.empty()) {
    const size_t n = std::min<size_t>(reads.size(), room());
    Submit(reads.first(n), IoPriority::kDemand);
    reads = reads.subspan(n);
    if (!reads.empty()) SLUICE_RETURN_IF_ERROR(WaitAndPump());
  }
  return absl::OkStatus();
}

void WeightIo::Submit(std::span<const IoRequest> reads, IoPriority priority) {
  if (!io_.Submit(reads, priority)) overfull_ = true;
}

absl::Status WeightIo::FailedRead(const IoCompletion& completion) const {
  if (completion.error == ENODATA) {
    return absl::DataLossError(
        absl::StrFormat("%s: the file ended inside a read of weights at offset %u; it has become "
                        "shorter: copy or repack it again",
                        file_.path(), completion.offset));
  }
  return absl::UnavailableError(absl::StrFormat(
      "%s: a read of weights at offset %u failed after retries: %s; the storage may "
      "be failing",
      file_.path(), completion.offset, strerror(completion.error)));
}

absl::Status WeightIo::Pump() {
  absl::Status status;
  if (overfull_) status = absl::InternalError("more reads were asked for than the queue has room");
  size_t n;
  while ((n = io_.Poll(completions_)) > 0) {
    for (const IoCompletion& c : std::span(completions_).first(n)) {
      if (c.error != 0) {
        status.Update(FailedRead(c));
      } else if ((c.tag & kStreamTag) != 0) {
        stream_landed_[c.tag & ~kStreamTag] = true;
      } else if (c.tag == kTileTag) {
        ++n_tiles_landed_;
      } else {
        landed_.push_back(c.tag);
      }
    }
  }
  return status;
}

absl::Status WeightIo::WaitAndPump() {
  const uint64_t begin_ns = NowNs();
  io_.WaitForCompletion();
  const uint64_t end_ns = NowNs();
  stall_ns_ += end_ns - begin_ns;
  if (spans_ != nullptr) {
    spans_->Add(0, {.name = "stall", .begin_ns = begin_ns, .end_ns = end_ns});
  }
  return Pump();
}

void WeightIo::Drain() {
  while (io_.in_flight() > 0) {
    io_.WaitForCompletion();
    Pump().IgnoreError();
  }
  landed_.clear();
}

}  // namespace sluice
