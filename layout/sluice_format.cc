#include "layout/sluice_format.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/printable.h"
// Header-only use: XXH3 is the checksum of the format.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sluice {
namespace {

constexpr uint32_t kPlainDirectory = 1, kPredictorDirectory = 2;  // versions
constexpr uint32_t kProvenanceVersion = 1;
constexpr uint32_t kMaxBlock = 64 * 1024;

constexpr uint64_t RoundUp(uint64_t v, uint64_t multiple) {
  return (v + multiple - 1) / multiple * multiple;
}

uint32_t ChooseBlock(uint64_t payload) {
  return RoundUp(payload, 4096) * 4 <= payload * 5 ? 4096 : 512;
}

// Rows and columns that a role must have; `rank` is of the layer's predictor.
std::pair<uint32_t, uint32_t> ShapeOf(MatrixRole role, const ModelConfig& c, uint32_t rank) {
  switch (role) {
    case MatrixRole::kEmbedding:
    case MatrixRole::kHead:
      return {c.vocab_size, c.d_model};
    case MatrixRole::kQ:
      return {c.q_dim(), c.d_model};
    case MatrixRole::kK:
    case MatrixRole::kV:
      return {c.kv_dim(), c.d_model};
    case MatrixRole::kO:
      return {c.d_model, c.q_dim()};
    case MatrixRole::kGate:
      return {c.d_ff, c.d_model};
    case MatrixRole::kPredictor1:
    case MatrixRole::kHeadPredictor1:
      return {rank, c.d_model};
    case MatrixRole::kPredictor2:
      return {c.d_ff, rank};
    case MatrixRole::kHeadPredictor2:
      return {c.n_heads, rank};
  }
  return {0, 0};
}

// The roles and layers of a model's matrices in file order.
std::vector<std::pair<MatrixRole, uint32_t>> MatrixOrder(const ModelConfig& c, bool predictors,
                                                         bool head_predictors) {
  std::vector<std::pair<MatrixRole, uint32_t>> order = {{MatrixRole::kEmbedding, 0}};
  for (uint32_t l = 0; l < c.n_layers; ++l) {
    for (const MatrixRole r : {MatrixRole::kQ, MatrixRole::kK, MatrixRole::kV, MatrixRole::kO}) {
      order.emplace_back(r, l);
    }
  }
  if (!c.tied_head) order.emplace_back(MatrixRole::kHead, 0);
  for (uint32_t l = 0; l < c.n_layers; ++l) order.emplace_back(MatrixRole::kGate, l);
  for (uint32_t l = 0; predictors && l < c.n_layers; ++l) {
    order.emplace_back(MatrixRole::kPredictor1, l);
    order.emplace_back(MatrixRole::kPredictor2, l);
  }
  for (uint32_t l = 0; head_predictors && l < c.n_layers; ++l) {
    order.emplace_back(MatrixRole::kHeadPredictor1, l);
    order.emplace_back(MatrixRole::kHeadPredictor2, l);
  }
  return order;
}

MatrixEntry MakeMatrix(MatrixRole role, uint32_t layer, WeightType type, const ModelConfig& config,
                       uint32_t rank, uint32_t block) {
  MatrixEntry m;
  m.role = role;
  m.layer = layer;
  m.type = type;
  std::tie(m.rows, m.columns) = ShapeOf(role, config, rank);
  const uint64_t row = m.row_bytes();
  m.rows_per_tile = static_cast<uint32_t>(std::clamp<uint64_t>(kTileTarget / row, 1, m.rows));
  m.tile_stride = static_cast<uint32_t>(RoundUp(m.rows_per_tile * row, block));
  return m;
}

struct Region {
  uint64_t begin, end;
  std::string name;
};

absl::Status CheckRegions(std::vector<Region> regions, uint64_t file_size) {
  std::sort(regions.begin(), regions.end(),
            [](const Region& a, const Region& b) { return a.begin < b.begin; });
  uint64_t end = kHeaderBytes;
  std::string before = "the header";
  for (const Region& r : regions) {
    if (r.begin < end) {
      return absl::DataLossError(absl::StrFormat("%s begins at %u, inside %s, which ends at %u",
                                                 r.name, r.begin, before, end));
    }
    if (r.end > file_size) {
      return absl::DataLossError(
          absl::StrFormat("%s ends at %u, beyond the file's %u bytes", r.name, r.end, file_size));
    }
    end = r.end;
    before = r.name;
  }
  return absl::OkStatus();
}

absl::Status CheckMatrix(const MatrixEntry& m, MatrixRole role, uint32_t layer,
                         const ModelConfig& config, uint32_t rank, uint32_t block,
                         const std::string& name) {
  const auto [rows, columns] = ShapeOf(role, config, rank);
  if (m.role != role || m.layer != layer || m.rows != rows || m.columns != columns) {
    return absl::DataLossError(
        absl::StrFormat("%s: entry is %s of layer %u, %u x %u; the config "
                        "asks for %u x %u",
                        name, MatrixRoleName(m.role), m.layer, m.rows, m.columns, rows, columns));
  }
  const uint64_t payload = static_cast<uint64_t>(m.rows_per_tile) * m.row_bytes();
  // A reader's buffers hold a tile, so its size must be bounded.
  if (m.rows_per_tile == 0 || m.rows_per_tile > m.rows ||
      (m.rows_per_tile > 1 && payload > kTileTarget) || m.tile_stride % block != 0 ||
      m.tile_stride < payload || m.tile_stride - payload >= block || m.offset % block != 0) {
    return absl::DataLossError(
        absl::StrFormat("%s: tiles of %u rows with a stride of %u bytes at offset %u are not valid",
                        name, m.rows_per_tile, m.tile_stride, m.offset));
  }
  return absl::OkStatus();
}

absl::Status CheckBundles(const BundleLayout& b, const ModelConfig& config) {
  if (b.block < 512 || b.block > kMaxBlock || !std::has_single_bit(b.block)) {
    return absl::DataLossError(absl::StrFormat("block size %u is not valid", b.block));
  }
  if (b.d_model != config.d_model || b.d_ff != config.d_ff ||
      b.layer_offsets.size() != config.n_layers) {
    return absl::DataLossError(absl::StrFormat(
        "bundles of %u layers, width %u, FFN %u do not fit the config's %u layers, width %u, FFN "
        "%u",
        b.layer_offsets.size(), b.d_model, b.d_ff, config.n_layers, config.d_model, config.d_ff));
  }
  if (b.stride % b.block != 0 || b.stride < b.payload_bytes() ||
      b.stride - b.payload_bytes() >= b.block) {
    return absl::DataLossError(absl::StrFormat("bundle stride %u is not valid", b.stride));
  }
  if (b.blob_bytes == 0 || b.blob_bytes % kBlobAlignment != 0 ||
      b.blob_bytes >= b.stride + kBlobAlignment || b.bundles_per_blob == 0 ||
      static_cast<uint64_t>(b.bundles_per_blob) * b.stride > b.blob_bytes) {
    return absl::DataLossError(absl::StrFormat("blobs of %u bytes with %u bundles are not valid",
                                               b.blob_bytes, b.bundles_per_blob));
  }
  for (const uint64_t offset : b.layer_offsets) {
    if (offset % kBlobAlignment != 0) {
      return absl::DataLossError(absl::StrFormat("blobs at %u are not 512 KiB-aligned", offset));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadType(ByteReader& in, std::string_view what, WeightType& type) {
  const auto value = in.Get<uint8_t>();
  if (value > static_cast<uint8_t>(WeightType::kQ4)) {
    return absl::DataLossError(
        absl::StrFormat("directory record: %s of unknown type %u", what, value));
  }
  type = static_cast<WeightType>(value);
  return absl::OkStatus();
}

// Bounded so that sums of offsets and sizes cannot wrap.
absl::Status ReadOffset(ByteReader& in, std::string_view what, uint32_t index, uint64_t& offset) {
  offset = in.Get<uint64_t>();
  if (offset < uint64_t{1} << 62) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("directory record: %s %u has the wild offset %u", what, index, offset));
}

}  // namespace

uint64_t Checksum64(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

std::string_view MatrixRoleName(MatrixRole role) {
  constexpr std::string_view kNames[] = {"embedding",
                                         "q",
                                         "k",
                                         "v",
                                         "o",
                                         "gate",
                                         "head",
                                         "predictor fc1",
                                         "predictor fc2",
                                         "head predictor fc1",
                                         "head predictor fc2"};
  const auto i = static_cast<size_t>(role);
  return i < std::size(kNames) ? kNames[i] : "?";
}

Directory MakeDirectory(const ModelConfig& config, const DirectoryShape& shape) {
  Directory d;
  BundleLayout& b = d.bundles;
  b.type = shape.bundle_type;
  b.has_gate = shape.gate_in_bundles;
  b.has_up = config.gated;
  b.d_model = config.d_model;
  b.d_ff = config.d_ff;
  b.block = shape.block != 0 ? shape.block : ChooseBlock(b.payload_bytes());
  b.stride = static_cast<uint32_t>(RoundUp(b.payload_bytes(), b.block));
  b.blob_bytes = RoundUp(b.stride, kBlobAlignment);
  b.bundles_per_blob = static_cast<uint32_t>(b.blob_bytes / b.stride);
  uint64_t at = kHeaderBytes;
  for (const auto& [role, layer] :
       MatrixOrder(config, !shape.predictor_ranks.empty(), !shape.head_predictor_ranks.empty())) {
    const bool of_heads = IsHeadPredictor(role);
    const auto& ranks = of_heads ? shape.head_predictor_ranks : shape.predictor_ranks;
    const bool predicts = IsPredictor(role);
    const WeightType type =
        predicts ? WeightType::kQ8 : shape.matrix_types[static_cast<size_t>(role)];
    MatrixEntry m = MakeMatrix(role, layer, type, config, predicts ? ranks[layer] : 0, b.block);
    at = RoundUp(at, b.block);
    m.offset = at;
    at += m.n_bytes();
    if (role == MatrixRole::kGate) {  // the layer's blobs follow its gate matrix
      at = RoundUp(at, kBlobAlignment);
      b.layer_offsets.push_back(at);
      at += b.layer_bytes();
    }
    d.matrices.push_back(m);
  }
  return d;
}

uint64_t DirectoryEnd(const Directory& d) {
  const uint64_t blobs = d.bundles.layer_offsets.back() + d.bundles.layer_bytes();
  if (!d.has_predictors()) return blobs;
  const MatrixEntry& last = d.matrices.back();
  return std::max(blobs, last.offset + last.n_bytes());
}

absl::Status ValidateDirectory(const Directory& d, const ModelConfig& config, uint64_t file_size) {
  SLUICE_RETURN_IF_ERROR(CheckBundles(d.bundles, config));
  if (d.has_predictors() && !d.bundles.has_gate) {
    return absl::DataLossError("directory has predictors, but no gate rows in its bundles");
  }
  const auto order = MatrixOrder(config, d.has_predictors(), d.has_head_predictors());
  if (d.matrices.size() != order.size()) {
    return absl::DataLossError(absl::StrFormat("directory has %u matrices; the config asks for %u",
                                               d.matrices.size(), order.size()));
  }
  // Offsets are below 2^63 here (ReadDirectory), and every size below is under 2^45, so no sum
  // wraps.
  std::vector<Region> regions;
  uint32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto [role, layer] = order[i];
    const MatrixEntry& m = d.matrices[i];
    std::string name = absl::StrFormat("matrix %s of layer %u", MatrixRoleName(role), layer);
    if (role == MatrixRole::kPredictor1 || role == MatrixRole::kHeadPredictor1) {
      rank = m.rows;
      if (rank == 0 || rank > kMaxRank || rank % kQuantBlock != 0) {
        return absl::DataLossError(absl::StrFormat("%s: rank %u is not a multiple of %u up to %u",
                                                   name, rank, kQuantBlock, kMaxRank));
      }
    }
    SLUICE_RETURN_IF_ERROR(CheckMatrix(m, role, layer, config, rank, d.bundles.block, name));
    regions.push_back({m.offset, m.offset + m.n_bytes(), std::move(name)});
  }
  for (uint32_t l = 0; l < config.n_layers; ++l) {
    const uint64_t begin = d.bundles.layer_offsets[l];
    regions.push_back(
        {begin, begin + d.bundles.layer_bytes(), absl::StrFormat("blobs of layer %u", l)});
  }
  return CheckRegions(std::move(regions), file_size);
}

uint64_t VectorSize(LayerVector vector, const ModelConfig& c) {
  const bool layer_norm = c.norm == NormKind::kLayer;
  switch (vector) {
    case LayerVector::kAttentionNorm:
    case LayerVector::kFfnNorm:
      return c.d_model;
    case LayerVector::kQBias:
      return c.qkv_bias ? c.q_dim() : 0;
    case LayerVector::kKBias:
    case LayerVector::kVBias:
      return c.qkv_bias ? c.kv_dim() : 0;
    case LayerVector::kAttentionNormBias:
    case LayerVector::kFfnNormBias:
      return layer_norm ? c.d_model : 0;
    case LayerVector::kOBias:
      return c.o_bias ? c.d_model : 0;
    case LayerVector::kUpBias:
      return c.ffn_bias ? c.d_ff : 0;
    case LayerVector::kDownBias:
      return c.ffn_bias ? c.d_model : 0;
  }
  return 0;
}

uint64_t LayerVectorCount(const ModelConfig& c) {
  uint64_t n = 0;
  for (size_t v = 0; v < kLayerVectors; ++v) n += VectorSize(static_cast<LayerVector>(v), c);
  return n;
}

uint64_t VectorCount(const ModelConfig& c) {
  const uint64_t norms = c.norm == NormKind::kLayer ? 2 : 1;
  const uint64_t positions = c.learned_positions ? c.context_length : 0;
  return c.n_layers * LayerVectorCount(c) + (norms + positions) * c.d_model + c.rope_dim() / 2;
}

void WriteDirectory(const Directory& d, ByteWriter& out) {
  const bool plain = !d.needs_predictor_feature();
  out.Put<uint32_t>(plain ? kPlainDirectory : kPredictorDirectory);
  const BundleLayout& b = d.bundles;
  out.Put<uint8_t>(static_cast<uint8_t>(b.type));
  if (!plain) out.Put<uint8_t>(b.has_gate);
  for (const uint32_t v : {b.block, b.stride, b.bundles_per_blob, b.d_model, b.d_ff}) {
    out.Put<uint32_t>(v);
  }
  out.Put<uint64_t>(b.blob_bytes);
  out.Put<uint32_t>(static_cast<uint32_t>(b.layer_offsets.size()));
  for (const uint64_t offset : b.layer_offsets) out.Put<uint64_t>(offset);
  out.Put<uint32_t>(static_cast<uint32_t>(d.matrices.size()));
  for (const MatrixEntry& m : d.matrices) {
    out.Put<uint8_t>(static_cast<uint8_t>(m.role));
    out.Put<uint8_t>(static_cast<uint8_t>(m.type));
    for (const uint32_t v : {m.layer, m.rows, m.columns, m.rows_per_tile, m.tile_stride}) {
      out.Put<uint32_t>(v);
    }
    out.Put<uint64_t>(m.offset);
  }
}

absl::StatusOr<Directory> ReadDirectory(ByteReader& in) {
  const auto version = in.Get<uint32_t>();
  if (version != kPlainDirectory && version != kPredictorDirectory) {
    return absl::FailedPreconditionError("directory record has another version");
  }
  Directory d;
  BundleLayout& b = d.bundles;
  SLUICE_RETURN_IF_ERROR(ReadType(in, "bundles", b.type));
  if (version == kPredictorDirectory) {
    const auto flag = in.Get<uint8_t>();
    if (flag > 1) {
      return absl::DataLossError(absl::StrFormat("directory record: unknown flags 0x%x", flag));
    }
    b.has_gate = flag == 1;
  }
  for (uint32_t* v : {&b.block, &b.stride, &b.bundles_per_blob, &b.d_model, &b.d_ff}) {
    *v = in.Get<uint32_t>();
  }
  b.blob_bytes = in.Get<uint64_t>();
  const auto n_layers = in.Get<uint32_t>();
  if (n_layers > in.remaining() / 8) return absl::DataLossError("directory record is cut short");
  for (uint32_t l = 0; l < n_layers; ++l) {
    SLUICE_RETURN_IF_ERROR(ReadOffset(in, "layer", l, b.layer_offsets.emplace_back()));
  }
  const auto n_matrices = in.Get<uint32_t>();
  if (n_matrices > in.remaining() / 30) return absl::DataLossError("directory record is cut short");
  for (uint32_t i = 0; i < n_matrices; ++i) {
    MatrixEntry m;
    const auto role = in.Get<uint8_t>();
    if (role > static_cast<uint8_t>(MatrixRole::kHeadPredictor2)) {
      return absl::DataLossError(
          absl::StrFormat("directory record: matrix %u has unknown role %u", i, role));
    }
    m.role = static_cast<MatrixRole>(role);
    SLUICE_RETURN_IF_ERROR(ReadType(in, MatrixRoleName(m.role), m.type));
    for (uint32_t* v : {&m.layer, &m.rows, &m.columns, &m.rows_per_tile, &m.tile_stride}) {
      *v = in.Get<uint32_t>();
    }
    SLUICE_RETURN_IF_ERROR(ReadOffset(in, "matrix", i, m.offset));
    d.matrices.push_back(m);
  }
  if (!in.ok()) return absl::DataLossError("directory record is cut short");
  return d;
}

void WriteProvenance(const Provenance& p, ByteWriter& out) {
  out.Put<uint32_t>(kProvenanceVersion);
  out.PutString(p.source_name);
  out.PutString(p.source_types);
  out.PutString(p.writer);
  for (const float v : {p.resident_error, p.gate_error, p.up_error, p.down_error}) {
    out.Put<float>(v);
  }
}

absl::StatusOr<Provenance> ReadProvenance(ByteReader& in) {
  if (in.Get<uint32_t>() != kProvenanceVersion) {
    return absl::FailedPreconditionError("provenance record has another version");
  }
  Provenance p;
  for (std::string* text : {&p.source_name, &p.source_types, &p.writer}) {
    *text = Printable(in.GetString(), kMaxNameBytes);
  }
  for (float* v : {&p.resident_error, &p.gate_error, &p.up_error, &p.down_error}) {
    *v = in.Get<float>();
  }
  if (!in.ok()) return absl::DataLossError("provenance record is cut short");
  return p;
}

}  // namespace sluice
