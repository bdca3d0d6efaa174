// The weight matrices of a model (embedding, attention, gates, head): each resident in DRAM, or
// streamed through a StreamRing every time it is used, or mapped.
//
// Confined to the decode thread, which spreads products over a ThreadPool.
#ifndef SLUICE_RUNTIME_WEIGHT_STORE_H_
#define SLUICE_RUNTIME_WEIGHT_STORE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "io/aligned_buffer.h"
#include "layout/sluice_file.h"
#include "runtime/kernels/kernels.h"
#include "runtime/memory_plan.h"
#include "runtime/stream_ring.h"
#include "runtime/thread_pool.h"
#include "runtime/weight_io.h"

namespace sluice {

class WeightStore {
 public:
  // Takes the memory of the matrices that are resident by the plan, reads nothing yet. `map` is the
  // mapped file, or null; with a map every matrix is used where it lies. Borrows all references but
  // the plan.
  static absl::StatusOr<std::unique_ptr<WeightStore>> Create(
      const SluiceFile& file, const MemoryPlan& plan, const std::byte* map,
      const KernelTable& kernels, ThreadPool& pool, WeightIo& io, StreamRing& ring);

  // Reads and checks the resident matrices.
  absl::Status LoadResident();

  // out[v*out_stride + r] = row r . x[v]. For a streamed matrix the ring's next piece must be its
  // first.
  absl::Status Multiply(uint32_t matrix, std::span<const VectorView> x, float* out,
                        size_t out_stride);

  // The same of some rows of a matrix that is not streamed, the groups of `group_rows` rows that
  // are named, which come to lie one after another: out[v*out_stride + i*group_rows + r] = row r of
  // group i . x[v]. The bits are those of Multiply.
  absl::Status MultiplyGroups(uint32_t matrix, std::span<const uint32_t> groups,
                              uint32_t group_rows, std::span<const VectorView> x, float* out,
                              size_t out_stride);

  // Bytes of the rows of all products so far, each row once for all vectors of a call.
  uint64_t touched_bytes() const { return touched_bytes_; }

  // How long the decode thread has waited for reads so far.
  uint64_t stall_ns() const { return io_.stall_ns(); }

  // The embeddings of tokens as floats, out [n x d_model]. Reads a tile for each of them if the
  // embedding is not resident.
  absl::Status Embed(std::span<const int32_t> tokens, float* out);

  bool streamed(uint32_t matrix) const { return base_[matrix] == nullptr; }
  // Adds the pieces in which a streamed matrix passes through the ring; nothing for a resident one.
  void AppendPieces(uint32_t matrix, std::vector<StreamPiece>& pieces) const;
  // How many those are of a streamed one.
  static size_t NumPieces(const MatrixEntry& m, uint32_t piece_bytes);

  // Bytes of matrix `m` in DRAM, and of the buffer that Embed needs for one that is not, where up
  // to `chunk` tokens come at a time.
  static size_t ResidentBytes(const MatrixEntry& m) { return m.n_bytes(); }
  static size_t EmbedBufferBytes(const MatrixEntry& embedding, uint32_t chunk) {
    return size_t{std::min(chunk, kEmbedReads)} * embedding.tile_stride;
  }

 private:
  static constexpr uint32_t kEmbedReads = 8;  // in flight together

  WeightStore(const SluiceFile& file, const KernelTable& kernels, ThreadPool& pool, WeightIo& io,
              StreamRing& ring)
      : file_(file), kernels_(kernels), pool_(pool), io_(io), ring_(ring) {}

  absl::Status ReadTilesOf(std::span<const int32_t> tokens);
  // Checks tiles [first, first + count) at `bytes`; a damaged one is read once more, buffered.
  absl::Status CheckTiles(uint32_t matrix, uint32_t first, uint32_t count, std::byte* bytes);
  absl::Status CheckMappedTiles(uint32_t matrix);
  void MultiplyRows(const MatrixEntry& m, const std::byte* tiles, size_t begin, size_t end,
                    std::span<const VectorView> x, float* out, size_t out_stride) const;
  void MultiplyTiles(uint32_t matrix, uint32_t first_tile, uint32_t count, const std::byte* tiles,
                     std::span<const VectorView> x, float* out, size_t out_stride);

  const SluiceFile& file_;
  const KernelTable& kernels_;
  ThreadPool& pool_;
  WeightIo& io_;
  StreamRing& ring_;
  AlignedBuffer arena_;
  AlignedBuffer embed_buffer_;
  std::vector<const std::byte*> base_;  // by matrix; null: streamed
  std::vector<bool> checked_;           // mapped: by matrix; checked when first used
  bool mapped_ = false;
  uint64_t touched_bytes_ = 0;
};

// A tile or bundle that does not match its checksum, in the words of an error.
absl::Status DamagedWeights(const SluiceFile& file, std::string_view what, uint64_t offset);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_WEIGHT_STORE_H_
