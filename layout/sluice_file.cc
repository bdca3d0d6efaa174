#include "layout/sluice_file.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "io/storage_file.h"
#include "layout/printable.h"

namespace sluice {
namespace {

constexpr uint32_t kMaxSections = 64;
// Config, provenance, directory: that of the largest model takes 0.2 MiB.
constexpr uint64_t kMaxRecord = 1 << 20;
// A section may claim this many bytes whatever it is packed in; beyond, at most kMaxRatio times the
// packed size, so that a small file cannot take much memory.
constexpr uint64_t kFreeBytes = 16 << 20;
constexpr uint64_t kMaxRatio = 256;

constexpr SectionKind kNeededSections[] = {SectionKind::kConfig,    SectionKind::kTokenizer,
                                           SectionKind::kDirectory, SectionKind::kVectors,
                                           SectionKind::kTileSums,  SectionKind::kBundleSums,
                                           SectionKind::kProvenance};

std::string_view SectionName(SectionKind kind) {
  constexpr std::string_view kNames[] = {
      "?",         "config",         "tokenizer",        "directory",
      "vectors",   "tile checksums", "bundle checksums", "provenance",
      "predictor", "activity",       "head predictor",   "thresholds"};
  return kNames[static_cast<size_t>(kind)];
}

// A section as it is stored against what its table entry claims.
absl::Status CheckClaim(const Section& s, std::string_view name, uint64_t max_raw) {
  if (s.raw_bytes <= max_raw && s.stored_bytes <= ZSTD_compressBound(s.raw_bytes) &&
      (s.raw_bytes <= kFreeBytes || s.raw_bytes / kMaxRatio <= s.stored_bytes)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrFormat("%s section claims %u bytes packed in %u", name,
                                             s.raw_bytes, s.stored_bytes));
}

absl::StatusOr<std::vector<std::byte>> Unpack(const Section& s, std::string_view name,
                                              std::span<const std::byte> stored) {
  if (Checksum64(stored) != s.checksum) {
    return absl::DataLossError(
        absl::StrFormat("%s section checksum does not match; copy or repack the file again", name));
  }
  if (ZSTD_getFrameContentSize(stored.data(), stored.size()) != s.raw_bytes) {
    return absl::DataLossError(absl::StrFormat("%s section has another size than it claims", name));
  }
  std::vector<std::byte> raw(s.raw_bytes);
  const size_t n = ZSTD_decompress(raw.data(), raw.size(), stored.data(), stored.size());
  if (ZSTD_isError(n) || n != raw.size()) {
    return absl::DataLossError(absl::StrFormat("%s section does not decompress", name));
  }
  return raw;
}

// What a file that is not ours is, for a message that tells what to do.
absl::Status WrongMagic(std::span<const std::byte> header) {
  if (std::memcmp(header.data(), "GGUF", 4) == 0) {
    return absl::InvalidArgumentError(
        "is a GGUF file; make a .sluice file of it first: sluice repack IN.gguf OUT.sluice");
  }
  return absl::InvalidArgumentError(
      "is not a .sluice file (wrong magic); make one with sluice repack");
}

}  // namespace

SluiceFile::SluiceFile(std::unique_ptr<StorageFile> storage) : storage_(std::move(storage)) {}
SluiceFile::~SluiceFile() = default;

absl::StatusOr<std::unique_ptr<SluiceFile>> SluiceFile::Open(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(auto storage, StorageFile::Open(path, DirectMode::kOff, 512));
  auto file = std::unique_ptr<SluiceFile>(new SluiceFile(std::move(storage)));
  SLUICE_RETURN_IF_ERROR(file->ReadHeaderAndTable());
  SLUICE_RETURN_IF_ERROR(file->ReadRecords());
  SLUICE_RETURN_IF_ERROR(file->ReadSums());
  return file;
}

const std::string& SluiceFile::path() const { return storage_->path(); }
uint64_t SluiceFile::file_size() const { return storage_->size(); }

absl::Status SluiceFile::ReadHeaderAndTable() {
  std::vector<std::byte> header(std::min<uint64_t>(kHeaderBytes, file_size()));
  SLUICE_RETURN_IF_ERROR(storage_->ReadExactly(0, header));
  SLUICE_RETURN_IF_ERROR(Annotate(ReadHeader(header), path()));
  const auto offset = LoadLe<uint64_t>(&header[40]);
  const auto count = LoadLe<uint32_t>(&header[48]);
  const uint64_t bytes = static_cast<uint64_t>(count) * kSectionEntryBytes;
  if (count > kMaxSections || offset > file_size() || bytes > file_size() - offset) {
    return absl::DataLossError(absl::StrFormat(
        "%s: section table of %u entries at %u is outside the file", path(), count, offset));
  }
  std::vector<std::byte> table(bytes);
  SLUICE_RETURN_IF_ERROR(storage_->ReadExactly(offset, table));
  return Annotate(ReadSectionTable(table, LoadLe<uint64_t>(&header[56])), path());
}

absl::Status SluiceFile::ReadHeader(std::span<const std::byte> header) {
  if (header.size() < 8 || std::memcmp(header.data(), kSluiceMagic, 8) != 0) {
    return header.size() < 8 ? absl::DataLossError("is too short to be a .sluice file")
                             : WrongMagic(header);
  }
  if (header.size() < kHeaderBytes) {
    return absl::DataLossError("header is cut short; copy the file again");
  }
  major_version_ = LoadLe<uint16_t>(&header[8]);
  minor_version_ = LoadLe<uint16_t>(&header[10]);
  if (major_version_ > kSluiceMajor) {
    return absl::FailedPreconditionError(
        absl::StrFormat("has format version %u; this program reads up to %u: update sluice",
                        major_version_, kSluiceMajor));
  }
  if (LoadLe<uint64_t>(&header[kHeaderBytes - 8]) != Checksum64(header.first(kHeaderBytes - 8))) {
    return absl::DataLossError("header checksum does not match; copy or repack the file again");
  }
  features_ = LoadLe<uint64_t>(&header[16]);
  if ((features_ & ~kKnownIncompatible) != 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("needs features 0x%x that this program does not know: update sluice",
                        features_ & ~kKnownIncompatible));
  }
  const auto size = LoadLe<uint64_t>(&header[32]);
  if (size != file_size()) {
    return absl::DataLossError(absl::StrFormat(
        "has %u bytes; its header says %u: the copy is incomplete or damaged, copy it again",
        file_size(), size));
  }
  model_id_ = LoadLe<uint64_t>(&header[64]);
  return absl::OkStatus();
}

