#include "runtime/tokenizer/text_encoder.h"

namespace sluice {

std::string TokenBytes(TokenizerKind kind, TokenType type, const std::string& token) {
  const bool sentence_piece = kind == TokenizerKind::kSentencePiece;
  switch (type) {
    case TokenType::kByte:
      return std::string(1, static_cast<char>(ParseByteToken(token)));
    case TokenType::kNormal:
    case TokenType::kUnused:
      return sentence_piece ? ReplaceSpaceMarks(token) : DecodeByteAlphabet(token);
    case TokenType::kUserDefined:
      return sentence_piece ? ReplaceSpaceMarks(token) : token;
    case TokenType::kControl:
    case TokenType::kUnknown:
      return token;
  }
  return token;
}

}  // namespace sluice
