#include "layout/gguf.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/gguf_parser.h"

namespace sluice {
namespace {

constexpr uint32_t kMaxParts = 512;  // each keeps a descriptor open

// The name of a split part: "<stem>-00002-of-00003.gguf".
struct PartName {
  std::string stem;
  uint32_t number = 0;  // from 1
  uint32_t count = 0;

  std::string Path(uint32_t n) const {
    return absl::StrFormat("%s-%05d-of-%05d.gguf", stem, n, count);
  }
};

// Five digits at `at`, or nothing.
std::optional<uint32_t> FiveDigits(std::string_view text, size_t at) {
  uint32_t value = 0;
  for (const char c : text.substr(at, 5)) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<uint32_t>(c - '0');
  }
  return value;
}

std::optional<PartName> ParsePartName(const std::string& path) {
  constexpr std::string_view kPattern = "-00000-of-00000.gguf";
  if (path.size() <= kPattern.size()) return std::nullopt;
  const size_t stem = path.size() - kPattern.size();
  const std::string_view tail = std::string_view(path).substr(stem);
  const std::optional<uint32_t> number = FiveDigits(tail, 1);
  const std::optional<uint32_t> count = FiveDigits(tail, 10);
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || tail.substr(15) != ".gguf" || !number ||
      !count || *number < 1 || *number > *count) {
    return std::nullopt;
  }
  return PartName{path.substr(0, stem), *number, *count};
}

// A small unsigned value of a header that may be absent.
absl::StatusOr<std::optional<uint64_t>> SplitKey(const InputFile& file, const GgufHeader& header,
                                                 const char* key) {
  const auto it = header.metadata.find(key);
  if (it == header.metadata.end()) return std::nullopt;
  if (const auto* u = std::get_if<uint64_t>(&it->second.storage())) return *u;
  if (const auto* i = std::get_if<int64_t>(&it->second.storage()); i != nullptr && *i >= 0) {
    return static_cast<uint64_t>(*i);
  }
  return absl::DataLossError(
      absl::StrFormat("%s: \"%s\" is not an integer of 0 or more", file.path(), key));
}

absl::StatusOr<InputFile> OpenPart(const PartName& name, uint32_t number) {
  absl::StatusOr<InputFile> file = InputFile::Open(name.Path(number));
  if (!absl::IsNotFound(file.status())) return file;
  return absl::NotFoundError(
      absl::StrFormat("%s: part %d of %d is missing; it must lie beside the "
                      "other parts",
                      name.Path(number), number, name.count));
}

// That the header says of its place in a split what the file's name says.
absl::Status CheckPart(const InputFile& file, const GgufHeader& header,
                       const std::optional<PartName>& name, uint32_t number) {
  SLUICE_ASSIGN_OR_RETURN(const auto no, SplitKey(file, header, "split.no"));
  SLUICE_ASSIGN_OR_RETURN(const auto count, SplitKey(file, header, "split.count"));
  if (!name) {
    if (count.value_or(1) <= 1) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: is part %d of a model split into %d files; give the parts their names "
                        "\"NAME-00001-of-%05d.gguf\" and so on",
                        file.path(), no.value_or(0) + 1, *count, *count));
  }
  if (name->count == 1 && !count) return absl::OkStatus();
  if (!no || !count) {
    return absl::DataLossError(absl::StrFormat(
        "%s: is named as part %d of %d, but has no \"split.no\" and \"split.count\"; if it is a "
        "whole model, rename it",
        file.path(), number, name->count));
  }
  if (*no + 1 != number || *count != name->count) {
    return absl::DataLossError(
        absl::StrFormat("%s: is named as part %d of %d, but says that it is part %d of %d",
                        file.path(), number, name->count, *no + 1, *count));
  }
  return absl::OkStatus();
}

template <typename T>
constexpr bool kIsNumber =
    std::is_same_v<T, uint64_t> || std::is_same_v<T, int64_t> || std::is_same_v<T, double>;

