#include "layout/gguf_parser.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/byte_io.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxEntries = 65536;
constexpr uint64_t kMaxKeyBytes = 65535;       // the format's own limit
constexpr uint64_t kMaxTensorNameBytes = 127;  // the format says 64; some writers exceed it
constexpr uint32_t kMaxDims = 4;
constexpr char kAlignmentKey[] = "general.alignment";
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMinAlignment = 8;
constexpr uint64_t kMaxAlignment = 1 << 20;
// What all metadata may take in memory; a vocabulary of 256k tokens with its merges takes 30 MiB.
constexpr uint64_t kMaxMetadataBytes = 40ull << 20;
// What the few keys that count in a later part of a split may take.
constexpr uint64_t kMaxPartMetadataBytes = 64 << 10;

// The format's ids of value types.
enum class ValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

template <typename StoredT, typename WideT>
struct Number {
  using Stored = StoredT;  // in the file
  using Wide = WideT;      // in a GgufValue
};

// Calls `f` with the Number that a value type stands for; nothing for strings, arrays and ids that
// are not known.
template <typename F>
auto VisitNumber(uint32_t type, F f) -> std::optional<decltype(f(Number<bool, bool>()))> {
  switch (static_cast<ValueType>(type)) {
    case ValueType::kUint8:
      return f(Number<uint8_t, uint64_t>());
    case ValueType::kInt8:
      return f(Number<int8_t, int64_t>());
    case ValueType::kUint16:
      return f(Number<uint16_t, uint64_t>());
    case ValueType::kInt16:
      return f(Number<int16_t, int64_t>());
    case ValueType::kUint32:
      return f(Number<uint32_t, uint64_t>());
    case ValueType::kInt32:
      return f(Number<int32_t, int64_t>());
    case ValueType::kUint64:
      return f(Number<uint64_t, uint64_t>());
    case ValueType::kInt64:
      return f(Number<int64_t, int64_t>());
    case ValueType::kFloat32:
      return f(Number<float, double>());
    case ValueType::kFloat64:
      return f(Number<double, double>());
    case ValueType::kBool:
      return f(Number<uint8_t, bool>());
    case ValueType::kString:
    case ValueType::kArray:
      break;
  }
  return std::nullopt;
}

constexpr bool Is(uint32_t type, ValueType wanted) { return type == static_cast<uint32_t>(wanted); }