absl::Status SluiceFile::ReadSectionTable(std::span<const std::byte> table, uint64_t checksum) {
  if (Checksum64(table) != checksum) {
    return absl::DataLossError("section table checksum does not match");
  }
  std::array<bool, kSectionKinds> seen = {};
  for (size_t at = 0; at < table.size(); at += kSectionEntryBytes) {
    const std::byte* entry = &table[at];
    const auto kind = LoadLe<uint32_t>(entry);
    if (kind == 0 || kind >= sections_.size()) continue;
    if (std::exchange(seen[kind], true)) {
      return absl::DataLossError(absl::StrFormat("section table has two %s sections",
                                                 SectionName(static_cast<SectionKind>(kind))));
    }
    Section& s = sections_[kind];
    s.offset = LoadLe<uint64_t>(entry + 8);
    s.stored_bytes = LoadLe<uint64_t>(entry + 16);
    s.raw_bytes = LoadLe<uint64_t>(entry + 24);
    s.checksum = LoadLe<uint64_t>(entry + 32);
    if (s.offset > file_size() || s.stored_bytes > file_size() - s.offset) {
      return absl::DataLossError(absl::StrFormat("%s section is outside the file",
                                                 SectionName(static_cast<SectionKind>(kind))));
    }
  }
  for (const SectionKind kind : kNeededSections) {
    if (!seen[static_cast<size_t>(kind)]) {
      return absl::DataLossError(absl::StrFormat("has no %s section", SectionName(kind)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::byte>> SluiceFile::ReadSection(SectionKind kind,
                                                               uint64_t max_raw) const {
  const Section& s = section(kind);
  const auto name = SectionName(kind);
  SLUICE_RETURN_IF_ERROR(Annotate(CheckClaim(s, name, max_raw), path()));
  std::vector<std::byte> stored(s.stored_bytes);
  SLUICE_RETURN_IF_ERROR(storage_->ReadExactly(s.offset, stored));
  auto raw = Unpack(s, name, stored);
  if (!raw.ok()) return Annotate(raw.status(), path());
  return raw;
}

template <typename Record, typename Read>
absl::Status SluiceFile::ReadRecord(SectionKind kind, uint64_t max_raw, Read read,
                                    Record& record) const {
  SLUICE_ASSIGN_OR_RETURN(const auto raw, ReadSection(kind, max_raw));
  ByteReader reader(raw);
  auto parsed = read(reader);
  if (!parsed.ok()) return Annotate(parsed.status(), path());
  record = *std::move(parsed);
  return absl::OkStatus();
}

absl::Status SluiceFile::ReadRecords() {
  SLUICE_RETURN_IF_ERROR(ReadRecord(SectionKind::kConfig, kMaxRecord, ReadConfig, config_));
  SLUICE_RETURN_IF_ERROR(
      ReadRecord(SectionKind::kDirectory, kMaxRecord, ReadDirectory, directory_));
  directory_.bundles.has_up = config_.gated;
  for (size_t v = 0; v < kLayerVectors; ++v) {
    vector_begins_[v + 1] = vector_begins_[v] + VectorSize(static_cast<LayerVector>(v), config_);
  }
  SLUICE_RETURN_IF_ERROR(Annotate(ValidateDirectory(directory_, config_, file_size()), path()));
  SLUICE_RETURN_IF_ERROR(
      ReadRecord(SectionKind::kProvenance, kMaxRecord, ReadProvenance, provenance_));
  return ReadSparsityRecords();
}

absl::Status SluiceFile::ReadSparsityRecords() {
  const auto is_there = [this](SectionKind kind) { return section(kind).raw_bytes > 0; };
  const auto check = [&](SectionKind kind, bool expected, const char* what) -> absl::Status {
    if (is_there(kind) == expected) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrFormat("%s: its directory has %s%s, but there is %s record of how they are used",
                        path(), expected ? "" : "no ", what, expected ? "no" : "a"));
  };
  SLUICE_RETURN_IF_ERROR(check(SectionKind::kPredictor, directory_.has_predictors(), "predictors"));
  SLUICE_RETURN_IF_ERROR(
      check(SectionKind::kHeadPredictor, directory_.has_head_predictors(), "predictors of heads"));
  if (directory_.has_predictors()) {
    const auto read = [this](ByteReader& in) { return ReadPredictorRecord(in, config_); };
    SLUICE_RETURN_IF_ERROR(
        ReadRecord(SectionKind::kPredictor, kMaxRecord, read, predictor_.emplace()));
  }
  if (directory_.has_head_predictors()) {
    const auto read = [this](ByteReader& in) { return ReadHeadPredictorRecord(in, config_); };
    SLUICE_RETURN_IF_ERROR(
        ReadRecord(SectionKind::kHeadPredictor, kMaxRecord, read, head_predictor_.emplace()));
  }
  if (is_there(SectionKind::kActivity)) {
    const auto read = [this](ByteReader& in) { return ReadActivityRecord(in, config_); };
    SLUICE_RETURN_IF_ERROR(ReadRecord(SectionKind::kActivity, ActivityRecordBytes(config_), read,
                                      activity_.emplace()));
  }
  if (is_there(SectionKind::kThresholds)) {
    const auto read = [this](ByteReader& in) { return ReadThresholds(in, config_); };
    SLUICE_RETURN_IF_ERROR(ReadRecord(SectionKind::kThresholds, kMaxRecord, read, thresholds_));
  }
  return absl::OkStatus();
}

absl::Status SluiceFile::ReadSums() {
  const auto load = [this](SectionKind kind, uint64_t count, auto& out) -> absl::Status {
    const uint64_t bytes = count * sizeof(out[0]);
    SLUICE_ASSIGN_OR_RETURN(const auto raw, ReadSection(kind, bytes));
    if (raw.size() != bytes) {
      return absl::DataLossError(
          absl::StrFormat("%s: %s section has %u bytes; the config asks for %u", path(),
                          SectionName(kind), raw.size(), bytes));
    }
    out.resize(count);
    std::memcpy(out.data(), raw.data(), bytes);
    return absl::OkStatus();
  };
  uint64_t n_tiles = 0;
  for (const MatrixEntry& m : directory_.matrices) {
    first_tile_sum_.push_back(n_tiles);
    n_tiles += m.n_tiles();
  }
  SLUICE_RETURN_IF_ERROR(load(SectionKind::kVectors, VectorCount(config_), vectors_));
  SLUICE_RETURN_IF_ERROR(load(SectionKind::kTileSums, n_tiles, tile_sums_));
  SLUICE_RETURN_IF_ERROR(
      load(SectionKind::kBundleSums, 2 * uint64_t{config_.n_layers} * config_.d_ff, bundle_sums_));
  std::vector<bool> seen(config_.d_ff);
  for (uint32_t l = 0; l < config_.n_layers; ++l) {
    seen.assign(config_.d_ff, false);
    for (uint32_t p = 0; p < config_.d_ff; ++p) {
      const uint32_t neuron = NeuronAt(l, p);
      if (neuron >= config_.d_ff || seen[neuron]) {
        return absl::DataLossError(
            absl::StrFormat("%s: neuron order of layer %u is not a permutation", path(), l));
      }
      seen[neuron] = true;
    }
  }
  return absl::OkStatus();
}

uint32_t SluiceFile::MatrixIndex(MatrixRole role, uint32_t layer) const {
  // The order that ValidateDirectory has checked: embedding, Q K V O by layer, head, gates.
  const uint32_t after_layers = 1 + 4 * config_.n_layers;
  switch (role) {
    case MatrixRole::kEmbedding:
      return 0;
    case MatrixRole::kQ:
    case MatrixRole::kK:
    case MatrixRole::kV:
    case MatrixRole::kO:
      return 1 + 4 * layer + static_cast<uint32_t>(role) - static_cast<uint32_t>(MatrixRole::kQ);
    case MatrixRole::kHead:
      return config_.tied_head ? 0 : after_layers;
    case MatrixRole::kGate:
      return after_layers + (config_.tied_head ? 0 : 1) + layer;
    case MatrixRole::kPredictor1:
    case MatrixRole::kPredictor2:
      return MatrixIndex(MatrixRole::kGate, config_.n_layers) + 2 * layer +
             static_cast<uint32_t>(role) - static_cast<uint32_t>(MatrixRole::kPredictor1);
    case MatrixRole::kHeadPredictor1:
    case MatrixRole::kHeadPredictor2:
      return MatrixIndex(MatrixRole::kPredictor1, config_.n_layers) + 2 * layer +
             static_cast<uint32_t>(role) - static_cast<uint32_t>(MatrixRole::kHeadPredictor1);
  }
  return 0;
}

uint64_t SluiceFile::weights_id() const {
  const size_t first_gate_sum = first_tile_sum_[MatrixIndex(MatrixRole::kGate, 0)];
  const uint64_t matrices = Checksum64(std::as_bytes(std::span(tile_sums_).first(first_gate_sum)));
  return Checksum64(std::as_bytes(std::span(vectors_)), matrices);
}

std::span<const float> SluiceFile::vector(LayerVector which, uint32_t layer) const {
  const auto v = static_cast<size_t>(which);
  const uint64_t at = layer * vector_begins_.back() + vector_begins_[v];
  return std::span(vectors_).subspan(at, vector_begins_[v + 1] - vector_begins_[v]);
}

std::span<const float> SluiceFile::output_norm() const {
  return std::span(vectors_).subspan(config_.n_layers * vector_begins_.back(), config_.d_model);
}
std::span<const float> SluiceFile::output_norm_bias() const {
  return VectorsBehind(output_norm(), config_.norm == NormKind::kLayer ? config_.d_model : 0);
}
std::span<const float> SluiceFile::rope_divisors() const {
  return VectorsBehind(output_norm_bias(), config_.rope_dim() / 2);
}
std::span<const float> SluiceFile::learned_position(uint32_t position) const {
  if (!config_.learned_positions) return {};
  const uint64_t d = config_.d_model;
  return VectorsBehind(rope_divisors(), config_.context_length * d).subspan(position * d, d);
}

bool SluiceFile::TileIsIntact(uint32_t matrix, uint32_t tile,
                              std::span<const std::byte> rows) const {
  return Checksum32(rows, MatrixSeed(matrix, tile)) == tile_sums_[first_tile_sum_[matrix] + tile];
}

bool SluiceFile::BundleIsIntact(uint32_t layer, uint32_t position,
                                std::span<const std::byte> payload) const {
  return Checksum32(payload, BundleSeed(layer, NeuronAt(layer, position))) ==
         bundle_sums_[BundleSumsBase(layer) + config_.d_ff + position];
}

absl::StatusOr<TokenizerData> SluiceFile::LoadTokenizer() const {
  SLUICE_ASSIGN_OR_RETURN(const auto raw,
                          ReadSection(SectionKind::kTokenizer, kMaxTokenizerRecord));
  ByteReader reader(raw);
  auto data = ReadTokenizer(reader, config_.vocab_size);
  if (!data.ok()) return Printable(Annotate(data.status(), path()));  // may quote a token
  return data;
}

size_t SluiceFile::memory_bytes() const {
  return vectors_.capacity() * sizeof(float) +
         (tile_sums_.capacity() + bundle_sums_.capacity()) * sizeof(uint32_t) +
         directory_.matrices.capacity() * sizeof(MatrixEntry) +
         (activity_ ? activity_->frequency.capacity() * sizeof(uint16_t) : 0);
}

}  // namespace sluice