// Exact conversion to int64, or nothing.
template <typename T>
std::optional<int64_t> ToInt64(T value) {
  if constexpr (std::is_same_v<T, double>) {
    if (!(value >= -0x1p53 && value <= 0x1p53) || value != std::floor(value)) return std::nullopt;
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    if (value > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  }
  return static_cast<int64_t>(value);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  const std::optional<PartName> name = ParsePartName(path);
  const uint32_t n_parts = name ? name->count : 1;
  if (n_parts > kMaxParts) {
    return absl::UnimplementedError(absl::StrFormat(
        "%s: a model of %d parts; Sluice opens at most %d", path, n_parts, kMaxParts));
  }
  auto gguf = std::unique_ptr<GgufFile>(new GgufFile());
  gguf->path_ = path;
  std::optional<uint64_t> total_tensors;
  for (uint32_t part = 0; part < n_parts; ++part) {
    SLUICE_ASSIGN_OR_RETURN(InputFile file,
                            name ? OpenPart(*name, part + 1) : InputFile::Open(path));
    SLUICE_ASSIGN_OR_RETURN(GgufHeader header,
                            ParseGgufHeader(file, part == 0 ? GgufPart::kFirst : GgufPart::kLater));
    SLUICE_RETURN_IF_ERROR(CheckPart(file, header, name, part + 1));
    if (part == 0) {
      SLUICE_ASSIGN_OR_RETURN(total_tensors, SplitKey(file, header, "split.tensors.count"));
      gguf->is_powerinfer_ = header.is_powerinfer;
      gguf->metadata_ = std::move(header.metadata);
    }
    gguf->parts_.push_back(std::move(file));
    SLUICE_RETURN_IF_ERROR(gguf->AddTensors(part, std::move(header.tensors)));
  }
  if (total_tensors && *total_tensors != gguf->tensors_.size()) {
    return absl::DataLossError(
        absl::StrFormat("%s: \"split.tensors.count\" is %d, but the parts hold %d tensors", path,
                        *total_tensors, gguf->tensors_.size()));
  }
  return gguf;
}

absl::Status GgufFile::AddTensors(uint32_t part, std::vector<GgufTensor> tensors) {
  if (tensors.size() > kMaxGgufTensors - tensors_.size()) {
    return absl::DataLossError(absl::StrFormat("%s: the parts hold more than %d tensors",
                                               parts_[part].path(), kMaxGgufTensors));
  }
  for (GgufTensor& tensor : tensors) {
    tensor.part = part;
    if (!tensor_index_.emplace(tensor.name, tensors_.size()).second) {
      return absl::DataLossError(absl::StrFormat("%s: tensor \"%s\" is also in another part",
                                                 parts_[part].path(), tensor.name));
    }
    tensors_.push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto it = tensor_index_.find(ToAbsl(name));
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

const GgufValue* GgufFile::FindValue(std::string_view key) const {
  const auto it = metadata_.find(ToAbsl(key));
  return it == metadata_.end() ? nullptr : &it->second;
}

bool GgufFile::Has(std::string_view key) const { return FindValue(key) != nullptr; }

void GgufFile::DropMetadata(std::string_view key) { metadata_.erase(ToAbsl(key)); }

absl::Status GgufFile::MissingKey(std::string_view key) const {
  return absl::NotFoundError(absl::StrFormat("%s: metadata has no \"%s\"", path_, key));
}

absl::Status GgufFile::WrongType(std::string_view key, std::string_view wanted) const {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: metadata \"%s\" must be %s", path_, key, wanted));
}

absl::StatusOr<uint64_t> GgufFile::GetUint(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return MissingKey(key);
  if (const auto* u = std::get_if<uint64_t>(&value->storage())) return *u;
  if (const auto* i = std::get_if<int64_t>(&value->storage()); i != nullptr && *i >= 0) {
    return static_cast<uint64_t>(*i);
  }
  return WrongType(key, "an integer of 0 or more");
}

absl::StatusOr<double> GgufFile::GetFloat(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return MissingKey(key);
  return std::visit(
      [&]<typename T>(const T& v) -> absl::StatusOr<double> {
        if constexpr (kIsNumber<T>) return static_cast<double>(v);
        return WrongType(key, "a number");
      },
      value->storage());
}

absl::StatusOr<bool> GgufFile::GetBool(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return MissingKey(key);
  if (const auto* b = std::get_if<bool>(&value->storage())) return *b;
  return WrongType(key, "a bool");
}

absl::StatusOr<std::string> GgufFile::GetString(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return MissingKey(key);
  if (const auto* s = std::get_if<std::string>(&value->storage())) return *s;
  return WrongType(key, "a string");
}

absl::StatusOr<std::span<const std::string>> GgufFile::GetStringArray(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return MissingKey(key);
  if (const auto* v = std::get_if<std::vector<std::string>>(&value->storage())) {
    return std::span<const std::string>(*v);
  }
  return WrongType(key, "an array of strings");
}

absl::StatusOr<std::vector<std::string>> GgufFile::TakeStringArray(std::string_view key) {
  SLUICE_RETURN_IF_ERROR(GetStringArray(key).status());
  auto entry = metadata_.extract(ToAbsl(key));
  return std::get<std::vector<std::string>>(std::move(entry.mapped()).storage());
}

absl::StatusOr<std::vector<double>> GgufFile::GetFloatArray(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return MissingKey(key);
  const auto convert = [](const auto& v) { return std::vector<double>(v.begin(), v.end()); };
  if (const auto* v = std::get_if<std::vector<double>>(&value->storage())) return *v;
  if (const auto* v = std::get_if<std::vector<uint64_t>>(&value->storage())) return convert(*v);
  if (const auto* v = std::get_if<std::vector<int64_t>>(&value->storage())) return convert(*v);
  return WrongType(key, "an array of numbers");
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetIntArray(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return MissingKey(key);
  const auto convert = [&](const auto& stored) -> absl::StatusOr<std::vector<int64_t>> {
    std::vector<int64_t> out;
    out.reserve(stored.size());
    for (const auto element : stored) {
      const std::optional<int64_t> i = ToInt64(element);
      if (!i) return WrongType(key, "an array of integers");
      out.push_back(*i);
    }
    return out;
  };
  if (const auto* v = std::get_if<std::vector<uint64_t>>(&value->storage())) return convert(*v);
  if (const auto* v = std::get_if<std::vector<int64_t>>(&value->storage())) return *v;
  if (const auto* v = std::get_if<std::vector<double>>(&value->storage())) return convert(*v);
  return WrongType(key, "an array of integers");
}

std::vector<std::string> GgufFile::files() const {
  std::vector<std::string> out;
  for (const InputFile& part : parts_) out.push_back(part.path());
  return out;
}

absl::Status GgufFile::ReadTensor(const GgufTensor& tensor, uint64_t offset,
                                  std::span<std::byte> dst) const {
  if (offset > tensor.n_bytes || dst.size() > tensor.n_bytes - offset) {
    return absl::OutOfRangeError(absl::StrFormat(
        "%s: %d bytes at %d are outside tensor \"%s\" of %d bytes", parts_[tensor.part].path(),
        dst.size(), offset, tensor.name, tensor.n_bytes));
  }
  return Annotate(parts_[tensor.part].ReadExactly(tensor.offset + offset, dst),
                  absl::StrFormat("tensor \"%s\"", tensor.name));
}

}  // namespace sluice