// Ids of element types that exist but that Sluice does not decode, for the message.
std::string_view ForeignTypeName(uint32_t id) {
  struct Entry {
    uint32_t id;
    std::string_view name;
  };
  static constexpr Entry kEntries[] = {
      {4, "Q4_2"},    {5, "Q4_3"},     {9, "Q8_1"},    {10, "Q2_K"},    {11, "Q3_K"},
      {15, "Q8_K"},   {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
      {20, "IQ4_NL"}, {21, "IQ3_S"},   {22, "IQ2_S"},  {23, "IQ4_XS"},  {24, "I8"},
      {25, "I16"},    {26, "I32"},     {27, "I64"},    {28, "F64"},     {29, "IQ1_M"},
      {34, "TQ1_0"},  {35, "TQ2_0"},   {39, "MXFP4"},
  };
  for (const Entry& e : kEntries) {
    if (e.id == id) return e.name;
  }
  return "not a known type";
}

// Sequential reads through one small buffer, none past the end of the file.
class Cursor {
 public:
  explicit Cursor(const InputFile& file) : file_(file), buffer_(64 * 1024) {}

  uint64_t offset() const { return offset_; }
  uint64_t remaining() const { return file_.size() - offset_; }

  // A DataLoss status at the current offset.
  absl::Status Bad(std::string_view what) const {
    return absl::DataLossError(absl::StrFormat("%s: %s (at byte %d)", file_.path(), what, offset_));
  }

  absl::Status Read(void* dst, size_t n, std::string_view what) {
    if (n > remaining()) {
      return Bad(absl::StrFormat("the file ends inside %s: %d bytes needed, %d left", what, n,
                                 remaining()));
    }
    auto* out = static_cast<std::byte*>(dst);
    while (n > 0) {
      if (offset_ - buffer_start_ >= buffered_) SLUICE_RETURN_IF_ERROR(Fill());
      const size_t at = offset_ - buffer_start_;
      const size_t piece = std::min(n, buffered_ - at);
      std::memcpy(out, buffer_.data() + at, piece);
      out += piece;
      n -= piece;
      offset_ += piece;
    }
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status Get(T& value, std::string_view what) {
    std::byte raw[sizeof(T)];
    SLUICE_RETURN_IF_ERROR(Read(raw, sizeof(T), what));
    value = LoadLe<T>(raw);
    return absl::OkStatus();
  }

  absl::Status GetLength(uint64_t& n, uint64_t max_bytes, std::string_view what) {
    SLUICE_RETURN_IF_ERROR(Get(n, what));
    const uint64_t most = std::min(remaining(), max_bytes);
    if (n <= most) return absl::OkStatus();
    return Bad(
        absl::StrFormat("the length of %s is %d; at most %d are possible here", what, n, most));
  }

  absl::Status GetString(std::string& value, uint64_t max_bytes, std::string_view what) {
    uint64_t n = 0;
    SLUICE_RETURN_IF_ERROR(GetLength(n, max_bytes, what));
    value.resize(n);
    return Read(value.data(), n, what);
  }

  // At most remaining().
  void Skip(uint64_t n) { offset_ += n; }

 private:
  absl::Status Fill() {
    buffer_start_ = offset_;
    buffered_ = std::min<uint64_t>(buffer_.size(), remaining());
    return file_.ReadExactly(buffer_start_, std::span(buffer_).first(buffered_));
  }

  const InputFile& file_;
  std::vector<std::byte> buffer_;
  uint64_t buffer_start_ = 0;
  size_t buffered_ = 0;
  uint64_t offset_ = 0;
};

// Reads the metadata, charging what it takes in memory against one budget.
class MetadataParser {
 public:
  MetadataParser(Cursor& in, GgufPart part)
      : in_(in),
        part_(part),
        budget_(part == GgufPart::kFirst ? kMaxMetadataBytes : kMaxPartMetadataBytes) {}

  absl::Status ParseEntry(uint64_t index, absl::flat_hash_map<std::string, GgufValue>& metadata) {
    std::string key;
    const std::string where = absl::StrFormat("metadata key %d", index);
    SLUICE_RETURN_IF_ERROR(in_.GetString(key, kMaxKeyBytes, where));
    if (key.empty()) return in_.Bad(absl::StrCat(where, " is empty"));
    what_ = absl::StrFormat("the value of \"%s\"", key);
    uint32_t type = 0;
    SLUICE_RETURN_IF_ERROR(in_.Get(type, what_));
    if (!IsWanted(key)) return SkipValue(type);
    SLUICE_RETURN_IF_ERROR(Charge(key.size() + 2 * sizeof(GgufValue)));
    SLUICE_ASSIGN_OR_RETURN(GgufValue value, ParseValue(type));
    if (!metadata.emplace(std::move(key), std::move(value)).second) {
      return in_.Bad(absl::StrCat(what_, " is given twice"));
    }
    return absl::OkStatus();
  }

 private:
  // What describes the model is in the first part.
  bool IsWanted(std::string_view key) const {
    return part_ == GgufPart::kFirst || key.starts_with("split.") || key == kAlignmentKey;
  }

  absl::StatusOr<GgufValue> ParseValue(uint32_t type) {
    if (Is(type, ValueType::kArray)) return ParseArray();
    if (Is(type, ValueType::kString)) {
      SLUICE_ASSIGN_OR_RETURN(std::string s, String());
      return GgufValue(std::move(s));
    }
    auto value = VisitNumber(type, [&]<typename N>(N) -> absl::StatusOr<GgufValue> {
      SLUICE_ASSIGN_OR_RETURN(const auto number, Element<N>());
      return GgufValue(number);
    });
    return value ? *std::move(value) : UnknownType(type);
  }

  absl::StatusOr<GgufValue> ParseArray() {
    uint32_t type = 0;
    uint64_t count = 0;
    SLUICE_RETURN_IF_ERROR(ArrayHead(type, count));
    if (Is(type, ValueType::kString)) return Strings(count);
    auto value = VisitNumber(
        type, [&]<typename N>(N) -> absl::StatusOr<GgufValue> { return Elements<N>(count); });
    return value ? *std::move(value) : UnknownElementType(type);
  }

  absl::Status SkipValue(uint32_t type) {
    uint64_t count = 1;
    const bool is_array = Is(type, ValueType::kArray);
    if (is_array) SLUICE_RETURN_IF_ERROR(ArrayHead(type, count));
    if (Is(type, ValueType::kString)) return SkipStrings(count);
    const auto bytes = VisitNumber(type, []<typename N>(N) { return sizeof(typename N::Stored); });
    if (!bytes) return is_array ? UnknownElementType(type) : UnknownType(type);
    SLUICE_RETURN_IF_ERROR(CountSkipped(count, *bytes));
    in_.Skip(count * *bytes);
    return absl::OkStatus();
  }

  absl::Status SkipStrings(uint64_t count) {
    SLUICE_RETURN_IF_ERROR(CountSkipped(count, sizeof(uint64_t)));
    for (; count > 0; --count) {
      uint64_t n = 0;
      SLUICE_RETURN_IF_ERROR(in_.GetLength(n, kMaxMetadataBytes - skipped_, what_));
      skipped_ += n;
      in_.Skip(n);
    }
    return absl::OkStatus();
  }

  // What is skipped is bounded like what is read, so that it takes no more time.
  absl::Status CountSkipped(uint64_t count, uint64_t bytes) {
    if (count > in_.remaining() / bytes || count > (kMaxMetadataBytes - skipped_) / bytes) {
      return in_.Bad(absl::StrFormat("%s is longer than the file or than %d MiB", what_,
                                     kMaxMetadataBytes >> 20));
    }
    skipped_ += count * bytes;
    return absl::OkStatus();
  }

  absl::Status UnknownType(uint32_t type) const {
    return in_.Bad(absl::StrFormat("%s has unknown type %d", what_, type));
  }
  absl::Status UnknownElementType(uint32_t type) const {
    return in_.Bad(Is(type, ValueType::kArray)
                       ? absl::StrCat(what_, " is an array of arrays, which no known key is")
                       : absl::StrFormat("%s is an array of unknown type %d", what_, type));
  }

  absl::Status ArrayHead(uint32_t& type, uint64_t& count) {
    SLUICE_RETURN_IF_ERROR(in_.Get(type, what_));
    return in_.Get(count, what_);
  }

  template <typename N>
  absl::StatusOr<typename N::Wide> Element() {
    typename N::Stored stored{};
    SLUICE_RETURN_IF_ERROR(in_.Get(stored, what_));
    if constexpr (std::is_same_v<typename N::Wide, bool>) {
      if (stored > 1) return in_.Bad(absl::StrFormat("%s is a bool of %d", what_, stored));
    }
    return static_cast<typename N::Wide>(stored);
  }

  template <typename N>
  absl::StatusOr<GgufValue> Elements(uint64_t count) {
    using Wide = typename N::Wide;
    SLUICE_RETURN_IF_ERROR(CheckCount(count, sizeof(typename N::Stored), sizeof(Wide)));
    std::vector<Wide> values;
    values.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      SLUICE_ASSIGN_OR_RETURN(const Wide value, Element<N>());
      values.push_back(value);
    }
    return GgufValue(std::move(values));
  }

  absl::StatusOr<GgufValue> Strings(uint64_t count) {
    SLUICE_RETURN_IF_ERROR(CheckCount(count, sizeof(uint64_t), sizeof(std::string)));
    std::vector<std::string> values;
    values.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      SLUICE_ASSIGN_OR_RETURN(std::string value, String());
      values.push_back(std::move(value));
    }
    return GgufValue(std::move(values));
  }

  absl::StatusOr<std::string> String() {
    std::string value;
    SLUICE_RETURN_IF_ERROR(in_.GetString(value, budget_ - charged_, what_));
    // What fits the string object itself takes no heap; a heap block has a header of 16 bytes.
    if (value.size() >= sizeof(std::string) / 2) SLUICE_RETURN_IF_ERROR(Charge(value.size() + 17));
    return value;
  }

  absl::Status CheckCount(uint64_t count, uint64_t file_bytes, uint64_t memory_bytes) {
    if (count > in_.remaining() / file_bytes) {
      return in_.Bad(absl::StrFormat("%s has %d elements; the %d bytes left hold at most %d", what_,
                                     count, in_.remaining(), in_.remaining() / file_bytes));
    }
    return Charge(count * memory_bytes);
  }

  absl::Status Charge(uint64_t bytes) {
    if (bytes > budget_ - charged_) {
      return in_.Bad(
          absl::StrFormat("the metadata up to %s needs more than %d KiB", what_, budget_ >> 10));
    }
    charged_ += bytes;
    return absl::OkStatus();
  }

  Cursor& in_;
  const GgufPart part_;
  const uint64_t budget_;
  std::string what_;
  uint64_t charged_ = 0;
  uint64_t skipped_ = 0;
};

