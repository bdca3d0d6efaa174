// Weights that do not stay in DRAM pass through here: large reads in a known order into a ring of
// buffers, so that reading the next pieces overlaps computing with the present one.
//
// Confined to the decode thread. Allocates nothing after construction.
#ifndef SLUICE_RUNTIME_STREAM_RING_H_
#define SLUICE_RUNTIME_STREAM_RING_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "runtime/weight_io.h"

namespace sluice {

// A run of tiles of a matrix or of bundles of a layer.
struct StreamPiece {
  static constexpr uint32_t kBundles = 0xffffffff;

  uint64_t offset = 0;
  uint32_t length = 0;
  uint32_t matrix = kBundles;  // index in the directory, or kBundles
  uint32_t layer = 0;          // kBundles only
  uint32_t first = 0;          // first tile or position
  uint32_t count = 0;          // tiles or positions
};

class StreamRing {
 public:
  // Borrows `memory`: n_buffers buffers of piece_bytes.
  StreamRing(WeightIo& io, std::span<std::byte> memory, uint32_t piece_bytes);

  uint32_t piece_bytes() const { return piece_bytes_; }

  // Starts reading `sequence` (borrowed until it is consumed or cancelled) from its beginning.
  // Nothing may be left of the sequence before; see Cancel.
  void Begin(std::span<const StreamPiece> sequence);
  // Nothing has been consumed since Begin.
  bool is_fresh() const { return begun_ && consumed_ == 0; }

  // The piece that Next will give; null if none is left.
  const StreamPiece* peek() const {
    return consumed_ < sequence_.size() ? &sequence_[consumed_] : nullptr;
  }
  // Waits for the next piece. Its bytes are the caller's until Release.
  absl::StatusOr<std::span<std::byte>> Next();
  // Gives the buffer back and starts the next read.
  void Release();
  // Waits for what is in flight and forgets the rest.
  void Cancel();

 private:
  void Fill();
  std::byte* buffer(size_t piece) const {
    return memory_.data() + piece % n_buffers_ * piece_bytes_;
  }

  WeightIo& io_;
  std::span<std::byte> memory_;
  const uint32_t piece_bytes_;
  const uint32_t n_buffers_;
  std::span<const StreamPiece> sequence_;
  bool begun_ = false;    // since the last Cancel
  size_t submitted_ = 0;  // pieces of the sequence whose reads have started
  size_t consumed_ = 0;   // pieces that have been released
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_STREAM_RING_H_
