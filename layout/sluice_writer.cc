#include "layout/sluice_writer.h"

#include <zstd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "io/status.h"

namespace sluice {
namespace {

constexpr int kZstdLevel = 9;

}  // namespace

absl::StatusOr<std::unique_ptr<SluiceWriter>> SluiceWriter::Create(const std::string& path,
                                                                   bool overwrite,
                                                                   const ModelConfig& config,
                                                                   Directory directory) {
  auto writer = std::unique_ptr<SluiceWriter>(new SluiceWriter);
  writer->config_ = config;
  writer->directory_ = std::move(directory);
  writer->end_ = DirectoryEnd(writer->directory_);
  size_t n_tiles = 0;
  for (const MatrixEntry& m : writer->directory_.matrices) {
    writer->first_tile_sum_.push_back(n_tiles);
    n_tiles += m.n_tiles();
  }
  writer->tile_sums_.resize(n_tiles);
  writer->bundle_sums_.resize(2 * size_t{config.n_layers} * config.d_ff);
  AtomicFile::Options options;
  options.overwrite = overwrite;
  options.expected_bytes = writer->end_;
  SLUICE_ASSIGN_OR_RETURN(writer->file_, AtomicFile::Create(path, options));
  return writer;
}

absl::Status SluiceWriter::WriteTile(uint32_t matrix, uint32_t tile,
                                     std::span<const std::byte> rows) {
  const MatrixEntry& m = directory_.matrices[matrix];
  tile_sums_[first_tile_sum_[matrix] + tile] = Checksum32(rows, MatrixSeed(matrix, tile));
  return file_->WriteAt(m.offset + static_cast<uint64_t>(tile) * m.tile_stride, rows);
}

absl::Status SluiceWriter::WriteBundle(uint32_t layer, uint32_t position, uint32_t neuron,
                                       std::span<const std::byte> payload) {
  uint32_t* sums = &bundle_sums_[2 * size_t{layer} * config_.d_ff];
  sums[position] = neuron;
  sums[config_.d_ff + position] = Checksum32(payload, BundleSeed(layer, neuron));
  return file_->WriteAt(directory_.bundles.BundleOffset(layer, position), payload);
}

absl::Status SluiceWriter::WriteSection(SectionKind kind, std::span<const std::byte> raw) {
  std::vector<std::byte> stored(ZSTD_compressBound(raw.size()));
  const size_t n = ZSTD_compress(stored.data(), stored.size(), raw.data(), raw.size(), kZstdLevel);
  if (ZSTD_isError(n)) {
    return absl::InternalError(absl::StrFormat("zstd: %s", ZSTD_getErrorName(n)));
  }
  stored.resize(n);
  sections_.push_back({kind, end_, n, raw.size(), Checksum64(stored)});
  SLUICE_RETURN_IF_ERROR(file_->WriteAt(end_, stored));
  end_ += n;
  return absl::OkStatus();
}

absl::Status SluiceWriter::WriteTokenizerSection(const TokenizerData& tokenizer) {
  ByteWriter record;
  WriteTokenizer(tokenizer, record);
  const size_t n = record.bytes().size();
  if (n <= kMaxTokenizerRecord) return WriteSection(SectionKind::kTokenizer, record.bytes());
  return absl::InvalidArgumentError(absl::StrFormat(
      "the vocabulary and its merges take %d bytes; a .sluice file holds at most %d", n,
      kMaxTokenizerRecord));
}

absl::StatusOr<uint64_t> SluiceWriter::Finish(const Records& records) {
  const auto write_record = [this](SectionKind kind, const auto& write) {
    ByteWriter record;
    write(record);
    return WriteSection(kind, record.bytes());
  };
  SLUICE_RETURN_IF_ERROR(
      write_record(SectionKind::kConfig, [this](ByteWriter& out) { WriteConfig(config_, out); }));
  SLUICE_RETURN_IF_ERROR(write_record(
      SectionKind::kDirectory, [this](ByteWriter& out) { WriteDirectory(directory_, out); }));
  SLUICE_RETURN_IF_ERROR(
      WriteSection(SectionKind::kTileSums, std::as_bytes(std::span(tile_sums_))));
  SLUICE_RETURN_IF_ERROR(
      WriteSection(SectionKind::kBundleSums, std::as_bytes(std::span(bundle_sums_))));
  SLUICE_RETURN_IF_ERROR(WriteSection(SectionKind::kVectors, std::as_bytes(records.vectors)));
  SLUICE_RETURN_IF_ERROR(WriteTokenizerSection(records.tokenizer));
  SLUICE_RETURN_IF_ERROR(write_record(SectionKind::kProvenance, [&](ByteWriter& out) {
    WriteProvenance(records.provenance, out);
  }));
  if (records.predictor != nullptr) {
    SLUICE_RETURN_IF_ERROR(write_record(SectionKind::kPredictor, [&](ByteWriter& out) {
      WritePredictorRecord(*records.predictor, out);
    }));
  }
  if (records.head_predictor != nullptr) {
    SLUICE_RETURN_IF_ERROR(write_record(SectionKind::kHeadPredictor, [&](ByteWriter& out) {
      WriteHeadPredictorRecord(*records.head_predictor, out);
    }));
  }
  if (records.activity != nullptr) {
    SLUICE_RETURN_IF_ERROR(write_record(SectionKind::kActivity, [&](ByteWriter& out) {
      WriteActivityRecord(*records.activity, out);
    }));
  }
  if (!records.thresholds.empty()) {
    SLUICE_RETURN_IF_ERROR(write_record(SectionKind::kThresholds, [&](ByteWriter& out) {
      WriteThresholds(records.thresholds, out);
    }));
  }

  ByteWriter table;
  for (const StoredSection& s : sections_) {
    table.Put<uint32_t>(static_cast<uint32_t>(s.kind));
    table.Put<uint32_t>(0);
    for (const uint64_t v : {s.offset, s.stored_bytes, s.raw_bytes, s.checksum}) {
      table.Put<uint64_t>(v);
    }
  }
  SLUICE_RETURN_IF_ERROR(WriteHeader(end_, table.bytes()));
  SLUICE_RETURN_IF_ERROR(file_->Commit());
  return end_;
}

absl::Status SluiceWriter::WriteHeader(uint64_t table_offset, std::span<const std::byte> table) {
  SLUICE_RETURN_IF_ERROR(file_->WriteAt(table_offset, table));
  end_ = table_offset + table.size();
  ByteWriter ids;  // checksums of the sections that describe the weights
  for (const StoredSection& s : sections_) {
    if (s.kind != SectionKind::kProvenance) ids.Put<uint64_t>(s.checksum);
  }
  std::vector<std::byte> header(kHeaderBytes);
  std::memcpy(header.data(), kSluiceMagic, sizeof(kSluiceMagic));
  StoreLe<uint16_t>(&header[8], kSluiceMajor);
  StoreLe<uint16_t>(&header[10], kSluiceMinor);
  StoreLe<uint32_t>(&header[12], kHeaderBytes);
  uint64_t features = directory_.needs_predictor_feature() ? kFeaturePredictors : 0;
  if (directory_.has_head_predictors()) features |= kFeatureHeadPredictors;
  if (!config_.is_llama_family()) features |= kFeatureRelatives;
  StoreLe<uint64_t>(&header[16], features);
  StoreLe<uint64_t>(&header[32], end_);
  StoreLe<uint64_t>(&header[40], table_offset);
  StoreLe<uint32_t>(&header[48], static_cast<uint32_t>(sections_.size()));
  StoreLe<uint64_t>(&header[56], Checksum64(table));
  StoreLe<uint64_t>(&header[64], Checksum64(ids.bytes()));
  StoreLe<uint64_t>(&header[kHeaderBytes - 8],
                    Checksum64(std::span(header).first(kHeaderBytes - 8)));
  return file_->WriteAt(0, header);
}

}  // namespace sluice
