// Text from a file as it may be shown: a name that holds control bytes could otherwise move the
// cursor, change colours or hide what follows on a terminal.
#ifndef SLUICE_LAYOUT_PRINTABLE_H_
#define SLUICE_LAYOUT_PRINTABLE_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace sluice {

// Valid UTF-8 with control characters (C0, DEL, C1) and bytes that are not UTF-8 written \xHH, cut
// before the first character that ends beyond `max_bytes`.
std::string Printable(std::string_view text, size_t max_bytes = std::string_view::npos);

// The same status with its message made printable, and cut where a name in it was absurdly long.
absl::Status Printable(const absl::Status& status);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_PRINTABLE_H_
