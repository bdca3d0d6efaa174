#include "runtime/weight_store.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_format.h"
#include "io/status.h"

namespace sluice {
namespace {

constexpr uint32_t kLoadRead = 1 << 20;

uint32_t NumLoadReads(const MatrixEntry& m) {
  return static_cast<uint32_t>((m.n_bytes() + kLoadRead - 1) / kLoadRead);
}

// Vectors that are multiplied with a tile at a time: they and the tile stay in the L2 cache.
constexpr size_t kVectorBlock = 32;
constexpr size_t kRowUnit = 8;  // rows that kernels like to take together

uint32_t TilesPerPiece(const MatrixEntry& m, uint32_t piece_bytes) {
  return std::max<uint32_t>(piece_bytes / m.tile_stride, 1);
}

}  // namespace

absl::Status DamagedWeights(const SluiceFile& file, std::string_view what, uint64_t offset) {
  return absl::DataLossError(absl::StrFormat(
      "%s: %s at offset %u does not match its checksum; copy or repack the file again", file.path(),
      what, offset));
}

absl::StatusOr<std::unique_ptr<WeightStore>> WeightStore::Create(
    const SluiceFile& file, const MemoryPlan& plan, const std::byte* map,
    const KernelTable& kernels, ThreadPool& pool, WeightIo& io, StreamRing& ring) {
  auto store = std::unique_ptr<WeightStore>(new WeightStore(file, kernels, pool, io, ring));
  const auto& matrices = file.directory().matrices;
  store->base_.resize(matrices.size());
  store->mapped_ = map != nullptr;
  if (map != nullptr) {
    store->checked_.resize(matrices.size());
    for (size_t i = 0; i < matrices.size(); ++i) store->base_[i] = map + matrices[i].offset;
    return store;
  }
  size_t bytes = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (plan.resident[i]) bytes += ResidentBytes(matrices[i]);
  }
  SLUICE_ASSIGN_OR_RETURN(store->arena_, AlignedBuffer::Allocate(bytes));
  std::byte* at = store->arena_.data();
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (!plan.resident[i]) continue;
    store->base_[i] = at;
    at += ResidentBytes(matrices[i]);
  }
  const uint32_t embedding = file.MatrixIndex(MatrixRole::kEmbedding, 0);
  if (!plan.resident[embedding]) {
    SLUICE_ASSIGN_OR_RETURN(store->embed_buffer_, AlignedBuffer::Allocate(EmbedBufferBytes(
                                                      matrices[embedding], plan.chunk)));
  }
  return store;
}

// All reads go out in order as the queue has room for them; a matrix is checked as soon as it is
// there, while the next ones come.
absl::Status WeightStore::LoadResident() {
  if (mapped_) return absl::OkStatus();
  std::vector<uint32_t> missing(base_.size());  // reads that have not landed
  uint32_t next = 0;                            // the matrix to ask for
  uint64_t asked = 0;                           // bytes of it
  std::byte* dst = arena_.data();               // in the order of Create
  for (uint32_t i = 0; i < base_.size(); ++i) {
    if (base_[i] != nullptr) missing[i] = NumLoadReads(file_.matrix(i));
  }
  const auto ask = [&] {
    for (; next < base_.size(); ++next, asked = 0) {
      if (base_[next] == nullptr) continue;
      const MatrixEntry& m = file_.matrix(next);
      for (; asked < m.n_bytes(); asked += kLoadRead) {
        if (io_.room() == 0) return;
        const auto length =
            static_cast<uint32_t>(std::min<uint64_t>(kLoadRead, m.n_bytes() - asked));
        const IoRequest read = {m.offset + asked, length, dst, next};
        io_.SubmitSlots({&read, 1});
        dst += length;
      }
    }
  };
  std::byte* matrix = arena_.data();
  for (uint32_t i = 0; i < base_.size(); ++i) {
    if (base_[i] == nullptr) continue;
    while (missing[i] > 0) {
      ask();
      SLUICE_RETURN_IF_ERROR(io_.WaitAndPump());
      for (const uint32_t landed : io_.landed()) --missing[landed];
      io_.ClearLanded();
    }
    const MatrixEntry& m = file_.matrix(i);
    SLUICE_RETURN_IF_ERROR(CheckTiles(i, 0, m.n_tiles(), matrix));
    matrix += ResidentBytes(m);
  }
  return absl::OkStatus();
}

