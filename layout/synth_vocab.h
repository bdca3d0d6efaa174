// The vocabulary of generated models: control and byte tokens, then printable pieces made of
// letters and syllables, with scores that let SentencePiece's merges reach every piece.
#ifndef SLUICE_LAYOUT_SYNTH_VOCAB_H_
#define SLUICE_LAYOUT_SYNTH_VOCAB_H_

#include <cstdint>

#include "layout/tokenizer_data.h"

namespace sluice {

constexpr uint32_t kSynthUnknownToken = 0;
constexpr uint32_t kSynthBosToken = 1;
constexpr uint32_t kSynthEosToken = 2;
constexpr uint32_t kFirstSynthByteToken = 3;
constexpr uint32_t kFirstSynthOrdinaryToken = kFirstSynthByteToken + 256;
// The single characters must all be there.
constexpr uint32_t kMinSynthVocabulary = 512;
constexpr uint32_t kMaxSynthVocabulary = 65536;

// `size` must be within the two bounds.
TokenizerData MakeSynthVocabulary(uint32_t size);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_SYNTH_VOCAB_H_
