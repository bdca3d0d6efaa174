#include "predictor/packed_file.h"

#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "layout/byte_io.h"

namespace sluice {
namespace {

constexpr uint64_t kFreeBytes = 4 << 20;
constexpr uint64_t kMostRatio = 16;

bool IsInProportion(uint64_t n_bytes, uint64_t stored) {
  return n_bytes <= kFreeBytes || n_bytes / kMostRatio <= stored;
}

}  // namespace

absl::Status AppendFrame(std::span<const std::byte> bytes, std::vector<std::byte>* out) {
  const size_t begin = out->size();
  out->resize(begin + ZSTD_compressBound(bytes.size()));
  constexpr int kLevel = 3;
  const size_t n =
      ZSTD_compress(out->data() + begin, out->size() - begin, bytes.data(), bytes.size(), kLevel);
  if (ZSTD_isError(n)) return absl::InternalError(absl::StrCat("zstd: ", ZSTD_getErrorName(n)));
  out->resize(begin + n);
  if (IsInProportion(bytes.size(), n)) return absl::OkStatus();
  const uint64_t n_padding = bytes.size() / kMostRatio - n;
  const size_t at = out->size();
  out->resize(at + 8 + n_padding);
  StoreLe<uint32_t>(out->data() + at, ZSTD_MAGIC_SKIPPABLE_START);
  StoreLe<uint32_t>(out->data() + at + 4, static_cast<uint32_t>(n_padding));
  return absl::OkStatus();
}

bool FrameHolds(std::span<const std::byte> frame, uint64_t n_bytes) {
  return IsInProportion(n_bytes, frame.size()) &&
         n_bytes == ZSTD_getFrameContentSize(frame.data(), frame.size());
}

bool UnpackFrame(std::span<const std::byte> frame, std::span<std::byte> out) {
  const size_t n = ZSTD_decompress(out.data(), out.size(), frame.data(), frame.size());
  return !ZSTD_isError(n) && n == out.size();
}

absl::Status NotOfKind(const std::string& source, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(source, ": is not an ", what, " of sluice"));
}

absl::StatusOr<std::vector<std::byte>> ReadPackedFile(const std::string& path,
                                                      std::string_view magic, uint64_t max_bytes,
                                                      const std::string& what) {
  std::error_code ignored;
  const auto type = std::filesystem::status(path, ignored).type();
  // Looked at before it is opened: a FIFO would wait for a writer.
  if (type == std::filesystem::file_type::directory) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is a directory, not an ", what));
  }
  std::ifstream in;
  if (type == std::filesystem::file_type::regular) in.open(path, std::ios::binary | std::ios::ate);
  if (!in.is_open()) {
    return absl::NotFoundError(absl::StrCat(path, ": the ", what, " cannot be opened"));
  }
  const std::streamoff size = in.tellg();
  in.seekg(0);
  // The magic alone first: a model given by mistake is not to be taken into memory.
  std::string begin(magic.size(), '\0');
  in.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  if (begin != magic) return NotOfKind(path, what);
  if (static_cast<uint64_t>(size) > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is too large for an ", what));
  }
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(bytes.data()), size);
  if (in.gcount() != size) return absl::DataLossError(path + ": cannot be read to its end");
  return bytes;
}

}  // namespace sluice
