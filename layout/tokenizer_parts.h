// The parts that the tokenizer importers are made of; tokenizer_import.h is their interface.
#ifndef SLUICE_LAYOUT_TOKENIZER_PARTS_H_
#define SLUICE_LAYOUT_TOKENIZER_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "layout/tokenizer_data.h"
#include "layout/tokenizer_import.h"

namespace sluice {

// The lowest id with this text; kNoToken if there is none or the text is empty.
int32_t FindToken(const TokenizerData& data, std::string_view text);

// The last step of an import: adds to `end_ids` the tokens that are known by their text to end
// generation, whatever their type (most files name no more than EOS), validates, and takes out
// merges that are not between tokens, which llama.cpp ignores. Warns of the latter, and if nothing
// ends generation. `where` is the file or folder, for messages.
absl::Status FinishTokenizer(const std::string& where, ImportedTokenizer& imported);

// What is said of merges that were taken out.
std::string DroppedMerges(const std::string& where, size_t dropped, size_t all);

struct PlacedToken {
  int32_t id;
  std::string text;
  TokenType type;
};

// Puts the tokens at their ids, the later of two with one id winning, and makes the vocabulary as
// large as needed; ids that nothing has become unused tokens "[PADn]". InvalidArgument if so many
// would be needed that the ids cannot be meant.
absl::Status PlaceTokens(std::vector<PlacedToken> placed, TokenizerData& data);

// What the small files beside the vocabulary say.
struct TokenizerSettings {
  std::string bos, eos, unk;  // texts; empty if not said
  std::optional<bool> add_bos, add_eos;
  std::optional<int32_t> bos_id;
  std::vector<int32_t> eos_ids;
  // What config.json says; it counts where nothing else names the token.
  std::optional<int32_t> model_bos_id;
  std::vector<int32_t> model_eos_ids;
  std::vector<PlacedToken> added;
};
absl::StatusOr<TokenizerSettings> ReadTokenizerSettings(const HuggingFaceTokenizerFiles& files,
                                                        const std::string& folder);

// A vocabulary file by itself. The fields that stay unset are for the settings and defaults.
struct VocabularyFile {
  ImportedTokenizer imported;
  std::optional<bool> add_bos, add_eos;  // said by the file
  std::string bos, eos;                  // texts that the file adds around the text
};
absl::StatusOr<VocabularyFile> ReadTokenizerJson(std::string_view text, const std::string& path);
absl::StatusOr<VocabularyFile> ReadSentencePieceModel(std::string_view bytes,
                                                      const std::string& path);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_TOKENIZER_PARTS_H_
