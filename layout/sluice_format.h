// The `.sluice` file: a model laid out for streaming from flash. First its structure, then the
// records that are in it, field by field.
//
// Structure
// ---------
// All integers are little-endian. The file is a header, big regions that are read while decoding,
// and small sections that are read once at open:
//
//   0          Header, 4096 bytes
//   ...        matrices: embedding, per layer Q K V O, head; each begins on a multiple of `block`
//   ...        per layer: gate matrix, then the layer's blobs (each on a multiple of 512 KiB)
//   ...        per layer: the two matrices of its predictor, if there are predictors
//   ...        per layer: the two matrices of its predictor of heads, if there are such
//   ...        small sections, zstd-compressed
//   ...        section table
//   file_size
//
// Header:
//   offset 0  u8[8]  magic 89 'S' 'L' 'U' 'I' 'C' 'E' 0A
//          8  u16    major version: a reader refuses a larger one
//         10  u16    minor version: additions that old readers may ignore
//         12  u32    header bytes (4096)
//         16  u64    incompatible feature bits: a reader refuses any that it does not know
//         24  u64    compatible feature bits: a reader ignores what it does not know
//         32  u64    file size; another size on disk means a truncated or damaged copy
//         40  u64    offset of the section table
//         48  u32    number of sections
//         52  u32    zero
//         56  u64    XXH3-64 of the section table
//         64  u64    model id: XXH3-64 of the checksums of all sections but provenance; ties
//                    profiles and probes to this file
//       4088  u64    XXH3-64 of the 4088 bytes before
//
// Section table: 40 bytes an entry: u32 kind, u32 zero, u64 offset, u64 stored bytes, u64 raw
// bytes, u64 XXH3-64 of the stored bytes. Kinds 1 to 7 occur exactly once, 8 exactly if there are
// predictors, 9 and 11 at most once, 10 exactly if there are predictors of heads (feature bit 2);
// unknown kinds are ignored.
//
// Matrix: rows of one WeightType (layout/weight_type.h) in tiles: `rows_per_tile` rows (together at
// most kTileTarget bytes, or a single larger row), then zero padding to `tile_stride`, a multiple
// of `block`, so that any run of tiles can be read with direct I/O. Tile t has a 32-bit checksum:
// the low half of XXH3-64 of its rows, seeded with MatrixSeed(matrix index, t). Rows of a gate
// matrix are in neuron order (position, not id).
//
// Bundle: what a neuron needs once its gate has fired: the up row, then the down column (a
// contiguous row of d_model elements), then zero padding to `stride`, a multiple of `block`. The
// gate rows are apart, in the gate matrix, since they are what decides: they are read for every
// neuron, or stay in DRAM. Where a predictor decides (feature bit 0), the bundle has the gate row
// too, before the up row, so that no gate row need be read for neurons that it leaves out; the gate
// matrix is still there, for the modes that ask every gate. A bundle's checksum is the low half of
// XXH3-64 of its rows, seeded with BundleSeed(layer, neuron id), so that a misdirected read fails
// as well as a damaged one.
// Blob: `bundles_per_blob` bundles, then padding to `blob_bytes`, a multiple of 512 KiB. A layer's
// blobs are contiguous. The bundle at position p of a layer lies at
//   layer offset + (p / bundles_per_blob) * blob_bytes + (p % bundles_per_blob) * stride.
//
// Records
// -------
// A section, unpacked, is one record. Its fields follow each other without padding. A string is a
// u32 number of bytes and the bytes, a flag a u8 that is 0 or 1. A reader refuses versions that it
// does not know and ignores bytes behind the fields that it knows.
//
// Config (kind 1):
//   u32     version, 1
//   string  architecture: "llama", "qwen2", "bamboo", "opt", "nemotron", "arcee"
//   string  name
//   u32     layers, d_model, d_ff, heads, KV heads, head dimension, tokens in the vocabulary,
//           context length: 8 fields
//   f32     epsilon of the norms, RoPE base, activation threshold (0 unless FATReLU)
//   u8      RoPE turns elements: 0 2i and 2i+1, 1 i and i + half a head
//   u8      activation: 0 SiLU, 1 ReLU, 2 ReLU squared, 3 FATReLU, 4 dReLU
//   u8      where the activation was learned: 0 assumed, 1 from the source, 2 from a flag
//   flag    the head is the embedding matrix
//   flag    biases on Q, K and V
//   u32     attention window in tokens, 0: none. Since 1.1; a record may end before it.
// and with feature bit 1, for relatives of the Llama family:
//   u8      norms: 0 RMS, 1 layer norm
//   flag    the FFN has no gate: where a gate matrix would be there is the up matrix
//   flag    a bias on O
//   flag    biases on up and down; only without a gate
//   flag    learned positions
//   u32     elements at the end of a head that RoPE leaves alone
//
// Tokenizer (kind 2):
//   u32     version, 1
//   u8      kind: 0 SentencePiece, 1 byte-level BPE
//   u8      how byte-level BPE splits text first: 0 default, 1 GPT-2, 2 Llama 3, 3 DeepSeek LLM,
//           4 DeepSeek Coder, 5 Falcon, 6 Qwen2
//   flag    BOS goes before a text
//   flag    EOS goes behind a text
//   u8      SpacePrefix (layout/tokenizer_data.h): 0 none, 1 each part, 2 first part unless it
//           begins with a space, 3 each part unless so. In 1.0 a flag.
//   flag    a word that is a token is taken whole, unmerged
//   i32     BOS, EOS, end of turn (1.0; -1 since), unknown: ids of tokens, -1 for none
//   u32 n   further tokens that end generation, at most 64, then n * i32
//   u32 n   tokens, as many as the config says, then n * string: with U+2581 for a space
//           (SentencePiece) or in the byte-level alphabet
//   n * u8  their types: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
//   n * f32 their scores; not there with byte-level BPE
//   u32 m   merges in rank order, then m * string: "left right"; none with SentencePiece
//
// Directory (kind 3):
//   u32     version: 1, or 2 with feature bit 0
//   u8      WeightType of the bundles: 0 f32, 1 f16, 2 q8, 3 q4
//   flag    bundles begin with the gate row. In version 2 only.
//   u32     block, stride, bundles per blob, d_model, d_ff: 5 fields
//   u64     bytes of a blob
//   u32 n   layers, then n * u64: the offset of the layer's blobs
//   u32 n   matrices, in the order embedding; Q, K, V, O of each layer; head, unless it is tied;
//           gate of each layer; if there are predictors, their two of each layer; behind those, if
//           there are predictors of heads, their two of each layer. Then for each:
//     u8      MatrixRole: 0 embedding, 1 Q, 2 K, 3 V, 4 O, 5 gate, 6 head; of a predictor
//             7 fc1 [rank x d_model] and 8 fc2 [d_ff x rank], rank a multiple of 32, rows by
//             position; of a predictor of heads 9 fc1 [rank x d_model] and 10 fc2 [heads x rank]
//     u8      WeightType
//     u32     layer (0 for embedding and head), rows, columns, rows per tile, tile stride: 5 fields
//     u64     offset
//
// Vectors (kind 4), f32 each: for each layer the attention norm [d_model], the FFN norm [d_model]
// and, with biases, those of Q [heads * head dimension], K and V [KV heads * head dimension], of
// the two norms if they are layer norms, of O [d_model], of up [d_ff, by neuron id and not by
// position: it does not change with the order] and of down [d_model]; the output norm [d_model] and
// its bias; the divisors of RoPE's frequencies [rotated elements of a head / 2], 1 where the model
// has none; the learned positions [context length x d_model].
//
// Tile checksums (kind 5): for each matrix in the directory's order, u32 for each tile.
//
// Bundle checksums (kind 6): for each layer d_ff * u32, the neuron's id in the source model by
// position, then d_ff * u32, the bundle's checksum by position.
//
// Provenance (kind 7):
//   u32     version, 1
//   string  file or folder name of the source; its element types; the program that wrote this file
//   f32     relative root-mean-square error that packing added to the resident matrices, the gate
//           matrices, up rows and down columns, on a sample of rows: 4 fields
//
// Predictor (kind 8):
//   u32     version, 1
//   u8      PredictorInput: 0 normed, 1 residual, 2 residual of the layer before
//   u32 n   layers, then n * f32: the logit from which on a neuron is predicted to fire
//
// Head predictor (kind 10): as kind 8, of heads that a token needs and not of neurons; its inputs
// are 0 what Q, K and V are applied to, 1 the residual before the attention's norm, 2 that of the
// layer before. Behind the thresholds
//   f32     label share: a head counts as needed for a token if it is among the fewest whose
//           squared norms make up this share of all heads', above 0 and at most 1
//
// Activity (kind 9), of the text that the model was profiled with:
//   u32     version, 1
//   u64     tokens that were counted
//   for each layer u32: neurons that lie first, by falling frequency
//   for each layer d_ff * u16: frequency of the neuron at each position, in 65535ths of the tokens
//   u32 n   placement plans, at most 64, then for each a u32 for each layer: of how many of its
//           neurons, the most frequent ones, the bundles are kept in DRAM
//
// Activation thresholds (kind 11), only for an activation without exact zeros. A reader that does
// not know them runs the model dense, which is what they approximate.
//   u32     version, 1
//   u32 n   layers, then n * f32, finite and at least 0: a neuron is active where the magnitude of
//           activation(gate(x)) is at least this
#ifndef SLUICE_LAYOUT_SLUICE_FORMAT_H_
#define SLUICE_LAYOUT_SLUICE_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "layout/byte_io.h"
#include "layout/model_config.h"
#include "layout/weight_type.h"