absl::Status ParseShape(Cursor& in, const std::string& what, std::vector<uint64_t>& shape) {
  uint32_t n_dims = 0;
  SLUICE_RETURN_IF_ERROR(in.Get(n_dims, what));
  if (n_dims < 1 || n_dims > kMaxDims) {
    return in.Bad(
        absl::StrFormat("%s has %d dimensions; it must have 1 to %d", what, n_dims, kMaxDims));
  }
  shape.resize(n_dims);
  for (uint32_t i = 0; i < n_dims; ++i) {
    uint64_t& dim = shape[n_dims - 1 - i];
    SLUICE_RETURN_IF_ERROR(in.Get(dim, what));
    if (dim == 0 || dim > static_cast<uint64_t>(INT64_MAX)) {
      return in.Bad(absl::StrFormat("%s has a dimension of %d", what, static_cast<int64_t>(dim)));
    }
  }
  return absl::OkStatus();
}

// Leaves `offset` relative to the data section.
absl::StatusOr<GgufTensor> ParseTensor(Cursor& in, uint64_t index, const std::string& path) {
  GgufTensor tensor;
  const std::string ordinal = absl::StrFormat("the name of tensor %d", index);
  SLUICE_RETURN_IF_ERROR(in.GetString(tensor.name, kMaxTensorNameBytes, ordinal));
  if (tensor.name.empty()) return in.Bad(absl::StrCat(ordinal, " is empty"));
  const std::string what = absl::StrFormat("tensor \"%s\"", tensor.name);
  SLUICE_RETURN_IF_ERROR(ParseShape(in, what, tensor.shape));
  uint32_t type_id = 0;
  SLUICE_RETURN_IF_ERROR(in.Get(type_id, what));
  const std::optional<SourceType> type = SourceTypeFromGgufId(type_id);
  if (!type) {
    return absl::UnimplementedError(
        absl::StrFormat("%s: %s has element type %d (%s), which Sluice does not read; use a file "
                        "of F32, F16, BF16, "
                        "Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K",
                        path, what, type_id, ForeignTypeName(type_id)));
  }
  tensor.type = *type;
  SLUICE_RETURN_IF_ERROR(in.Get(tensor.offset, what));
  const std::optional<uint64_t> bytes = SourceTensorBytes(tensor.type, tensor.shape);
  if (!bytes) {
    return in.Bad(absl::StrFormat(
        "%s: rows of %d elements of %s are not whole blocks of %d, or the "
        "size overflows",
        what, tensor.shape.back(), SourceTypeName(tensor.type), BlockElements(tensor.type)));
  }
  tensor.n_bytes = *bytes;
  return tensor;
}

