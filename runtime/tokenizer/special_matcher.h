// Finds special tokens in text, leftmost first and of those the longest.
#ifndef SLUICE_RUNTIME_TOKENIZER_SPECIAL_MATCHER_H_
#define SLUICE_RUNTIME_TOKENIZER_SPECIAL_MATCHER_H_

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/token_table.h"

namespace sluice {

// Immutable, so thread-safe. Borrows the table for life.
class SpecialMatcher {
 public:
  struct Found {
    size_t begin;  // text.size() if there is none
    size_t length;
    int32_t id;
  };

  // Searches for the tokens `ids`; of equal ones the lowest id counts, empty ones are ignored.
  SpecialMatcher(const TokenTable& table, std::vector<int32_t> ids);

  Found FindNext(std::string_view text, size_t pos) const;

  size_t memory_bytes() const { return sorted_.capacity() * sizeof(int32_t); }

 private:
  // The longest token that `text` begins with; -1 if there is none.
  int32_t LongestPrefix(std::string_view text) const;

  const TokenTable& table_;
  std::vector<int32_t> sorted_;  // by bytes, then id
  std::bitset<256> first_bytes_;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_TOKENIZER_SPECIAL_MATCHER_H_
