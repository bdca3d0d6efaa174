// Error handling shared by every folder: absl::Status with context, two early-return macros and
// the adapters between std::string_view and Debian's Abseil, whose string_view is its own type.
#ifndef SLUICE_IO_STATUS_H_
#define SLUICE_IO_STATUS_H_

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

inline absl::string_view ToAbsl(std::string_view s) { return {s.data(), s.size()}; }
inline std::string_view ToStd(absl::string_view s) { return {s.data(), s.size()}; }

// A status for errno value `err`: "<context>: <strerror>". ENOENT, EACCES, ENOSPC and the like map
// to their canonical codes, EIO to Unavailable.
absl::Status ErrnoStatus(int err, std::string_view context);

// The same status with "<context>: " in front of its message; OK stays OK.
absl::Status Annotate(const absl::Status& status, std::string_view context);

}  // namespace sluice

#define SLUICE_CONCAT_INNER_(a, b) a##b
#define SLUICE_CONCAT_(a, b) SLUICE_CONCAT_INNER_(a, b)

#define SLUICE_RETURN_IF_ERROR(expr)                 \
  do {                                               \
    absl::Status sluice_status_ = (expr);            \
    if (!sluice_status_.ok()) return sluice_status_; \
  } while (false)

#define SLUICE_ASSIGN_OR_RETURN(lhs, rexpr) \
  SLUICE_ASSIGN_OR_RETURN_IMPL_(SLUICE_CONCAT_(sluice_statusor_, __LINE__), lhs, rexpr)

#define SLUICE_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, rexpr) \
  auto statusor = (rexpr);                                  \
  if (!statusor.ok()) return std::move(statusor).status();  \
  lhs = std::move(statusor).value()

#endif  // SLUICE_IO_STATUS_H_
