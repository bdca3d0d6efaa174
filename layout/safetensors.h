// Reader of safetensors files: a u64 length, that many bytes of JSON that give each tensor its
// dtype, shape and range, then the data.
//
// The header is untrusted: its length is bounded by the file and by an absolute cap, JSON keys must
// be unique, every range must have the size that dtype and shape ask for, and the ranges must cover
// the data exactly, without overlap, hole or rest. Tensor bytes are read on demand with pread.
//
// Thread-compatible; ReadTensor is thread-safe.
#ifndef SLUICE_LAYOUT_SAFETENSORS_H_
#define SLUICE_LAYOUT_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/input_file.h"
#include "layout/source_type.h"

namespace sluice {

struct SafetensorsTensor {
  std::string name;
  SourceType type = SourceType::kF32;  // kF32, kF16 or kBF16
  std::vector<uint64_t> shape;         // outermost first
  uint64_t offset = 0;                 // from the start of the file
  uint64_t n_bytes = 0;
};

class SafetensorsFile {
 public:
  // DataLoss for anything malformed, Unimplemented (naming the tensor) for dtypes other than F32,
  // F16 and BF16.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return file_.path(); }
  // In the order of their data.
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }

  // Reads dst.size() bytes that begin `offset` bytes into the tensor. DataLoss if the file has
  // become shorter, OutOfRange if the range is outside the tensor.
  absl::Status ReadTensor(const SafetensorsTensor& tensor, uint64_t offset,
                          std::span<std::byte> dst) const;

 private:
  SafetensorsFile(InputFile file, std::vector<SafetensorsTensor> tensors)
      : file_(std::move(file)), tensors_(std::move(tensors)) {}

  InputFile file_;
  std::vector<SafetensorsTensor> tensors_;
};

// The "weight_map" of model.safetensors.index.json: tensor name to file name. File names are plain
// names in the same folder; anything else is refused. `path` is for messages.
absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(std::string_view json,
                                                                         const std::string& path);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_SAFETENSORS_H_
