// Splits text into the words inside which byte-level BPE may merge. Each model family publishes a
// list of regular expressions; the splitters here are hand-written equivalents that run in linear
// time. The expressions stand beside their splitters in pre_tokenizer.cc.
#ifndef SLUICE_RUNTIME_TOKENIZER_PRE_TOKENIZER_H_
#define SLUICE_RUNTIME_TOKENIZER_PRE_TOKENIZER_H_

#include <string_view>

#include "absl/functional/function_ref.h"
#include "layout/tokenizer_data.h"

namespace sluice {

// Calls `sink` with the words of `text` in order; together they are the whole text and none is
// empty. What is not UTF-8 counts as a symbol. Thread-safe.
void SplitWords(PreTokenizer pre, std::string_view text,
                absl::FunctionRef<void(std::string_view)> sink);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_TOKENIZER_PRE_TOKENIZER_H_
