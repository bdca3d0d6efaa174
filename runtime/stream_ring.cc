#include "runtime/stream_ring.h"

#include "io/status.h"

namespace sluice {

StreamRing::StreamRing(WeightIo& io, std::span<std::byte> memory, uint32_t piece_bytes)
    : io_(io),
      memory_(memory),
      piece_bytes_(piece_bytes),
      n_buffers_(static_cast<uint32_t>(memory.size() / piece_bytes)) {}

void StreamRing::Begin(std::span<const StreamPiece> sequence) {
  sequence_ = sequence;
  begun_ = true;
  submitted_ = consumed_ = 0;
  Fill();
}

void StreamRing::Fill() {
  while (submitted_ < sequence_.size() && submitted_ < consumed_ + n_buffers_ && io_.room() > 0) {
    const StreamPiece& p = sequence_[submitted_];
    io_.SubmitStream(
        {p.offset, p.length, buffer(submitted_), static_cast<uint32_t>(submitted_ % n_buffers_)});
    ++submitted_;
  }
}

absl::StatusOr<std::span<std::byte>> StreamRing::Next() {
  SLUICE_RETURN_IF_ERROR(io_.Pump());
  Fill();  // demand reads may have left no room when the buffer became free
  while (submitted_ == consumed_ ||
         !io_.stream_landed(static_cast<uint32_t>(consumed_ % n_buffers_))) {
    SLUICE_RETURN_IF_ERROR(io_.WaitAndPump());
    Fill();
  }
  return std::span<std::byte>(buffer(consumed_), sequence_[consumed_].length);
}

void StreamRing::Release() {
  ++consumed_;
  Fill();
}

void StreamRing::Cancel() {
  if (submitted_ > consumed_) io_.Drain();
  sequence_ = {};
  begun_ = false;
  submitted_ = consumed_ = 0;
}

}  // namespace sluice
