// Writes a GGUF file (version 3) front to back in bounded memory: add the metadata and declare the
// tensors, Start, write the tensors' bytes in the order of declaration in pieces of any size,
// Finish. The file appears under its name only when Finish has succeeded.
//
//   GgufWriter writer;
//   writer.AddString("general.architecture", "llama");
//   writer.DeclareTensor("output_norm.weight", SourceType::kF32, {d_model});
//   SLUICE_RETURN_IF_ERROR(writer.Start(path, /*overwrite=*/false));
//   SLUICE_RETURN_IF_ERROR(writer.WriteFloats(norm));
//   SLUICE_RETURN_IF_ERROR(writer.Finish());
//
// Thread-compatible. Memory: the header (a vocabulary) and 1 MiB.
#ifndef SLUICE_LAYOUT_GGUF_WRITER_H_
#define SLUICE_LAYOUT_GGUF_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "io/atomic_file.h"
#include "layout/byte_io.h"
#include "layout/source_type.h"

namespace sluice {

class GgufWriter {
 public:
  // Metadata; before Start. A key that is given twice is an error of Start.
  void AddUint16(std::string_view key, uint16_t value);
  void AddUint32(std::string_view key, uint32_t value);
  void AddInt32(std::string_view key, int32_t value);
  void AddFloat32(std::string_view key, float value);
  void AddBool(std::string_view key, bool value);
  void AddString(std::string_view key, std::string_view value);
  void AddInt32Array(std::string_view key, std::span<const int32_t> values);
  void AddFloat32Array(std::string_view key, std::span<const float> values);
  void AddStringArray(std::string_view key, std::span<const std::string> values);

  // `shape` is outermost first, as in GgufTensor: a matrix is {rows, columns}.
  void DeclareTensor(std::string_view name, SourceType type, std::span<const uint64_t> shape);

  // What is to be written after Start: the data of all declared tensors.
  uint64_t TensorBytes() const;
  // The size of the finished file: the header and the tensors, each padded to the alignment.
  uint64_t FileBytes() const;

  // Checks what was declared (InvalidArgument: duplicates, empty names or dimensions, rows that are
  // not whole blocks, more than 4 dimensions), checks the free space and writes the header.
  absl::Status Start(const std::string& path, bool overwrite);
  // The next bytes of tensor data, encoded; a piece may span tensors. InvalidArgument if more comes
  // than was declared.
  absl::Status Write(std::span<const std::byte> bytes);
  // The next values of a tensor of a type that EncodeSource knows. They must be whole blocks and
  // must not pass into a tensor of another type.
  absl::Status WriteFloats(std::span<const float> values);
  // FailedPrecondition naming the first tensor whose data is not complete.
  absl::Status Finish();

 private:
  struct Tensor {
    std::string name;
    SourceType type;
    std::vector<uint64_t> shape;
    uint64_t n_bytes = 0;
  };

  // Key and type id of an entry; the caller appends the value.
  void BeginEntry(std::string_view key, uint32_t type);
  void BeginArray(std::string_view key, uint32_t element_type, uint64_t count);
  absl::Status NotOpen() const;
  std::vector<std::byte> EncodeHeader() const;
  uint64_t PaddedTensorBytes() const;
  absl::Status Buffer(std::span<const std::byte> bytes);
  absl::Status PadAndAdvance();
  absl::Status FlushBuffer();

  ByteWriter metadata_;
  uint64_t n_entries_ = 0;
  absl::flat_hash_set<std::string> keys_;
  std::vector<Tensor> tensors_;
  absl::flat_hash_set<std::string> tensor_names_;
  absl::Status declared_ = absl::OkStatus();  // the first error of an Add or Declare call

  std::unique_ptr<AtomicFile> file_;  // from Start to Finish
  std::vector<std::byte> buffer_;
  uint64_t flushed_ = 0;  // bytes of the file written
  size_t current_ = 0;    // the tensor being written
  uint64_t written_in_current_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_LAYOUT_GGUF_WRITER_H_
