#include "runtime/tokenizer/special_matcher.h"

#include <algorithm>
#include <utility>

#include "layout/tokenizer_data.h"

namespace sluice {

SpecialMatcher::SpecialMatcher(const TokenTable& table, std::vector<int32_t> ids)
    : table_(table), sorted_(std::move(ids)) {
  std::erase_if(sorted_, [&](int32_t id) { return table[id].empty(); });
  std::sort(sorted_.begin(), sorted_.end(),
            [&](int32_t a, int32_t b) { return std::pair(table[a], a) < std::pair(table[b], b); });
  for (const int32_t id : sorted_) first_bytes_.set(static_cast<uint8_t>(table[id][0]));
}

SpecialMatcher::Found SpecialMatcher::FindNext(std::string_view text, size_t pos) const {
  for (; pos < text.size(); ++pos) {
    if (!first_bytes_[static_cast<uint8_t>(text[pos])]) continue;
    const int32_t id = LongestPrefix(text.substr(pos));
    if (id != kNoToken) return {pos, table_[id].size(), id};
  }
  return {text.size(), 0, kNoToken};
}

int32_t SpecialMatcher::LongestPrefix(std::string_view text) const {
  // [begin, end) are the tokens that share the first `depth` bytes with the text; the shortest of
  // them come first.
  auto begin = sorted_.begin();
  auto end = sorted_.end();
  int32_t longest = kNoToken;
  for (size_t depth = 0; begin != end; ++depth) {
    if (table_[*begin].size() == depth) {
      longest = *begin;
      begin =
          std::partition_point(begin, end, [&](int32_t id) { return table_[id].size() == depth; });
    }
    if (depth == text.size()) break;
    const auto byte_at_depth = [&](int32_t id) { return static_cast<uint8_t>(table_[id][depth]); };
    const auto wanted = static_cast<uint8_t>(text[depth]);
    begin =
        std::partition_point(begin, end, [&](int32_t id) { return byte_at_depth(id) < wanted; });
    end = std::partition_point(begin, end, [&](int32_t id) { return byte_at_depth(id) == wanted; });
  }
  return longest;
}

}  // namespace sluice