absl::Status WeightStore::CheckTiles(uint32_t matrix, uint32_t first, uint32_t count,
                                     std::byte* bytes) {
  const MatrixEntry& m = file_.matrix(matrix);
  const auto rows_of = [&](size_t t) {
    return std::span<std::byte>(bytes + t * m.tile_stride,
                                m.rows_in_tile(first + static_cast<uint32_t>(t)) * m.row_bytes());
  };
  std::atomic<bool> intact = true;
  pool_.Run(count, 1, [&](size_t begin, size_t end, int) {
    for (size_t t = begin; t < end; ++t) {
      if (!file_.TileIsIntact(matrix, first + static_cast<uint32_t>(t), rows_of(t))) intact = false;
    }
  });
  if (intact) return absl::OkStatus();
  // The device may have left the buffer untouched while claiming success: one more try, buffered.
  for (size_t t = 0; t < count; ++t) {
    const uint32_t tile = first + static_cast<uint32_t>(t);
    if (file_.TileIsIntact(matrix, tile, rows_of(t))) continue;
    const uint64_t offset = m.offset + uint64_t{tile} * m.tile_stride;
    SLUICE_RETURN_IF_ERROR(io_.file().ReadExactly(offset, rows_of(t)));
    if (!file_.TileIsIntact(matrix, tile, rows_of(t))) {
      return DamagedWeights(
          file_,
          absl::StrFormat("matrix %s of layer %u, rows from %u,", MatrixRoleName(m.role), m.layer,
                          tile * m.rows_per_tile),
          offset);
    }
  }
  return absl::OkStatus();
}

absl::Status WeightStore::CheckMappedTiles(uint32_t matrix) {
  if (!mapped_ || checked_[matrix]) return absl::OkStatus();
  const MatrixEntry& m = file_.matrix(matrix);
  std::atomic<bool> intact = true;
  pool_.Run(m.n_tiles(), 1, [&](size_t begin, size_t end, int) {
    for (size_t t = begin; t < end; ++t) {
      const auto tile = static_cast<uint32_t>(t);
      if (!file_.TileIsIntact(
              matrix, tile,
              {base_[matrix] + t * m.tile_stride, m.rows_in_tile(tile) * m.row_bytes()})) {
        intact = false;
      }
    }
  });
  if (intact) {
    checked_[matrix] = true;
    return absl::OkStatus();
  }
  return DamagedWeights(
      file_, absl::StrFormat("matrix %s of layer %u", MatrixRoleName(m.role), m.layer), m.offset);
}

// Of rows [begin, end) of what `tiles` begins with; the product of the first goes to out[0].
void WeightStore::MultiplyRows(const MatrixEntry& m, const std::byte* tiles, size_t begin,
                               size_t end, std::span<const VectorView> x, float* out,
                               size_t out_stride) const {
  const auto dot = kernels_.dot[static_cast<size_t>(m.type)];
  for (size_t row = begin; row < end;) {  // one tile, or the share of one
    const size_t tile = row / m.rows_per_tile;
    const size_t in_tile = row % m.rows_per_tile;
    RowSet rows;
    rows.base = tiles + tile * m.tile_stride + in_tile * m.row_bytes();
    rows.stride = m.row_bytes();
    rows.n_rows = std::min(end - row, m.rows_per_tile - in_tile);
    for (size_t v = 0; v < x.size(); v += kVectorBlock) {
      dot(rows, m.columns, &x[v], std::min(kVectorBlock, x.size() - v),
          out + v * out_stride + (row - begin), out_stride);
    }
    row += rows.n_rows;
  }
}

void WeightStore::MultiplyTiles(uint32_t matrix, uint32_t first_tile, uint32_t count,
                                const std::byte* tiles, std::span<const VectorView> x, float* out,
                                size_t out_stride) {
  const MatrixEntry& m = file_.matrix(matrix);
  const uint32_t first_row = first_tile * m.rows_per_tile;
  const uint32_t end_row = std::min(m.rows, (first_tile + count) * m.rows_per_tile);
  const size_t grain = WorthwhileGrain(m.row_bytes() * x.size(), kRowUnit);
  pool_.Run(end_row - first_row, grain, [&](size_t begin, size_t end, int) {
    MultiplyRows(m, tiles, begin, end, x, out + first_row + begin, out_stride);
  });
}

absl::Status WeightStore::MultiplyGroups(uint32_t matrix, std::span<const uint32_t> groups,
                                         uint32_t group_rows, std::span<const VectorView> x,
                                         float* out, size_t out_stride) {
  const MatrixEntry& m = file_.matrix(matrix);
  if (base_[matrix] == nullptr) {
    return absl::InternalError("rows of a matrix that is streamed are asked for by themselves");
  }
  SLUICE_RETURN_IF_ERROR(CheckMappedTiles(matrix));
  touched_bytes_ += groups.size() * group_rows * m.row_bytes();
  const size_t grain = WorthwhileGrain(m.row_bytes() * x.size(), kRowUnit);
  pool_.Run(groups.size() * group_rows, grain, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end;) {
      const size_t in_group = i % group_rows, n = std::min(end - i, group_rows - in_group);
      const size_t row = size_t{groups[i / group_rows]} * group_rows + in_group;
      MultiplyRows(m, base_[matrix], row, row + n, x, out + i, out_stride);
      i += n;
    }
  });
  return absl::OkStatus();
}

