#include "runtime/tokenizer/text_stream.h"

#include <cstring>
#include <string_view>

#include "runtime/tokenizer/unicode.h"

namespace sluice {

void TextStream::Append(int32_t id, std::string& out) {
  std::string_view piece = tokenizer_.TokenPiece(id);
  if (piece.empty()) return;
  if (at_start_ && tokenizer_.HasSpacePrefix(id)) piece.remove_prefix(1);
  at_start_ = false;
  for (const char byte : piece) AppendByte(byte, out);
}

void TextStream::AppendByte(char byte, std::string& out) {
  held_[n_held_++] = byte;
  // At most twice: a byte that cannot continue what is held may begin a character of its own.
  while (n_held_ > 0) {
    const Utf8Char c = DecodeUtf8({held_, n_held_});
    if (c.status == Utf8Status::kTruncated) return;
    out.append(c.status == Utf8Status::kValid ? std::string_view(held_, c.length)
                                              : kReplacementUtf8);
    n_held_ = static_cast<uint8_t>(n_held_ - c.length);
    std::memmove(held_, held_ + c.length, n_held_);
  }
}

void TextStream::Flush(std::string& out) {
  if (n_held_ > 0) out.append(kReplacementUtf8);
  n_held_ = 0;
}

}  // namespace sluice
