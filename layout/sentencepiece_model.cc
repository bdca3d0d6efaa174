// Reader of tokenizer.model: the protocol buffer `ModelProto` that SentencePiece writes. Only the
// few fields that encoding needs are looked at; the wire format is walked by hand, inside bounds.

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/byte_io.h"
#include "layout/tokenizer_parts.h"

namespace sluice {
namespace {

struct WireField {
  uint64_t number = 0;
  uint64_t varint = 0;     // wire type 0
  std::string_view bytes;  // wire types 1, 2 and 5
};

// Walks the fields of one message. Next is false at the end and at the first malformed byte; ok()
// tells which.
class WireReader {
 public:
  explicit WireReader(std::string_view message) : rest_(message) {}

  bool Next(WireField& field) {
    if (rest_.empty() || !ok_) return false;
    uint64_t key = 0;
    ok_ = ReadVarint(key);
    if (!ok_) return false;
    field = {key >> 3, 0, {}};
    switch (key & 7) {
      case 0:
        ok_ = ReadVarint(field.varint);
        break;
      case 1:
        ok_ = ReadBytes(8, field.bytes);
        break;
      case 2: {
        uint64_t length = 0;
        ok_ = ReadVarint(length) && ReadBytes(length, field.bytes);
        break;
      }
      case 5:
        ok_ = ReadBytes(4, field.bytes);
        break;
      default:  // groups, which are obsolete and never written here
        ok_ = false;
    }
    ok_ = ok_ && field.number != 0;
    return ok_;
  }

  bool ok() const { return ok_; }

 private:
  bool ReadVarint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return false;
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool ReadBytes(uint64_t n, std::string_view& bytes) {
    if (n > rest_.size()) return false;
    bytes = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return true;
  }

  std::string_view rest_;
  bool ok_ = true;
};

// The fields' numbers, from SentencePiece's published sentencepiece_model.proto.
enum ModelField { kPieces = 1, kTrainerSpec = 2, kNormalizerSpec = 3 };
enum PieceField { kPiece = 1, kScore = 2, kType = 3 };
enum TrainerField { kModelType = 3, kUnkId = 40, kBosId = 41, kEosId = 42 };
enum NormalizerField { kName = 1, kAddDummyPrefix = 3, kRemoveExtraWhitespaces = 4 };
constexpr uint64_t kBpeModel = 2;

struct TrainerSpec {
  uint64_t model_type = 1;  // unigram
  int32_t unk = 0;
  int32_t bos = 1;
  int32_t eos = 2;
};

absl::Status Malformed(const std::string& path, std::string_view where) {
  return absl::DataLossError(absl::StrFormat(
      "%s: %s is malformed or cut short; is it a SentencePiece model?", path, where));
}

// Ids are int32 in the file, negative for none; anything that no vocabulary can have becomes an id
// that validation refuses.
int32_t ToId(uint64_t varint) {
  const auto id = static_cast<int64_t>(varint);
  if (id < 0) return kNoToken;
  return id < static_cast<int64_t>(kMaxTokens) ? static_cast<int32_t>(id)
                                               : static_cast<int32_t>(kMaxTokens);
}

absl::Status ReadPiece(std::string_view message, const std::string& path, TokenizerData& data) {
  const size_t id = data.tokens.size();
  std::string_view text;
  float score = 0.0f;
  uint64_t type = static_cast<uint64_t>(TokenType::kNormal);
  WireReader reader(message);
  for (WireField field; reader.Next(field);) {
    if (field.number == kPiece) text = field.bytes;
    if (field.number == kScore && field.bytes.size() == sizeof(float)) {
      score = LoadLe<float>(field.bytes.data());
    }
    if (field.number == kType) type = field.varint;
  }
  if (!reader.ok()) return Malformed(path, absl::StrFormat("piece %d", id));
  // The values are those of GGUF, which took them from here.
  if (type < 1 || type > 6) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: piece %d has unknown type %d", path, id, type));
  }
  data.tokens.emplace_back(text);
  data.scores.push_back(score);
  data.types.push_back(static_cast<TokenType>(type));
  return absl::OkStatus();
}

absl::Status ReadTrainer(std::string_view message, const std::string& path, TrainerSpec& trainer) {
  WireReader reader(message);
  for (WireField field; reader.Next(field);) {
    if (field.number == kModelType) trainer.model_type = field.varint;
    if (field.number == kUnkId) trainer.unk = ToId(field.varint);
    if (field.number == kBosId) trainer.bos = ToId(field.varint);
    if (field.number == kEosId) trainer.eos = ToId(field.varint);
  }
  return reader.ok() ? absl::OkStatus() : Malformed(path, "the trainer spec");
}

absl::Status ReadNormalizer(std::string_view message, const std::string& path,
                            ImportedTokenizer& imported) {
  std::string_view name;
  bool removes_spaces = true;
  WireReader reader(message);
  for (WireField field; reader.Next(field);) {
    if (field.number == kName) name = field.bytes;
    if (field.number == kAddDummyPrefix) {
      imported.data.space_prefix = field.varint != 0 ? SpacePrefix::kEachPart : SpacePrefix::kNone;
    }
    if (field.number == kRemoveExtraWhitespaces) removes_spaces = field.varint != 0;
  }
  if (!reader.ok()) return Malformed(path, "the normalizer spec");
  if (!name.empty() && name != "identity") {
    imported.warnings.push_back(absl::StrFormat(
        "%s asks for the normalisation \"%s\", which is not applied; text that it would change may "
        "give other tokens",
        path, name.substr(0, 64)));
  }
  if (removes_spaces) {
    imported.warnings.push_back(absl::StrFormat(
        "%s asks for runs of spaces to be shortened to one, which is not done", path));
  }
  return absl::OkStatus();
}

// Before any piece is kept: lists that grow take several times their size.
absl::Status MakeRoomForPieces(std::string_view bytes, const std::string& path,
                               TokenizerData& data) {
  size_t n = 0;
  WireReader reader(bytes);
  for (WireField field; reader.Next(field);) n += field.number == kPieces;
  if (n > kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: has more than %d pieces", path, kMaxTokens));
  }
  data.tokens.reserve(n);
  data.scores.reserve(n);
  data.types.reserve(n);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<VocabularyFile> ReadSentencePieceModel(std::string_view bytes,
                                                      const std::string& path) {
  VocabularyFile file;
  TokenizerData& data = file.imported.data;
  data.kind = TokenizerKind::kSentencePiece;
  data.space_prefix = SpacePrefix::kEachPart;
  SLUICE_RETURN_IF_ERROR(MakeRoomForPieces(bytes, path, data));
  TrainerSpec trainer;
  WireReader reader(bytes);
  for (WireField field; reader.Next(field);) {
    if (field.number == kPieces) {
      SLUICE_RETURN_IF_ERROR(ReadPiece(field.bytes, path, data));
    } else if (field.number == kTrainerSpec) {
      SLUICE_RETURN_IF_ERROR(ReadTrainer(field.bytes, path, trainer));
    } else if (field.number == kNormalizerSpec) {
      SLUICE_RETURN_IF_ERROR(ReadNormalizer(field.bytes, path, file.imported));
    }
  }
  if (!reader.ok() || data.tokens.empty()) return Malformed(path, "the file");
  if (trainer.model_type != kBpeModel) {
    return absl::UnimplementedError(
        absl::StrFormat("%s: is a SentencePiece model of type %d; only BPE (type %d) is supported",
                        path, trainer.model_type, kBpeModel));
  }
  data.unk = trainer.unk;
  data.bos = trainer.bos;
  data.eos = trainer.eos;
  return file;
}

}  // namespace sluice
