// Writers of the vocabulary files that importers read, for tests.
#ifndef SLUICE_TESTS_TOKENIZER_TEST_FILES_H_
#define SLUICE_TESTS_TOKENIZER_TEST_FILES_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "layout/tokenizer_data.h"

namespace sluice {

// Protocol-buffer wire format.
inline std::string Varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}
inline std::string VarintField(int number, uint64_t value) {
  return absl::StrCat(Varint(static_cast<uint64_t>(number) << 3), Varint(value));
}
inline std::string BytesField(int number, std::string_view bytes) {
  std::string out =
      absl::StrCat(Varint(static_cast<uint64_t>(number) << 3 | 2), Varint(bytes.size()));
  return out.append(bytes);
}
inline std::string FloatField(int number, float value) {
  std::string out = Varint(static_cast<uint64_t>(number) << 3 | 5);
  char bytes[sizeof(value)];
  std::memcpy(bytes, &value, sizeof(value));
  return out.append(bytes, sizeof(bytes));
}

inline std::string Piece(std::string_view text, float score, TokenType type) {
  std::string piece = absl::StrCat(BytesField(1, text), FloatField(2, score));
  // Writers leave the default type out.
  if (type != TokenType::kNormal) piece += VarintField(3, static_cast<uint64_t>(type));
  return BytesField(1, piece);
}

// tokenizer.model of a BPE vocabulary.
inline std::string SentencePieceModel(const TokenizerData& data) {
  std::string model;
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    model += Piece(data.tokens[id], data.scores[id], data.types[id]);
  }
  const auto id_field = [](int number, int32_t id) {
    return VarintField(number, static_cast<uint64_t>(static_cast<int64_t>(id)));
  };
  model += BytesField(2, absl::StrCat(VarintField(3, 2), id_field(40, data.unk),
                                      id_field(41, data.bos), id_field(42, data.eos)));
  model += BytesField(
      3, absl::StrCat(BytesField(1, "identity"),
                      VarintField(3, data.space_prefix != SpacePrefix::kNone), VarintField(4, 0)));
  return model;
}

}  // namespace sluice

#endif  // SLUICE_TESTS_TOKENIZER_TEST_FILES_H_
