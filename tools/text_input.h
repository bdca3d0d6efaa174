// Texts that a model is run over: those of `sluice perplexity` and `sluice profile`.
#ifndef SLUICE_TOOLS_TEXT_INPUT_H_
#define SLUICE_TOOLS_TEXT_INPUT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice {

// A larger text would keep a model busy for days, and its tokens would take gigabytes.
constexpr uint64_t kMaxTextBytes = 64 << 20;

// Reads a whole text. InvalidArgument if it is not a regular file, larger than kMaxTextBytes or not
// UTF-8, DataLoss if it is empty or shrinks meanwhile; all name the file.
absl::StatusOr<std::string> ReadText(const std::string& path);

// InvalidArgument that says at which byte of `text`, which came from `source`, the first bytes are
// that are no UTF-8, and which they are.
absl::Status CheckUtf8(std::string_view text, const std::string& source);

}  // namespace sluice

#endif  // SLUICE_TOOLS_TEXT_INPUT_H_
