// Reader of GGUF files, versions 2 and 3, little-endian, single or split, and of PowerInfer's,
// which differ in their magic.
//
// The whole header is untrusted: every count is bounded by the bytes that remain in the file and by
// an absolute cap before memory is taken, and every tensor's range is checked against the file.
// Messages name the file and the field. Only the header is held in memory; tensor bytes are read
// on demand with pread, so a file that shrinks later gives an error and not SIGBUS.
//
// Thread-compatible; ReadTensor is thread-safe.
#ifndef SLUICE_LAYOUT_GGUF_H_
#define SLUICE_LAYOUT_GGUF_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "layout/input_file.h"
#include "layout/source_type.h"

namespace sluice {

// A metadata value. Integers are widened, so that a key stored as u32 or i64 reads alike; arrays
// hold one element kind. Nested arrays are refused.
class GgufValue {
 public:
  using Storage = std::variant<bool, uint64_t, int64_t, double, std::string, std::vector<bool>,
                               std::vector<uint64_t>, std::vector<int64_t>, std::vector<double>,
                               std::vector<std::string>>;
  explicit GgufValue(Storage value) : value_(std::move(value)) {}
  const Storage& storage() const& { return value_; }
  Storage storage() && { return std::move(value_); }

 private:
  Storage value_;
};

struct GgufTensor {
  std::string name;
  SourceType type = SourceType::kF32;
  // Outermost first (GGUF stores innermost first): a weight matrix is {rows, columns}; a row of
  // `shape.back()` elements is contiguous.
  std::vector<uint64_t> shape;
  uint32_t part = 0;    // which file of a split
  uint64_t offset = 0;  // from the start of that file
  uint64_t n_bytes = 0;
};

class GgufFile {
 public:
  // `path` is the file, or any part of a split ("-00001-of-00003.gguf"); the other parts must lie
  // beside it. DataLoss for anything malformed, NotFound for a missing part (naming it),
  // Unimplemented for version 1, big-endian files and element types outside SourceType (naming the
  // tensor).
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const { return path_; }
  // All parts.
  std::vector<std::string> files() const;
  // Written by PowerInfer: a model with ReLU, whatever its metadata say.
  bool is_powerinfer() const { return is_powerinfer_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* FindTensor(std::string_view name) const;

  // Typed access to metadata. Each returns NotFound if the key is absent and InvalidArgument naming
  // file and key if it holds another type or does not fit.
  absl::StatusOr<uint64_t> GetUint(std::string_view key) const;
  absl::StatusOr<double> GetFloat(std::string_view key) const;
  absl::StatusOr<bool> GetBool(std::string_view key) const;
  absl::StatusOr<std::string> GetString(std::string_view key) const;
  // Borrowed; valid while this object lives.
  absl::StatusOr<std::span<const std::string>> GetStringArray(std::string_view key) const;
  // Numeric arrays come as copies, converted from whatever numeric element type is stored.
  absl::StatusOr<std::vector<double>> GetFloatArray(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> GetIntArray(std::string_view key) const;
  bool Has(std::string_view key) const;
  const absl::flat_hash_map<std::string, GgufValue>& metadata() const { return metadata_; }

  // For what is large: takes an array of strings out of the metadata, drops an entry that was
  // imported.
  absl::StatusOr<std::vector<std::string>> TakeStringArray(std::string_view key);
  void DropMetadata(std::string_view key);

  // Reads dst.size() bytes that begin `offset` bytes into the tensor. DataLoss if the file has
  // become shorter, OutOfRange if the range is outside the tensor.
  absl::Status ReadTensor(const GgufTensor& tensor, uint64_t offset,
                          std::span<std::byte> dst) const;

 private:
  GgufFile() = default;
  absl::Status AddTensors(uint32_t part, std::vector<GgufTensor> tensors);
  const GgufValue* FindValue(std::string_view key) const;
  absl::Status MissingKey(std::string_view key) const;
  absl::Status WrongType(std::string_view key, std::string_view wanted) const;

  std::string path_;
  bool is_powerinfer_ = false;
  std::vector<InputFile> parts_;
  absl::flat_hash_map<std::string, GgufValue> metadata_;
  std::vector<GgufTensor> tensors_;
  absl::flat_hash_map<std::string, size_t> tensor_index_;
};

}  // namespace sluice

#endif  // SLUICE_LAYOUT_GGUF_H_
