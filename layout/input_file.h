// A model file opened for import: regular files only, opened without waiting (a FIFO or a device
// must not hang the program), read with pread.
//
// Move-only; owns the descriptor. ReadExactly is thread-safe.
#ifndef SLUICE_LAYOUT_INPUT_FILE_H_
#define SLUICE_LAYOUT_INPUT_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice {

class InputFile {
 public:
  // InvalidArgument for a directory, FIFO, socket or device, DataLoss for an empty file.
  static absl::StatusOr<InputFile> Open(const std::string& path);
  InputFile(InputFile&& other) noexcept
      : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }

  // Reads exactly dst.size() bytes. DataLoss naming the file if it ends before.
  absl::Status ReadExactly(uint64_t offset, std::span<std::byte> dst) const;

  // A DataLoss status for a file that does not begin like `wanted` ("a GGUF file"). Says in plain
  // words what it is instead where that can be told: a web page, a git-lfs pointer, an old GGML
  // file, a PyTorch checkpoint, safetensors, a repacked model.
  absl::Status NotA(std::string_view wanted) const;

 private:
  InputFile(std::string path, int fd, uint64_t size)
      : path_(std::move(path)), fd_(fd), size_(size) {}

  std::string path_;
  int fd_;
  uint64_t size_;
};

// Reads a whole small text file. InvalidArgument if it is larger than `max_bytes`.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, uint64_t max_bytes);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_INPUT_FILE_H_
