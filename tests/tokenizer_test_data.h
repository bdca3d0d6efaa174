// Small vocabularies that tests and fuzzers share.
#ifndef SLUICE_TESTS_TOKENIZER_TEST_DATA_H_
#define SLUICE_TESTS_TOKENIZER_TEST_DATA_H_

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "layout/tokenizer_data.h"

namespace sluice {

inline int32_t AddToken(TokenizerData& data, std::string text, TokenType type = TokenType::kNormal,
                        float score = 0.0f) {
  data.tokens.push_back(std::move(text));
  data.types.push_back(type);
  if (data.kind == TokenizerKind::kSentencePiece) data.scores.push_back(score);
  return static_cast<int32_t>(data.tokens.size()) - 1;
}

inline int32_t IdOf(const TokenizerData& data, std::string_view text) {
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    if (data.tokens[id] == text) return static_cast<int32_t>(id);
  }
  return kNoToken;
}

inline std::string ByteToken(int byte) {
  char text[8];
  std::snprintf(text, sizeof(text), "<0x%02X>", static_cast<unsigned>(byte));
  return text;
}

// Words around "hello", with "_" in the names below standing for U+2581.
inline TokenizerData SmallSentencePiece(bool byte_fallback = true) {
  TokenizerData data;
  data.kind = TokenizerKind::kSentencePiece;
  data.unk = AddToken(data, "<unk>", TokenType::kUnknown);
  data.bos = AddToken(data, "<s>", TokenType::kControl);
  data.eos = AddToken(data, "</s>", TokenType::kControl);
  data.add_bos = true;
  data.space_prefix = SpacePrefix::kEachPart;
  for (int b = 0; byte_fallback && b < 256; ++b) AddToken(data, ByteToken(b), TokenType::kByte);
  const std::string mark = "\xE2\x96\x81";
  // In the order of their scores.
  const std::string words[] = {"he",           "ll",        "hell",         "hello",
                               mark + "hello", mark + mark, mark + "world", "lo"};
  float score = -1.0f;
  for (const std::string& word : words) AddToken(data, word, TokenType::kNormal, score--);
  for (const std::string& letter : {mark, std::string("h"), std::string("e"), std::string("l"),
                                    std::string("o"), std::string("é")}) {
    AddToken(data, letter, TokenType::kNormal, score--);
  }
  data.end_ids = {AddToken(data, "<|end|>", TokenType::kControl)};
  AddToken(data, "[INST]", TokenType::kUserDefined);
  AddToken(data, "[INST] now", TokenType::kUserDefined);
  return data;
}

// The character that stands for a byte in byte-level vocabularies, as UTF-8.
inline std::string ByteSymbol(int byte) {
  const auto as_itself = [](int b) {
    return (b > 0x20 && b < 0x7F) || (b > 0xA0 && b != 0xAD && b < 0x100);
  };
  int code_point = byte;
  if (!as_itself(byte)) {
    code_point = 0x100;
    for (int b = 0; b < byte; ++b) code_point += !as_itself(b);
  }
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3F))};
}

// Token b is byte b; then merges around "hello".
inline TokenizerData SmallByteBpe() {
  TokenizerData data;
  data.kind = TokenizerKind::kByteBpe;
  data.pre = PreTokenizer::kGpt2;
  for (int b = 0; b < 256; ++b) AddToken(data, ByteSymbol(b));
  const std::string space = ByteSymbol(' ');
  const std::pair<std::string, std::string> merges[] = {
      {"h", "e"},       {"l", "l"},     {"he", "ll"}, {"hell", "o"},
      {space, "hello"}, {space, space}, {"l", "o"},   {ByteSymbol(0xC3), ByteSymbol(0xA9)},
  };
  for (const auto& [left, right] : merges) {
    data.merges.push_back(left + " " + right);
    AddToken(data, left + right);
  }
  data.eos = AddToken(data, "<|end|>", TokenType::kControl);
  AddToken(data, "<tool>", TokenType::kUserDefined);
  return data;
}

}  // namespace sluice

#endif  // SLUICE_TESTS_TOKENIZER_TEST_DATA_H_
