// Turns a stream of token ids into text of whole, valid UTF-8 characters, as it can be printed.
#ifndef SLUICE_RUNTIME_TOKENIZER_TEXT_STREAM_H_
#define SLUICE_RUNTIME_TOKENIZER_TEXT_STREAM_H_

#include <cstdint>
#include <string>

#include "runtime/tokenizer/tokenizer.h"

namespace sluice {

// A character may span tokens: its bytes are held back until it is whole. Bytes that cannot become
// a character come out as U+FFFD, one for each longest prefix of a valid character (the Unicode
// standard's recommended practice).
//
// Thread-compatible. Borrows the tokenizer for life. Append allocates only to grow `out`.
class TextStream {
 public:
  // `begins_text`: the first token begins a text, so that the space that SentencePiece put in front
  // of it is dropped. False where the ids continue a prompt that was printed already.
  TextStream(const Tokenizer& tokenizer, bool begins_text)
      : tokenizer_(tokenizer), at_start_(begins_text) {}

  // Appends to `out` the text that has become complete with token `id`.
  void Append(int32_t id, std::string& out);

  // The end: what is still held back can no longer become a character.
  void Flush(std::string& out);

 private:
  void AppendByte(char byte, std::string& out);

  const Tokenizer& tokenizer_;
  char held_[4] = {};  // the beginning of a character
  uint8_t n_held_ = 0;
  bool at_start_;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_TOKENIZER_TEXT_STREAM_H_
