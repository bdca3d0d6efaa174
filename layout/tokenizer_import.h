// Importers of vocabularies: GGUF metadata, and the tokenizer files of a Hugging Face folder
// (tokenizer.json, else tokenizer.model).
//
// Every input is untrusted: sizes are bounded, every field is type-checked, and the result has
// passed ValidateTokenizer. Errors name the file and the field. The functions are thread-safe.
#ifndef SLUICE_LAYOUT_TOKENIZER_IMPORT_H_
#define SLUICE_LAYOUT_TOKENIZER_IMPORT_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/gguf.h"
#include "layout/tokenizer_data.h"

namespace sluice {

struct ImportedTokenizer {
  TokenizerData data;
  // Things that the user should know, each a sentence: an unknown pre-tokenizer that was taken for
  // the default one, a normalisation that is not applied, ...
  std::vector<std::string> warnings;
};

// Reads the tokenizer.ggml.* keys. Models "llama" (SentencePiece) and "gpt2" (byte-level BPE) are
// known; others are refused by name. Missing flags and ids get the defaults that files written for
// llama.cpp rely on: with "llama" BOS 1, EOS 2, unknown 0, BOS and the space prefix added; with
// "gpt2" none of them, except that Llama 3's pre-tokenizer adds BOS, and that architecture "opt"
// has GPT-2's pre-tokenizer, BOS 2 and EOS 2, and BOS added. The arrays are moved out of the file's
// metadata, so that the vocabulary is held once.
absl::StatusOr<ImportedTokenizer> ImportGgufTokenizer(GgufFile& file);

// Reads tokenizer.json or, if there is none, tokenizer.model, together with those of
// tokenizer_config.json, special_tokens_map.json, generation_config.json, config.json and
// added_tokens.json that are there. NotFound if the folder has no tokenizer.
absl::StatusOr<ImportedTokenizer> ImportHuggingFaceTokenizer(const std::string& folder);

// The files of such a folder, in memory; an empty view is an absent file. Borrowed for the call.
struct HuggingFaceTokenizerFiles {
  std::string_view tokenizer_json = {};
  std::string_view tokenizer_model = {};
  std::string_view tokenizer_config = {};
  std::string_view special_tokens_map = {};
  std::string_view generation_config = {};
  std::string_view model_config = {};  // config.json: its special ids are a last resort
  std::string_view added_tokens = {};
};
// `folder` is for messages.
absl::StatusOr<ImportedTokenizer> ImportHuggingFaceTokenizer(const HuggingFaceTokenizerFiles& files,
                                                             const std::string& folder);

// Appends unused tokens "[PADn]" until there are `vocab_size`: models round the rows of their
// embedding up. InvalidArgument if there are more tokens than rows.
absl::Status PadVocabulary(TokenizerData& data, size_t vocab_size);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_TOKENIZER_IMPORT_H_
