#include "layout/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/status.h"

namespace sluice {
namespace {

constexpr size_t kHeadBytes = 64;

struct Signature {
  std::string_view prefix;
  std::string_view meaning;
};

constexpr std::string_view kOldGgml =
    "an old GGML file from before GGUF; convert the original model again with current tools";
constexpr std::string_view kPickle =
    "a Python pickle (an old PyTorch checkpoint), which Sluice does not load since it can run "
    "code; "
    "convert it to safetensors or GGUF";

// The old GGML magics are 32-bit numbers: little-endian files show them reversed.
constexpr Signature kSignatures[] = {
    {"version https://git-lfs",
     "a git-lfs pointer, not the model itself; run `git lfs pull` or download the file"},
    {"lmgg", kOldGgml},
    {"fmgg", kOldGgml},
    {"tjgg", kOldGgml},
    {"algg", kOldGgml},
    {"ggml", kOldGgml},
    {"ggmf", kOldGgml},
    {"ggjt", kOldGgml},
    {"ggla", kOldGgml},
    {"GGUF", "a GGUF file; give it as the model itself"},
    {"PK\x03\x04",
     "a zip archive (probably a PyTorch checkpoint); convert it to safetensors or GGUF"},
    {"\x80\x02", kPickle},
    {"\x80\x03", kPickle},
    {"\x80\x04", kPickle},
    {"\x80\x05", kPickle},
    {"\x1f\x8b", "gzip-compressed; unpack it first"},
    {"\x28\xb5\x2f\xfd", "zstd-compressed; unpack it first"},
    {"\x89SLUICE\n", "a repacked .sluice model already"},
};

bool StartsWithNoCase(std::string_view text, std::string_view lower_prefix) {
  return text.size() >= lower_prefix.size() &&
         std::equal(lower_prefix.begin(), lower_prefix.end(), text.begin(), [](char a, char b) {
           return a == std::tolower(static_cast<unsigned char>(b));
         });
}

// What the first bytes of a foreign file say, or nothing.
std::string_view DescribeHead(std::string_view head) {
  for (const Signature& s : kSignatures) {
    if (head.starts_with(s.prefix)) return s.meaning;
  }
  // A safetensors file begins with a 64-bit length, then JSON.
  if (head.size() > 8 && head[8] == '{' && head.substr(4, 4) == std::string_view("\0\0\0\0", 4)) {
    return "a safetensors file; give the folder that holds it together with config.json";
  }
  const size_t text = head.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (text == std::string_view::npos) return {};
  head.remove_prefix(text);
  if (StartsWithNoCase(head, "<!doctype") || StartsWithNoCase(head, "<html") ||
      StartsWithNoCase(head, "<head") || StartsWithNoCase(head, "<?xml")) {
    return "a web page, not a model: the download went wrong (a login or an error page?); "
           "download it again";
  }
  if (head.starts_with("{")) {
    return "JSON text: an error message saved by a download, or a file of a Hugging Face folder "
           "(then give the folder)";
  }
  return {};
}

std::string HexBytes(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    absl::StrAppendFormat(&out, "%s%02x", out.empty() ? "" : " ", static_cast<unsigned char>(c));
  }
  return out;
}

absl::Status NotRegular(const std::string& path, mode_t mode) {
  const char* what = S_ISDIR(mode)    ? "a directory"
                     : S_ISFIFO(mode) ? "a FIFO"
                     : S_ISSOCK(mode) ? "a socket"
                                      : "a device";
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: is %s; it must be a regular file", path, what));
}

}  // namespace

absl::StatusOr<InputFile> InputFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return ErrnoStatus(errno, path);
  struct stat st;
  if (fstat(fd, &st) != 0) {
    const absl::Status status = ErrnoStatus(errno, path);
    close(fd);
    return status;
  }
  InputFile file(path, fd, static_cast<uint64_t>(st.st_size));
  if (!S_ISREG(st.st_mode)) return NotRegular(path, st.st_mode);
  if (file.size() == 0) {
    return absl::DataLossError(absl::StrCat(path, ": is empty; download or copy it again"));
  }
  return file;
}

InputFile::~InputFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status InputFile::ReadExactly(uint64_t offset, std::span<std::byte> dst) const {
  while (!dst.empty()) {
    const ssize_t n = pread(fd_, dst.data(), dst.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrFormat("%s: read at %d", path_, offset));
    if (n == 0) {
      return absl::DataLossError(
          absl::StrFormat("%s: ends at byte %d, where %d more were expected; the file is truncated",
                          path_, offset, dst.size()));
    }
    offset += static_cast<uint64_t>(n);
    dst = dst.subspan(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status InputFile::NotA(std::string_view wanted) const {
  std::string head(std::min<uint64_t>(size_, kHeadBytes), '\0');
  SLUICE_RETURN_IF_ERROR(ReadExactly(0, std::as_writable_bytes(std::span(head))));
  const std::string_view meaning = DescribeHead(head);
  if (!meaning.empty()) {
    return absl::DataLossError(
        absl::StrFormat("%s: is not %s but seems to be %s", path_, wanted, meaning));
  }
  return absl::DataLossError(absl::StrFormat("%s: is not %s (it begins with bytes %s)", path_,
                                             wanted,
                                             HexBytes(std::string_view(head).substr(0, 8))));
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, uint64_t max_bytes) {
  SLUICE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  if (file.size() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: has %d bytes; such a file has at most %d", path, file.size(), max_bytes));
  }
  std::string text(file.size(), '\0');
  SLUICE_RETURN_IF_ERROR(file.ReadExactly(0, std::as_writable_bytes(std::span(text))));
  return text;
}

}  // namespace sluice
