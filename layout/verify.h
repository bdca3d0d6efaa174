// `sluice verify`: reads a whole `.sluice` file and checks every checksum in it.
#ifndef SLUICE_LAYOUT_VERIFY_H_
#define SLUICE_LAYOUT_VERIFY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice {

struct VerifyReport {
  uint64_t tiles = 0, bundles = 0;    // checked
  uint64_t damaged = 0;               // of them
  std::vector<std::string> findings;  // the first few damaged ones, each with its offset
};

// A status only for what keeps the rest from being checked: damage to header, sections or
// directory, or a read error. `progress` is called with bytes done and in all. Memory: a few MB.
absl::StatusOr<VerifyReport> Verify(const std::string& path,
                                    const std::function<void(uint64_t, uint64_t)>& progress);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_VERIFY_H_
