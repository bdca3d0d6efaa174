#include "layout/gguf_writer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/source_encode.h"

namespace sluice {
namespace {

constexpr uint32_t kVersion = 3;
constexpr uint64_t kAlignment = 32;  // the format's default, so the key is not written
constexpr size_t kBufferBytes = 1 << 20;
constexpr size_t kMaxDims = 4;

// The format's ids of value types.
constexpr uint32_t kUint16 = 2;
constexpr uint32_t kUint32 = 4;
constexpr uint32_t kInt32 = 5;
constexpr uint32_t kFloat32 = 6;
constexpr uint32_t kBool = 7;
constexpr uint32_t kString = 8;
constexpr uint32_t kArray = 9;

uint64_t AlignUp(uint64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

void PutGgufString(ByteWriter& out, std::string_view s) {
  out.Put<uint64_t>(s.size());
  out.PutBytes(s.data(), s.size());
}

}  // namespace

void GgufWriter::BeginEntry(std::string_view key, uint32_t type) {
  if (key.empty() || !keys_.insert(std::string(key)).second) {
    declared_.Update(absl::InvalidArgumentError(
        absl::StrFormat("GGUF metadata key \"%s\" is empty or given twice", key)));
  }
  PutGgufString(metadata_, key);
  metadata_.Put<uint32_t>(type);
  ++n_entries_;
}

void GgufWriter::BeginArray(std::string_view key, uint32_t element_type, uint64_t count) {
  BeginEntry(key, kArray);
  metadata_.Put<uint32_t>(element_type);
  metadata_.Put<uint64_t>(count);
}

void GgufWriter::AddUint16(std::string_view key, uint16_t value) {
  BeginEntry(key, kUint16);
  metadata_.Put(value);
}

void GgufWriter::AddUint32(std::string_view key, uint32_t value) {
  BeginEntry(key, kUint32);
  metadata_.Put(value);
}

void GgufWriter::AddInt32(std::string_view key, int32_t value) {
  BeginEntry(key, kInt32);
  metadata_.Put(value);
}

void GgufWriter::AddFloat32(std::string_view key, float value) {
  BeginEntry(key, kFloat32);
  metadata_.Put(value);
}

void GgufWriter::AddBool(std::string_view key, bool value) {
  BeginEntry(key, kBool);
  metadata_.Put<uint8_t>(value);
}

void GgufWriter::AddString(std::string_view key, std::string_view value) {
  BeginEntry(key, kString);
  PutGgufString(metadata_, value);
}

void GgufWriter::AddInt32Array(std::string_view key, std::span<const int32_t> values) {
  BeginArray(key, kInt32, values.size());
  for (const int32_t v : values) metadata_.Put(v);
}

void GgufWriter::AddFloat32Array(std::string_view key, std::span<const float> values) {
  BeginArray(key, kFloat32, values.size());
  for (const float v : values) metadata_.Put(v);
}

void GgufWriter::AddStringArray(std::string_view key, std::span<const std::string> values) {
  BeginArray(key, kString, values.size());
  for (const std::string& v : values) PutGgufString(metadata_, v);
}

void GgufWriter::DeclareTensor(std::string_view name, SourceType type,
                               std::span<const uint64_t> shape) {
  const std::optional<uint64_t> bytes = SourceTensorBytes(type, shape);
  if (name.empty() || !tensor_names_.insert(std::string(name)).second) {
    declared_.Update(absl::InvalidArgumentError(
        absl::StrFormat("GGUF tensor name \"%s\" is empty or given twice", name)));
  } else if (!bytes || shape.size() > kMaxDims) {
    declared_.Update(absl::InvalidArgumentError(absl::StrFormat(
        "GGUF tensor \"%s\" of type %s must have 1 to %d dimensions above zero and rows of whole "
        "blocks of %d",
        name, SourceTypeName(type), kMaxDims, BlockElements(type))));
  }
  tensors_.push_back({std::string(name), type, std::vector<uint64_t>(shape.begin(), shape.end()),
                      bytes.value_or(0)});
}

std::vector<std::byte> GgufWriter::EncodeHeader() const {
  ByteWriter out;
  out.PutBytes("GGUF", 4);
  out.Put<uint32_t>(kVersion);
  out.Put<uint64_t>(tensors_.size());
  out.Put<uint64_t>(n_entries_);
  out.PutBytes(metadata_.bytes().data(), metadata_.bytes().size());
  uint64_t offset = 0;
  for (const Tensor& t : tensors_) {
    PutGgufString(out, t.name);
    out.Put<uint32_t>(static_cast<uint32_t>(t.shape.size()));
    for (size_t i = t.shape.size(); i-- > 0;) out.Put<uint64_t>(t.shape[i]);
    out.Put<uint32_t>(static_cast<uint32_t>(t.type));
    out.Put<uint64_t>(offset);
    offset += AlignUp(t.n_bytes);
  }
  std::vector<std::byte> bytes = out.bytes();
  if (!tensors_.empty()) bytes.resize(AlignUp(bytes.size()));
  return bytes;
}

uint64_t GgufWriter::TensorBytes() const {
  uint64_t bytes = 0;
  for (const Tensor& t : tensors_) bytes += t.n_bytes;
  return bytes;
}

uint64_t GgufWriter::PaddedTensorBytes() const {
  uint64_t bytes = 0;
  for (const Tensor& t : tensors_) bytes += AlignUp(t.n_bytes);
  return bytes;
}

uint64_t GgufWriter::FileBytes() const { return EncodeHeader().size() + PaddedTensorBytes(); }

absl::Status GgufWriter::Start(const std::string& path, bool overwrite) {
  SLUICE_RETURN_IF_ERROR(Annotate(declared_, path));
  const std::vector<std::byte> header = EncodeHeader();
  SLUICE_ASSIGN_OR_RETURN(
      file_, AtomicFile::Create(path, {.overwrite = overwrite,
                                       .expected_bytes = header.size() + PaddedTensorBytes()}));
  buffer_.reserve(kBufferBytes);
  return Buffer(header);
}

absl::Status GgufWriter::NotOpen() const {
  return absl::FailedPreconditionError(
      "GGUF writer: data and Finish come after Start, Finish once");
}

absl::Status GgufWriter::Write(std::span<const std::byte> bytes) {
  if (file_ == nullptr) return NotOpen();
  while (!bytes.empty()) {
    if (current_ == tensors_.size()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: %d bytes more than the declared tensors hold", file_->path(), bytes.size()));
    }
    const Tensor& tensor = tensors_[current_];
    const size_t n = std::min<uint64_t>(bytes.size(), tensor.n_bytes - written_in_current_);
    SLUICE_RETURN_IF_ERROR(Buffer(bytes.first(n)));
    written_in_current_ += n;
    bytes = bytes.subspan(n);
    if (written_in_current_ == tensor.n_bytes) SLUICE_RETURN_IF_ERROR(PadAndAdvance());
  }
  return absl::OkStatus();
}

absl::Status GgufWriter::PadAndAdvance() {
  static constexpr std::byte kZeros[kAlignment] = {};
  const uint64_t n = tensors_[current_].n_bytes;
  ++current_;
  written_in_current_ = 0;
  return Buffer(std::span(kZeros).first(AlignUp(n) - n));
}

absl::Status GgufWriter::WriteFloats(std::span<const float> values) {
  if (file_ == nullptr) return NotOpen();
  const SourceType type = current_ < tensors_.size() ? tensors_[current_].type : SourceType::kF32;
  if (!CanEncodeSource(type) || values.size() % BlockElements(type) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %d floats cannot be written as %s",
                                                      file_->path(), values.size(),
                                                      SourceTypeName(type)));
  }
  std::byte encoded[4096];
  const size_t step = sizeof(encoded) / BlockBytes(type) * BlockElements(type);
  while (!values.empty()) {
    const auto piece = values.first(std::min(step, values.size()));
    const auto dst =
        std::span(encoded).first(piece.size() / BlockElements(type) * BlockBytes(type));
    EncodeSource(type, piece, dst);
    SLUICE_RETURN_IF_ERROR(Write(dst));
    values = values.subspan(piece.size());
  }
  return absl::OkStatus();
}

absl::Status GgufWriter::Buffer(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t n = std::min(bytes.size(), kBufferBytes - buffer_.size());
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n));
    bytes = bytes.subspan(n);
    if (buffer_.size() == kBufferBytes) SLUICE_RETURN_IF_ERROR(FlushBuffer());
  }
  return absl::OkStatus();
}

absl::Status GgufWriter::FlushBuffer() {
  SLUICE_RETURN_IF_ERROR(file_->WriteAt(flushed_, buffer_));
  flushed_ += buffer_.size();
  buffer_.clear();
  if (flushed_ % (16 * kBufferBytes) == 0) file_->FlushBehind();
  return absl::OkStatus();
}

absl::Status GgufWriter::Finish() {
  if (file_ == nullptr) return NotOpen();
  if (current_ != tensors_.size()) {
    const Tensor& t = tensors_[current_];
    return absl::FailedPreconditionError(absl::StrFormat("%s: tensor \"%s\" has %d of %d bytes",
                                                         file_->path(), t.name, written_in_current_,
                                                         t.n_bytes));
  }
  SLUICE_RETURN_IF_ERROR(FlushBuffer());
  const absl::Status committed = file_->Commit();
  file_.reset();
  return committed;
}

}  // namespace sluice
