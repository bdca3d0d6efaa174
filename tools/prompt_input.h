// The prompt of `sluice generate`: from a flag, a file or standard input.
#ifndef SLUICE_TOOLS_PROMPT_INPUT_H_
#define SLUICE_TOOLS_PROMPT_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace sluice {

// What no context holds. A longer text is neither read to its end nor encoded.
struct PromptLimit {
  uint32_t context = 0;      // positions
  size_t longest_token = 0;  // bytes
};

struct PromptSource {
  std::string text;     // used if there is no file
  std::string file;     // "-": standard input
  bool escapes = true;  // \n and the like in `text` count
};

// OutOfRange if the text exceeds the limit; errors name the file.
absl::StatusOr<std::string> ReadPrompt(const PromptSource& source, const PromptLimit& limit);

}  // namespace sluice

#endif  // SLUICE_TOOLS_PROMPT_INPUT_H_