absl::StatusOr<uint64_t> Alignment(const InputFile& file, const GgufHeader& header) {
  const auto it = header.metadata.find(kAlignmentKey);
  if (it == header.metadata.end()) return kDefaultAlignment;
  const auto* value = std::get_if<uint64_t>(&it->second.storage());
  if (value == nullptr) {
    return absl::DataLossError(
        absl::StrFormat("%s: \"general.alignment\" is not an unsigned integer", file.path()));
  }
  if (*value < kMinAlignment || *value > kMaxAlignment || !std::has_single_bit(*value)) {
    return absl::DataLossError(
        absl::StrFormat("%s: \"general.alignment\" is %d; it must be a power of two in %d..%d",
                        file.path(), *value, kMinAlignment, kMaxAlignment));
  }
  return *value;
}

// Turns offsets into offsets in the file and checks every range.
absl::Status PlaceTensors(const InputFile& file, uint64_t header_end, uint64_t alignment,
                          std::vector<GgufTensor>& tensors) {
  if (tensors.empty()) return absl::OkStatus();
  const uint64_t data_start = (header_end + alignment - 1) & ~(alignment - 1);
  const uint64_t data_bytes = data_start <= file.size() ? file.size() - data_start : 0;
  for (GgufTensor& t : tensors) {
    if (t.offset % alignment != 0) {
      return absl::DataLossError(
          absl::StrFormat("%s: tensor \"%s\" has offset %d, not a multiple of the alignment %d",
                          file.path(), t.name, t.offset, alignment));
    }
    if (t.n_bytes > data_bytes || t.offset > data_bytes - t.n_bytes) {
      return absl::DataLossError(
          absl::StrFormat("%s: tensor \"%s\" needs %d bytes at offset %d of %d bytes of data; the "
                          "file (%d bytes) is "
                          "truncated or damaged: copy or download it again",
                          file.path(), t.name, t.n_bytes, t.offset, data_bytes, file.size()));
    }
    t.offset += data_start;
  }
  std::vector<const GgufTensor*> by_offset;
  for (const GgufTensor& t : tensors) by_offset.push_back(&t);
  std::sort(by_offset.begin(), by_offset.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->offset < b->offset; });
  for (size_t i = 0; i + 1 < by_offset.size(); ++i) {
    const GgufTensor& a = *by_offset[i];
    const GgufTensor& b = *by_offset[i + 1];
    if (a.offset + a.n_bytes > b.offset) {
      return absl::DataLossError(
          absl::StrFormat("%s: tensors \"%s\" and \"%s\" overlap", file.path(), a.name, b.name));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMagicAndVersion(const InputFile& file, Cursor& in, bool& is_powerinfer) {
  char magic[4] = {};
  if (file.size() >= sizeof(magic)) SLUICE_RETURN_IF_ERROR(in.Read(magic, sizeof(magic), "magic"));
  is_powerinfer = std::string_view(magic, 4) == "PWRI";
  if (!is_powerinfer && std::string_view(magic, 4) != "GGUF") return file.NotA("a GGUF file");
  uint32_t version = 0;
  SLUICE_RETURN_IF_ERROR(in.Get(version, "the version"));
  if (version == 2 || version == 3) return absl::OkStatus();
  if (version == 1) {
    return absl::UnimplementedError(
        absl::StrCat(file.path(),
                     ": is GGUF version 1, and Sluice reads versions 2 and 3; convert "
                     "the original model again with current tools"));
  }
  if (version != 0 && (version & 0xffff) == 0) {
    return absl::UnimplementedError(
        absl::StrCat(file.path(), ": is a big-endian GGUF file; Sluice reads little-endian ones"));
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s: has GGUF version %d, and Sluice reads versions 2 and 3", file.path(), version));
}

absl::Status CheckTableSize(const Cursor& in, std::string_view what, uint64_t count, uint64_t cap,
                            uint64_t min_bytes) {
  const uint64_t most = std::min(cap, in.remaining() / min_bytes);
  if (count <= most) return absl::OkStatus();
  return in.Bad(absl::StrFormat("%s is %d; at most %d are possible here", what, count, most));
}

}  // namespace

absl::StatusOr<GgufHeader> ParseGgufHeader(const InputFile& file, GgufPart part) {
  Cursor in(file);
  GgufHeader header;
  SLUICE_RETURN_IF_ERROR(CheckMagicAndVersion(file, in, header.is_powerinfer));
  uint64_t n_tensors = 0;
  uint64_t n_entries = 0;
  SLUICE_RETURN_IF_ERROR(in.Get(n_tensors, "the tensor count"));
  SLUICE_RETURN_IF_ERROR(in.Get(n_entries, "the metadata count"));
  // An entry takes 14 bytes at least (key of one byte, one byte of value), a tensor 33.
  SLUICE_RETURN_IF_ERROR(CheckTableSize(in, "the metadata count", n_entries, kMaxEntries, 14));
  SLUICE_RETURN_IF_ERROR(CheckTableSize(in, "the tensor count", n_tensors, kMaxGgufTensors, 33));

  MetadataParser metadata(in, part);
  for (uint64_t i = 0; i < n_entries; ++i) {
    SLUICE_RETURN_IF_ERROR(metadata.ParseEntry(i, header.metadata));
  }
  SLUICE_ASSIGN_OR_RETURN(const uint64_t alignment, Alignment(file, header));
  SLUICE_RETURN_IF_ERROR(CheckTableSize(in, "the tensor count", n_tensors, kMaxGgufTensors, 33));
  header.tensors.reserve(n_tensors);  // never reallocates, so `names` may borrow
  absl::flat_hash_set<absl::string_view> names;
  for (uint64_t i = 0; i < n_tensors; ++i) {
    SLUICE_ASSIGN_OR_RETURN(GgufTensor tensor, ParseTensor(in, i, file.path()));
    header.tensors.push_back(std::move(tensor));
    const std::string& name = header.tensors.back().name;
    if (!names.insert(name).second) {
      return in.Bad(absl::StrFormat("tensor \"%s\" is listed twice", name));
    }
  }
  SLUICE_RETURN_IF_ERROR(PlaceTensors(file, in.offset(), alignment, header.tensors));
  return header;
}

}  // namespace sluice
