// How files name the pre-tokenizers: GGUF by a word, tokenizer.json by regular expressions.
#ifndef SLUICE_LAYOUT_PRE_TOKENIZER_NAMES_H_
#define SLUICE_LAYOUT_PRE_TOKENIZER_NAMES_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "layout/tokenizer_data.h"

namespace sluice {

struct NamedPreTokenizer {
  PreTokenizer pre = PreTokenizer::kDefault;
  // What llama.cpp takes as given for a GGUF file of this pre-tokenizer.
  bool ignore_merges = false;
  bool add_bos = false;
};

// `name` is a value of tokenizer.ggml.pre. Nothing for one that is not known.
std::optional<NamedPreTokenizer> PreTokenizerByGgufName(std::string_view name);

// `steps` are the steps of a tokenizer.json's pre_tokenizer in order: the expression of a Split,
// and "Digits", "Digits individual", "Punctuation", "ByteLevel regex" for the others; a ByteLevel
// that splits nothing is left out. Nothing if together they are none of the known pre-tokenizers.
std::optional<PreTokenizer> PreTokenizerBySteps(const std::vector<std::string>& steps);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_PRE_TOKENIZER_NAMES_H_