namespace sluice {

constexpr unsigned char kSluiceMagic[8] = {0x89, 'S', 'L', 'U', 'I', 'C', 'E', '\n'};
constexpr uint16_t kSluiceMajor = 1;
constexpr uint16_t kSluiceMinor = 1;  // 1: the config has an attention window
constexpr uint32_t kHeaderBytes = 4096;
constexpr uint32_t kSectionEntryBytes = 40;
constexpr uint64_t kBlobAlignment = 512 * 1024;
constexpr uint32_t kTileTarget = 64 * 1024;  // bytes; a tile is one row where rows are larger

// Incompatible feature bits that this program knows.
constexpr uint64_t kFeaturePredictors = 1;      // directory version 2
constexpr uint64_t kFeatureRelatives = 2;       // what a config has beyond the Llama family
constexpr uint64_t kFeatureHeadPredictors = 4;  // roles 9 and 10
constexpr uint64_t kKnownIncompatible =
    kFeaturePredictors | kFeatureRelatives | kFeatureHeadPredictors;

enum class SectionKind : uint32_t {
  kConfig = 1,
  kTokenizer = 2,
  kDirectory = 3,
  kVectors = 4,
  kTileSums = 5,
  kBundleSums = 6,
  kProvenance = 7,
  kPredictor = 8,
  kActivity = 9,
  kHeadPredictor = 10,
  kThresholds = 11,
};
constexpr size_t kSectionKinds = 12;  // and none

enum class MatrixRole : uint8_t {
  kEmbedding = 0,
  kQ = 1,
  kK = 2,
  kV = 3,
  kO = 4,
  kGate = 5,
  kHead = 6,
  kPredictor1 = 7,
  kPredictor2 = 8,
  kHeadPredictor1 = 9,  // of attention heads; kHead is another matter
  kHeadPredictor2 = 10,
};
constexpr bool IsPredictor(MatrixRole role) { return role >= MatrixRole::kPredictor1; }
constexpr bool IsHeadPredictor(MatrixRole role) { return role >= MatrixRole::kHeadPredictor1; }
constexpr uint32_t kMaxRank = 8192;  // of a predictor
// The rank that a predictor is stored with: rows are whole blocks, zeros at the end change nothing.
constexpr uint32_t PaddedRank(uint32_t rank) {
  return (rank + kQuantBlock - 1) / kQuantBlock * kQuantBlock;
}

struct MatrixEntry {
  MatrixRole role = MatrixRole::kEmbedding;
  WeightType type = WeightType::kF32;
  uint32_t layer = 0;  // 0 for embedding and head
  uint32_t rows = 0;
  uint32_t columns = 0;
  uint32_t rows_per_tile = 0;
  uint32_t tile_stride = 0;
  uint64_t offset = 0;

