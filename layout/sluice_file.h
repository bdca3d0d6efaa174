// Reader of the small parts of a `.sluice` file: header, config, directory, vectors, checksums. The
// big regions are read by the runtime through io/, and checked with the checksums kept here.
//
// Nothing from the file is trusted before it is checked. Immutable after Open; thread-safe. Holds
// the file open, so that all parts are of one file whatever happens to its name.
#ifndef SLUICE_LAYOUT_SLUICE_FILE_H_
#define SLUICE_LAYOUT_SLUICE_FILE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/sluice_format.h"
#include "layout/sparsity_records.h"
#include "layout/tokenizer_data.h"

namespace sluice {

class StorageFile;

struct Section {
  uint64_t offset = 0;
  uint64_t stored_bytes = 0;
  uint64_t raw_bytes = 0;
  uint64_t checksum = 0;
};

class SluiceFile {
 public:
  // DataLoss for a truncated or damaged file, FailedPrecondition for a newer format,
  // InvalidArgument for a file of another kind (a GGUF is told to repack first). Messages name the
  // file.
  static absl::StatusOr<std::unique_ptr<SluiceFile>> Open(const std::string& path);
  ~SluiceFile();
  SluiceFile(const SluiceFile&) = delete;
  SluiceFile& operator=(const SluiceFile&) = delete;

  const std::string& path() const;
  uint64_t file_size() const;
  uint16_t major_version() const { return major_version_; }
  uint16_t minor_version() const { return minor_version_; }
  uint64_t model_id() const { return model_id_; }
  const ModelConfig& config() const { return config_; }
  const Directory& directory() const { return directory_; }
  const BundleLayout& bundles() const { return directory_.bundles; }
  const Provenance& provenance() const { return provenance_; }
  // Null: the file has no predictors; none of heads; nothing is known of how often neurons fire.
  const PredictorRecord* predictor() const { return predictor_ ? &*predictor_ : nullptr; }
  const HeadPredictorRecord* head_predictor() const {
    return head_predictor_ ? &*head_predictor_ : nullptr;
  }
  const ActivityRecord* activity() const { return activity_ ? &*activity_ : nullptr; }
  // By layer: from which magnitude on an activation without exact zeros counts. Empty: has none.
  std::span<const float> thresholds() const { return thresholds_; }
  // True if neurons may be left out by their gate: exact zeros, or thresholds.
  bool sparse() const { return config_.sparse() || !thresholds_.empty(); }
  const Section& section(SectionKind kind) const { return sections_[static_cast<size_t>(kind)]; }

  // Index into directory().matrices. The head of a tied model is the embedding. Only a file with
  // predictors has theirs.
  uint32_t MatrixIndex(MatrixRole role, uint32_t layer) const;
  const MatrixEntry& matrix(uint32_t index) const { return directory_.matrices[index]; }

  // The vectors section, and views into it.
  std::span<const float> vectors() const { return vectors_; }
  std::span<const float> vector(LayerVector which, uint32_t layer) const;  // empty: has none
  std::span<const float> attention_norm(uint32_t layer) const {
    return vector(LayerVector::kAttentionNorm, layer);
  }
  std::span<const float> ffn_norm(uint32_t layer) const {
    return vector(LayerVector::kFfnNorm, layer);
  }
  std::span<const float> attention_norm_bias(uint32_t layer) const {
    return vector(LayerVector::kAttentionNormBias, layer);
  }
  std::span<const float> ffn_norm_bias(uint32_t layer) const {
    return vector(LayerVector::kFfnNormBias, layer);
  }
  std::span<const float> q_bias(uint32_t layer) const { return vector(LayerVector::kQBias, layer); }
  std::span<const float> k_bias(uint32_t layer) const { return vector(LayerVector::kKBias, layer); }
  std::span<const float> v_bias(uint32_t layer) const { return vector(LayerVector::kVBias, layer); }
  std::span<const float> o_bias(uint32_t layer) const { return vector(LayerVector::kOBias, layer); }
  // [d_ff] by neuron id, and [d_model].
  std::span<const float> up_bias(uint32_t layer) const {
    return vector(LayerVector::kUpBias, layer);
  }
  std::span<const float> down_bias(uint32_t layer) const {
    return vector(LayerVector::kDownBias, layer);
  }
  std::span<const float> output_norm() const;
  std::span<const float> output_norm_bias() const;  // empty unless it is a layer norm
  std::span<const float> rope_divisors() const;     // [rope_dim/2]
  std::span<const float> learned_position(uint32_t position) const;  // empty: has none

  // The neuron at a position of a layer: its index in the source model.
  uint32_t NeuronAt(uint32_t layer, uint32_t position) const {
    return bundle_sums_[BundleSumsBase(layer) + position];
  }
  // `rows` are the bytes of the rows of the tile, without padding.
  bool TileIsIntact(uint32_t matrix, uint32_t tile, std::span<const std::byte> rows) const;
  // `payload` is the bundle up to the end of the down column.
  bool BundleIsIntact(uint32_t layer, uint32_t position, std::span<const std::byte> payload) const;

  // Not kept: the caller turns it into a tokenizer and drops it.
  absl::StatusOr<TokenizerData> LoadTokenizer() const;

  // Of everything but the rows of the FFN: ties activation profiles to the model, however its
  // neurons are laid out. Packing other types changes it.
  uint64_t weights_id() const;

  // DRAM that this object holds.
  size_t memory_bytes() const;

 private:
  explicit SluiceFile(std::unique_ptr<StorageFile> storage);

  absl::Status ReadHeaderAndTable();
  absl::Status ReadHeader(std::span<const std::byte> header);
  absl::Status ReadSectionTable(std::span<const std::byte> table, uint64_t checksum);
  absl::StatusOr<std::vector<std::byte>> ReadSection(SectionKind kind, uint64_t max_raw) const;
  template <typename Record, typename Read>
  absl::Status ReadRecord(SectionKind kind, uint64_t max_raw, Read read, Record& record) const;
  absl::Status ReadSparsityRecords();
  absl::Status ReadRecords();
  absl::Status ReadSums();
  size_t BundleSumsBase(uint32_t layer) const { return 2 * size_t{layer} * config_.d_ff; }
  // The vectors that come behind those of the layers: each begins where the one before ends.
  std::span<const float> VectorsBehind(std::span<const float> before, uint64_t count) const {
    return {before.data() + before.size(), count};
  }

  std::unique_ptr<StorageFile> storage_;
  uint16_t major_version_ = 0;
  uint16_t minor_version_ = 0;
  uint64_t model_id_ = 0;
  uint64_t features_ = 0;
  std::array<Section, kSectionKinds> sections_ = {};  // of size 0: not there
  ModelConfig config_;
  Directory directory_;
  Provenance provenance_;
  std::optional<PredictorRecord> predictor_;
  std::optional<HeadPredictorRecord> head_predictor_;
  std::optional<ActivityRecord> activity_;
  std::vector<float> thresholds_;
  std::vector<float> vectors_;
  std::array<uint64_t, kLayerVectors + 1> vector_begins_ = {};  // in a layer, and their sum
  std::vector<uint32_t> tile_sums_;
  std::vector<size_t> first_tile_sum_;  // by matrix
  std::vector<uint32_t> bundle_sums_;
};

}  // namespace sluice

#endif  // SLUICE_LAYOUT_SLUICE_FILE_H_
