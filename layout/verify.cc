#include "layout/verify.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "io/storage_file.h"
#include "layout/sluice_file.h"

namespace sluice {
namespace {

constexpr size_t kMaxFindings = 10;
constexpr uint64_t kDropBytes = 8 << 20;
constexpr uint64_t kPageBytes = 4096;

class Verifier {
 public:
  Verifier(const SluiceFile& file, const StorageFile& storage,
           const std::function<void(uint64_t, uint64_t)>& progress)
      : file_(file), storage_(storage), progress_(progress) {
    for (const MatrixEntry& m : file.directory().matrices) total_ += m.n_bytes();
    total_ += file.config().n_layers * file.bundles().layer_bytes();
    // StorageFile expects scattered reads; these go front to back. Advice need not be taken.
    posix_fadvise(storage.buffered_fd(), 0, 0, POSIX_FADV_SEQUENTIAL);
  }

  absl::Status CheckMatrix(uint32_t index) {
    const MatrixEntry& m = file_.matrix(index);
    buffer_.resize(m.tile_stride);
    for (uint32_t t = 0; t < m.n_tiles(); ++t) {
      const uint64_t offset = m.offset + uint64_t{t} * m.tile_stride;
      const auto rows = std::span(buffer_).first(m.rows_in_tile(t) * m.row_bytes());
      SLUICE_RETURN_IF_ERROR(storage_.ReadExactly(offset, rows));
      ++report_.tiles;
      if (!file_.TileIsIntact(index, t, rows)) {
        Found(absl::StrFormat("matrix %s of layer %u, rows from %u, at offset %u",
                              MatrixRoleName(m.role), m.layer, t * m.rows_per_tile, offset));
      }
      Advance(offset, m.tile_stride);
    }
    return absl::OkStatus();
  }

  absl::Status CheckLayer(uint32_t layer) {
    const BundleLayout& b = file_.bundles();
    for (uint32_t first = 0; first < b.d_ff; first += b.bundles_per_blob) {
      const uint32_t count = std::min(b.bundles_per_blob, b.d_ff - first);
      // The last bundle of the file need not be followed by its padding.
      buffer_.resize(size_t{count - 1} * b.stride + b.payload_bytes());
      SLUICE_RETURN_IF_ERROR(storage_.ReadExactly(b.BundleOffset(layer, first), buffer_));
      for (uint32_t i = 0; i < count; ++i) {
        ++report_.bundles;
        if (!file_.BundleIsIntact(
                layer, first + i,
                std::span(buffer_).subspan(size_t{i} * b.stride, b.payload_bytes()))) {
          Found(absl::StrFormat("bundle of layer %u, neuron %u, at offset %u", layer,
                                file_.NeuronAt(layer, first + i),
                                b.BundleOffset(layer, first + i)));
        }
      }
      Advance(b.BundleOffset(layer, first), b.blob_bytes);
    }
    return absl::OkStatus();
  }

  VerifyReport TakeReport() {
    DropRead();
    return std::move(report_);
  }

 private:
  void Found(std::string what) {
    ++report_.damaged;
    if (report_.findings.size() < kMaxFindings) report_.findings.push_back(std::move(what));
  }
  void Advance(uint64_t offset, uint64_t bytes) {
    if (offset != read_end_) {
      DropRead();
      read_begin_ = offset;
    }
    read_end_ = offset + bytes;
    if (read_end_ - read_begin_ >= kDropBytes) DropRead();
    done_ += bytes;
    if (progress_) progress_(done_, total_);
  }

  // What has been read is not needed again: it must not push other programs' data out of the page
  // cache. Whole pages are dropped, so the last one stays for the next time.
  void DropRead() {
    if (read_begin_ == read_end_) return;  // no bytes would mean all of them
    posix_fadvise(storage_.buffered_fd(), static_cast<off_t>(read_begin_),
                  static_cast<off_t>(read_end_ - read_begin_), POSIX_FADV_DONTNEED);
    read_begin_ = read_end_ / kPageBytes * kPageBytes;
  }

  const SluiceFile& file_;
  const StorageFile& storage_;
  const std::function<void(uint64_t, uint64_t)>& progress_;
  std::vector<std::byte> buffer_;
  VerifyReport report_;
  uint64_t read_begin_ = 0, read_end_ = 0;  // read and not dropped
  uint64_t done_ = 0, total_ = 0;
};

}  // namespace

absl::StatusOr<VerifyReport> Verify(const std::string& path,
                                    const std::function<void(uint64_t, uint64_t)>& progress) {
  SLUICE_ASSIGN_OR_RETURN(const auto file, SluiceFile::Open(path));
  SLUICE_RETURN_IF_ERROR(file->LoadTokenizer().status());
  SLUICE_ASSIGN_OR_RETURN(const auto storage, StorageFile::Open(path, DirectMode::kOff, 512));
  Verifier verifier(*file, *storage, progress);
  for (uint32_t i = 0; i < file->directory().matrices.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(verifier.CheckMatrix(i));
  }
  for (uint32_t l = 0; l < file->config().n_layers; ++l) {
    SLUICE_RETURN_IF_ERROR(verifier.CheckLayer(l));
  }
  return verifier.TakeReport();
}

}  // namespace sluice
