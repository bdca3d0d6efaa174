#include "layout/safetensors.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "io/status.h"
#include "layout/byte_io.h"
#include "layout/safetensors_json.h"

namespace sluice {
namespace {

// The format allows 100 MB; a model of 32768 tensors needs 6 MB, and the header is held in memory.
constexpr uint64_t kMaxHeaderBytes = 16 << 20;

std::optional<SourceType> TypeOfDtype(std::string_view dtype) {
  if (dtype == "F32") return SourceType::kF32;
  if (dtype == "F16") return SourceType::kF16;
  if (dtype == "BF16") return SourceType::kBF16;
  return std::nullopt;
}

// Reads the JSON header; leaves the offset of the data section in `data_start`.
absl::StatusOr<std::string> ReadHeader(const InputFile& file, uint64_t& data_start) {
  constexpr uint64_t kPrefix = 8;
  if (file.size() <= kPrefix) return file.NotA("a safetensors file");
  std::byte prefix[kPrefix + 1];
  SLUICE_RETURN_IF_ERROR(file.ReadExactly(0, prefix));
  if (prefix[kPrefix] != std::byte{'{'}) return file.NotA("a safetensors file");
  const auto n = LoadLe<uint64_t>(prefix);
  if (n > file.size() - kPrefix || n > kMaxHeaderBytes) {
    return absl::DataLossError(absl::StrFormat(
        "%s: the header length is %d; at most %d are possible (file of %d bytes, headers up to %d)",
        file.path(), n, std::min(file.size() - kPrefix, kMaxHeaderBytes), file.size(),
        kMaxHeaderBytes));
  }
  std::string header(n, '\0');
  SLUICE_RETURN_IF_ERROR(file.ReadExactly(kPrefix, std::as_writable_bytes(std::span(header))));
  data_start = kPrefix + n;
  return header;
}

// Checks dtype, shape and range of one tensor against each other.
absl::StatusOr<SafetensorsTensor> CheckEntry(const std::string& path, SafetensorsEntry entry,
                                             uint64_t data_start, uint64_t data_bytes) {
  const std::optional<SourceType> type = TypeOfDtype(entry.dtype);
  if (!type) {
    return absl::UnimplementedError(
        absl::StrFormat("%s: tensor \"%s\" has dtype %s; Sluice reads F32, F16 and BF16", path,
                        entry.name, entry.dtype));
  }
  const std::optional<uint64_t> bytes = SourceTensorBytes(*type, entry.shape);
  if (!bytes) {
    return absl::DataLossError(
        absl::StrFormat("%s: tensor \"%s\" has the shape [%s]: empty, with a zero, or too large",
                        path, entry.name, absl::StrJoin(entry.shape, ", ")));
  }
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return absl::DataLossError(absl::StrFormat(
        "%s: tensor \"%s\" lies at %d..%d of %d bytes of data; the file is truncated or damaged: "
        "copy or download it again",
        path, entry.name, entry.begin, entry.end, data_bytes));
  }
  if (entry.end - entry.begin != *bytes) {
    return absl::DataLossError(absl::StrFormat(
        "%s: tensor \"%s\" has %d bytes, but dtype %s and shape [%s] need %d", path, entry.name,
        entry.end - entry.begin, entry.dtype, absl::StrJoin(entry.shape, ", "), *bytes));
  }
  return SafetensorsTensor{std::move(entry.name), *type, std::move(entry.shape),
                           data_start + entry.begin, *bytes};
}

// `tensors` are sorted by offset: each must begin where the one before ends.
absl::Status CheckCoverage(const InputFile& file, uint64_t data_start,
                           const std::vector<SafetensorsTensor>& tensors) {
  uint64_t at = data_start;
  for (const SafetensorsTensor& t : tensors) {
    if (t.offset != at) {
      return absl::DataLossError(absl::StrFormat(
          "%s: tensor \"%s\" begins at byte %d of the file, but the one before ends at %d: an %s",
          file.path(), t.name, t.offset, at, t.offset < at ? "overlap" : "unused hole"));
    }
    at += t.n_bytes;
  }
  if (at == file.size()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("%s: %d bytes follow the last tensor", file.path(), file.size() - at));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path));
  uint64_t data_start = 0;
  SLUICE_ASSIGN_OR_RETURN(const std::string header, ReadHeader(file, data_start));
  SLUICE_ASSIGN_OR_RETURN(std::vector<SafetensorsEntry> entries,
                          ParseSafetensorsJson(header, path));
  std::vector<SafetensorsTensor> tensors;
  tensors.reserve(entries.size());
  for (SafetensorsEntry& entry : entries) {
    SLUICE_ASSIGN_OR_RETURN(SafetensorsTensor tensor, CheckEntry(path, std::move(entry), data_start,
                                                                 file.size() - data_start));
    tensors.push_back(std::move(tensor));
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.offset < b.offset; });
  SLUICE_RETURN_IF_ERROR(CheckCoverage(file, data_start, tensors));
  return std::unique_ptr<SafetensorsFile>(new SafetensorsFile(std::move(file), std::move(tensors)));
}

absl::Status SafetensorsFile::ReadTensor(const SafetensorsTensor& tensor, uint64_t offset,
                                         std::span<std::byte> dst) const {
  if (offset > tensor.n_bytes || dst.size() > tensor.n_bytes - offset) {
    return absl::OutOfRangeError(
        absl::StrFormat("%s: %d bytes at %d are outside tensor \"%s\" of %d bytes", path(),
                        dst.size(), offset, tensor.name, tensor.n_bytes));
  }
  return Annotate(file_.ReadExactly(tensor.offset + offset, dst),
                  absl::StrFormat("tensor \"%s\"", tensor.name));
}

}  // namespace sluice