  size_t row_bytes() const { return RowBytes(type, columns); }
  uint32_t n_tiles() const { return (rows + rows_per_tile - 1) / rows_per_tile; }
  uint64_t n_bytes() const { return static_cast<uint64_t>(n_tiles()) * tile_stride; }
  uint32_t rows_in_tile(uint32_t t) const {
    return t + 1 < n_tiles() ? rows_per_tile : rows - t * rows_per_tile;
  }
};

struct BundleLayout {
  WeightType type = WeightType::kF32;
  bool has_gate = false;  // what decides: the gate row, or the up row of an FFN without a gate
  bool has_up = true;     // not without a gate; the config says so, not the directory record
  uint32_t block = 0;     // alignment of bundles, tiles and reads: a power of two, 512 .. 64 KiB
  uint32_t stride = 0;
  uint32_t bundles_per_blob = 0;
  uint64_t blob_bytes = 0;
  std::vector<uint64_t> layer_offsets;
  uint32_t d_model = 0;
  uint32_t d_ff = 0;

  size_t row_bytes() const { return RowBytes(type, d_model); }
  // Inside a bundle; the gate row, if it has one, is at 0.
  size_t up_offset() const { return has_gate ? row_bytes() : 0; }
  size_t down_offset() const { return up_offset() + (has_up ? row_bytes() : 0); }
  size_t payload_bytes() const { return down_offset() + row_bytes(); }
  uint32_t blobs_per_layer() const { return (d_ff + bundles_per_blob - 1) / bundles_per_blob; }
  uint64_t layer_bytes() const { return blobs_per_layer() * blob_bytes; }
  uint64_t BundleOffset(uint32_t layer, uint32_t position) const {
    return layer_offsets[layer] + position / bundles_per_blob * blob_bytes +
           static_cast<uint64_t>(position % bundles_per_blob) * stride;
  }
};

struct Directory {
  std::vector<MatrixEntry> matrices;
  BundleLayout bundles;

