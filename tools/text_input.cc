#include "tools/text_input.h"

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/input_file.h"
#include "runtime/tokenizer/unicode.h"

namespace sluice {

absl::StatusOr<std::string> ReadText(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(std::string text, ReadTextFile(path, kMaxTextBytes));
  SLUICE_RETURN_IF_ERROR(CheckUtf8(text, path));
  return text;
}

absl::Status CheckUtf8(std::string_view text, const std::string& source) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = DecodeUtf8(text.substr(at));
    if (c.status != Utf8Status::kValid) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: is not UTF-8 at byte %u (0x%02x)%s; convert it first, for example with iconv",
          source, at, static_cast<unsigned char>(text[at]),
          c.status == Utf8Status::kTruncated ? ", where it ends within a character" : ""));
    }
    at += c.length;
  }
  return absl::OkStatus();
}

}  // namespace sluice
