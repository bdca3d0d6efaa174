// Compact storage of a vocabulary: the bytes of all tokens in one block, and hash tables that hold
// nothing but indices into it.
//
// Thread-compatible: fill once, then read from any thread.
#ifndef SLUICE_RUNTIME_TOKENIZER_TOKEN_TABLE_H_
#define SLUICE_RUNTIME_TOKENIZER_TOKEN_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "layout/tokenizer_data.h"

namespace sluice {

// An open-addressing hash set of indices; what an index stands for is known to the caller alone.
class IndexSet {
 public:
  // Room for `n` indices; drops what was there.
  void Reset(size_t n);

  // The first index, among those whose key has this hash, that `matches`; -1 if there is none.
  template <typename Matches>
  int32_t Find(uint64_t hash, Matches matches) const {
    if (slots_.empty()) return -1;
    for (size_t i = hash & mask_; slots_[i] >= 0; i = (i + 1) & mask_) {
      if (matches(slots_[i])) return slots_[i];
    }
    return -1;
  }
  // At most as many as Reset made room for.
  void Insert(uint64_t hash, int32_t index);

  size_t memory_bytes() const { return slots_.capacity() * sizeof(int32_t); }

 private:
  std::vector<int32_t> slots_;  // -1: empty; at most three quarters are used
  size_t mask_ = 0;
};

// The bytes that each token stands for, by id, and the ids of those that plain text can become.
class TokenTable {
 public:
  void Reserve(size_t n_tokens, size_t n_bytes);
  // Gives the next id to `bytes`. All tokens together hold less than 4 GiB.
  void Add(std::string_view bytes);
  // Makes Find know the tokens for which `searchable[id]`; of equal ones the lowest id.
  void BuildIndex(const std::vector<bool>& searchable);

  size_t size() const { return offsets_.size() - 1; }
  std::string_view operator[](size_t id) const {
    return std::string_view(bytes_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
  }
  // -1 if there is none.
  int32_t Find(std::string_view bytes) const;

  size_t memory_bytes() const;

 private:
  std::string bytes_;
  std::vector<uint32_t> offsets_ = {0};
  IndexSet index_;
  size_t longest_ = 0;  // of the searchable tokens
};

// The merges of byte-level BPE: what two neighbouring tokens become, and how early.
class MergeTable {
 public:
  // In rank order, all resolved; a pair that is there already keeps its first rank.
  explicit MergeTable(std::vector<MergeIds> merges);

  // The rank of the merge of these two tokens; -1 if there is none.
  int32_t FindRank(int32_t left, int32_t right) const;
  int32_t Result(int32_t rank) const { return merges_[rank].result; }

  size_t memory_bytes() const;

 private:
  std::vector<MergeIds> merges_;
  IndexSet index_;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_TOKENIZER_TOKEN_TABLE_H_