  bool has_predictors() const { return !matrices.empty() && IsPredictor(matrices.back().role); }
  // Those of heads come with those of neurons, never alone.
  bool has_head_predictors() const {
    return !matrices.empty() && matrices.back().role == MatrixRole::kHeadPredictor2;
  }
  // By layer, of the predictors whose first matrices have the role `fc1`; empty if there are none.
  std::vector<uint32_t> ranks(MatrixRole fc1) const {
    std::vector<uint32_t> ranks;
    for (const MatrixEntry& m : matrices) {
      if (m.role == fc1) ranks.push_back(m.rows);
    }
    return ranks;
  }
  // Whether a reader must know feature bit 0.
  bool needs_predictor_feature() const { return bundles.has_gate || has_predictors(); }
};

// What a directory is made of.
struct DirectoryShape {
  // By MatrixRole; the embedding's type also serves a tied head, which gets no matrix of its own.
  std::array<WeightType, 7> matrix_types = {};
  WeightType bundle_type = WeightType::kF32;
  uint32_t block = 0;  // 0: 4096, or 512 where padding to 4096 would add over a quarter to a bundle
  bool gate_in_bundles = false;
  std::vector<uint32_t> predictor_ranks;       // by layer; empty: no predictors
  std::vector<uint32_t> head_predictor_ranks;  // the same of those of heads
};

// Where a file came from and what packing cost, for `inspect`.
struct Provenance {
  std::string source_name;   // file or folder name without its path
  std::string source_types;  // "Q4_0, F32"
  std::string writer;        // "sluice 0.1.0"
  // Relative root-mean-square error that packing added, measured on a sample of rows.
  float resident_error = 0, gate_error = 0, up_error = 0, down_error = 0;
};

// The layout of a model: all matrices and bundles, with their offsets.
Directory MakeDirectory(const ModelConfig& config, const DirectoryShape& shape);
// The end of the last region that a directory places.
uint64_t DirectoryEnd(const Directory& directory);

// DataLoss naming the field if anything does not fit the config or lies outside `file_size`, or if
// regions overlap.
absl::Status ValidateDirectory(const Directory& directory, const ModelConfig& config,
                               uint64_t file_size);

// The vectors of a layer in the order of the vectors section.
enum class LayerVector : uint8_t {
  kAttentionNorm,
  kFfnNorm,
  kQBias,
  kKBias,
  kVBias,
  kAttentionNormBias,
  kFfnNormBias,
  kOBias,
  kUpBias,  // by neuron id
  kDownBias,
};
constexpr size_t kLayerVectors = 10;
// Number of floats; 0: the model has none.
uint64_t VectorSize(LayerVector vector, const ModelConfig& config);
// Those of a layer together.
uint64_t LayerVectorCount(const ModelConfig& config);
// Number of floats in kVectors.
uint64_t VectorCount(const ModelConfig& config);

void WriteDirectory(const Directory& directory, ByteWriter& out);
absl::StatusOr<Directory> ReadDirectory(ByteReader& in);
void WriteProvenance(const Provenance& provenance, ByteWriter& out);
absl::StatusOr<Provenance> ReadProvenance(ByteReader& in);

std::string_view MatrixRoleName(MatrixRole role);

uint64_t Checksum64(std::span<const std::byte> bytes, uint64_t seed = 0);
inline uint32_t Checksum32(std::span<const std::byte> bytes, uint64_t seed) {
  return static_cast<uint32_t>(Checksum64(bytes, seed));
}
constexpr uint64_t MatrixSeed(uint32_t matrix, uint32_t tile) {
  return 0x4d00000000000000u | static_cast<uint64_t>(matrix) << 32 | tile;
}
constexpr uint64_t BundleSeed(uint32_t layer, uint32_t neuron) {
  return 0x4200000000000000u | static_cast<uint64_t>(layer) << 32 | neuron;
}

}  // namespace sluice

#endif  // SLUICE_LAYOUT_SLUICE_FORMAT_H_
