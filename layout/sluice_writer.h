// Writer of `.sluice` files: regions in any order, then the small sections and the header. The file
// appears under its name only when Finish has succeeded.
//
// Thread-compatible. Memory: the checksums and whatever the caller passes.
#ifndef SLUICE_LAYOUT_SLUICE_WRITER_H_
#define SLUICE_LAYOUT_SLUICE_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "io/atomic_file.h"
#include "layout/sluice_format.h"
#include "layout/sparsity_records.h"
#include "layout/tokenizer_data.h"

namespace sluice {

class SluiceWriter {
 public:
  static absl::StatusOr<std::unique_ptr<SluiceWriter>> Create(const std::string& path,
                                                              bool overwrite,
                                                              const ModelConfig& config,
                                                              Directory directory);

  const Directory& directory() const { return directory_; }

  // `rows` are the packed rows of one tile, without padding. Each tile exactly once.
  absl::Status WriteTile(uint32_t matrix, uint32_t tile, std::span<const std::byte> rows);
  // `payload` is the rows of the bundle of `neuron`, up to its padding. Each position exactly once,
  // and each neuron of a layer exactly once.
  absl::Status WriteBundle(uint32_t layer, uint32_t position, uint32_t neuron,
                           std::span<const std::byte> payload);
  // Keeps a long write from filling the page cache; see AtomicFile.
  void FlushBehind() { file_->FlushBehind(); }
  // What goes into the small sections besides what the writer knows.
  struct Records {
    std::span<const float> vectors;  // VectorCount(config)
    const TokenizerData& tokenizer;
    const Provenance& provenance;
    const PredictorRecord* predictor = nullptr;  // given exactly if the directory has predictors
    const ActivityRecord* activity = nullptr;    // null: not known
    const HeadPredictorRecord* head_predictor = nullptr;  // as `predictor`
    std::span<const float> thresholds = {};               // empty: none
  };
  // Writes the rest and renames. Returns the file size.
  absl::StatusOr<uint64_t> Finish(const Records& records);

 private:
  struct StoredSection {
    SectionKind kind;
    uint64_t offset, stored_bytes, raw_bytes, checksum;
  };

  SluiceWriter() = default;
  absl::Status WriteSection(SectionKind kind, std::span<const std::byte> raw);
  absl::Status WriteTokenizerSection(const TokenizerData& tokenizer);
  absl::Status WriteHeader(uint64_t table_offset, std::span<const std::byte> table);

  ModelConfig config_;
  Directory directory_;
  std::unique_ptr<AtomicFile> file_;
  std::vector<uint32_t> tile_sums_;
  std::vector<size_t> first_tile_sum_;  // by matrix
  std::vector<uint32_t> bundle_sums_;   // as in kBundleSums
  std::vector<StoredSection> sections_;
  uint64_t end_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_LAYOUT_SLUICE_WRITER_H_
