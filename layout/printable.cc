#include "layout/printable.h"

#include <cstdint>

#include "absl/strings/str_format.h"
#include "io/status.h"

namespace sluice {
namespace {

constexpr size_t kMaxMessageBytes = 2048;

// Bytes of the UTF-8 character that `text`, which is not empty, begins with; 0 if it is malformed.
size_t CharacterBytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t n = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (n == 0 || n > text.size()) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates and what is beyond U+10FFFF.
  const bool valid = !(lead == 0xE0 && byte(1) < 0xA0) && !(lead == 0xED && byte(1) >= 0xA0) &&
                     !(lead == 0xF0 && byte(1) < 0x90) && !(lead == 0xF4 && byte(1) >= 0x90);
  return valid ? n : 0;
}

bool IsControl(std::string_view character) {
  const auto first = static_cast<uint8_t>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7F;
  return first == 0xC2 && static_cast<uint8_t>(character[1]) < 0xA0;
}

}  // namespace

std::string Printable(std::string_view text, size_t max_bytes) {
  std::string out;
  while (!text.empty()) {
    const size_t n = CharacterBytes(text);
    std::string shown(text.substr(0, n));
    if (n == 0) {
      shown = absl::StrFormat("\\x%02x", static_cast<uint8_t>(text[0]));
    } else if (IsControl(shown)) {
      std::string escaped;
      for (const char c : shown) escaped += absl::StrFormat("\\x%02x", static_cast<uint8_t>(c));
      shown = escaped;
    }
    if (shown.size() > max_bytes - out.size()) break;
    out += shown;
    text.remove_prefix(n == 0 ? 1 : n);
  }
  return out;
}

absl::Status Printable(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), ToAbsl(Printable(ToStd(status.message()), kMaxMessageBytes)));
}

}  // namespace sluice
