// From the least to the most of some values, for people.
#ifndef SLUICE_TOOLS_RANGE_TEXT_H_
#define SLUICE_TOOLS_RANGE_TEXT_H_

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace sluice {

// "8" or "8..16"; of at least one value.
template <typename Values>
std::string RangeText(const Values& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return *least == *most ? absl::StrCat(*least) : absl::StrCat(*least, "..", *most);
}

}  // namespace sluice

#endif  // SLUICE_TOOLS_RANGE_TEXT_H_