absl::Status WeightStore::Multiply(uint32_t matrix, std::span<const VectorView> x, float* out,
                                   size_t out_stride) {
  const MatrixEntry& m = file_.matrix(matrix);
  touched_bytes_ += m.rows * m.row_bytes();
  if (base_[matrix] != nullptr) {
    SLUICE_RETURN_IF_ERROR(CheckMappedTiles(matrix));
    MultiplyTiles(matrix, 0, m.n_tiles(), base_[matrix], x, out, out_stride);
    return absl::OkStatus();
  }
  for (uint32_t tile = 0; tile < m.n_tiles();) {
    const StreamPiece* piece = ring_.peek();
    if (piece == nullptr || piece->matrix != matrix || piece->first != tile) {
      return absl::InternalError("weights are streamed in another order than they are used");
    }
    const uint32_t count = piece->count;
    SLUICE_ASSIGN_OR_RETURN(const auto bytes, ring_.Next());
    SLUICE_RETURN_IF_ERROR(CheckTiles(matrix, tile, count, bytes.data()));
    MultiplyTiles(matrix, tile, count, bytes.data(), x, out, out_stride);
    ring_.Release();
    tile += count;
  }
  return absl::OkStatus();
}

absl::Status WeightStore::Embed(std::span<const int32_t> tokens, float* out) {
  const uint32_t matrix = file_.MatrixIndex(MatrixRole::kEmbedding, 0);
  const MatrixEntry& m = file_.matrix(matrix);
  const bool reads = base_[matrix] == nullptr;
  if (!reads) SLUICE_RETURN_IF_ERROR(CheckMappedTiles(matrix));
  while (!tokens.empty()) {
    const size_t most =
        reads ? std::min<size_t>(kEmbedReads, embed_buffer_.size() / m.tile_stride) : tokens.size();
    const auto batch = tokens.first(std::min(tokens.size(), most));
    if (reads) SLUICE_RETURN_IF_ERROR(ReadTilesOf(batch));
    for (size_t i = 0; i < batch.size(); ++i, out += m.columns) {
      const auto token = static_cast<uint32_t>(batch[i]);
      const std::byte* tile = reads ? embed_buffer_.data() + i * m.tile_stride
                                    : base_[matrix] + token / m.rows_per_tile * m.tile_stride;
      DecodeRow(m.type, {tile + token % m.rows_per_tile * m.row_bytes(), m.row_bytes()},
                {out, m.columns});
    }
    tokens = tokens.subspan(batch.size());
  }
  return absl::OkStatus();
}

// Reads and checks, for each token, the tile of its embedding; they come to lie one after another.
absl::Status WeightStore::ReadTilesOf(std::span<const int32_t> tokens) {
  const uint32_t matrix = file_.MatrixIndex(MatrixRole::kEmbedding, 0);
  const MatrixEntry& m = file_.matrix(matrix);
  IoRequest reads[kEmbedReads];
  const auto tile_of = [&](size_t i) { return static_cast<uint32_t>(tokens[i]) / m.rows_per_tile; };
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    reads[i] = {m.offset + uint64_t{tile_of(i)} * m.tile_stride, m.tile_stride,
                embed_buffer_.data() + size_t{i} * m.tile_stride};
  }
  SLUICE_RETURN_IF_ERROR(io_.SubmitTiles(std::span(reads).first(tokens.size())));
  while (io_.n_tiles_landed() < tokens.size()) SLUICE_RETURN_IF_ERROR(io_.WaitAndPump());
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(CheckTiles(matrix, tile_of(i), 1, reads[i].dst));
  }
  return absl::OkStatus();
}

size_t WeightStore::NumPieces(const MatrixEntry& m, uint32_t piece_bytes) {
  const uint32_t per_piece = TilesPerPiece(m, piece_bytes);
  return (m.n_tiles() + per_piece - 1) / per_piece;
}

void WeightStore::AppendPieces(uint32_t matrix, std::vector<StreamPiece>& pieces) const {
  if (!streamed(matrix)) return;
  const MatrixEntry& m = file_.matrix(matrix);
  const uint32_t per_piece = TilesPerPiece(m, ring_.piece_bytes());
  for (uint32_t tile = 0; tile < m.n_tiles(); tile += per_piece) {
    StreamPiece p;
    p.matrix = matrix;
    p.first = tile;
    p.count = std::min(per_piece, m.n_tiles() - tile);
    p.offset = m.offset + uint64_t{tile} * m.tile_stride;
    p.length = p.count * m.tile_stride;
    pieces.push_back(p);
  }
}

}  // namespace sluice
