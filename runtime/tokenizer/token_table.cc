#include "runtime/tokenizer/token_table.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/hash/hash.h"
#include "io/status.h"

namespace sluice {
namespace {

uint64_t HashOf(std::string_view bytes) { return absl::Hash<absl::string_view>()(ToAbsl(bytes)); }
uint64_t HashOf(int32_t left, int32_t right) {
  return absl::Hash<std::pair<int32_t, int32_t>>()({left, right});
}

}  // namespace

void IndexSet::Reset(size_t n) {
  slots_.assign(std::bit_ceil(n + n / 3 + 2), -1);
  mask_ = slots_.size() - 1;
}

void IndexSet::Insert(uint64_t hash, int32_t index) {
  size_t i = hash & mask_;
  while (slots_[i] >= 0) i = (i + 1) & mask_;
  slots_[i] = index;
}

void TokenTable::Reserve(size_t n_tokens, size_t n_bytes) {
  offsets_.reserve(n_tokens + 1);
  bytes_.reserve(n_bytes);
}

void TokenTable::Add(std::string_view bytes) {
  bytes_.append(bytes);
  offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
}

void TokenTable::BuildIndex(const std::vector<bool>& searchable) {
  index_.Reset(std::count(searchable.begin(), searchable.end(), true));
  longest_ = 0;
  for (size_t id = 0; id < size(); ++id) {
    const std::string_view bytes = (*this)[id];
    if (!searchable[id] || bytes.empty() || Find(bytes) >= 0) continue;
    longest_ = std::max(longest_, bytes.size());
    index_.Insert(HashOf(bytes), static_cast<int32_t>(id));
  }
}

int32_t TokenTable::Find(std::string_view bytes) const {
  if (bytes.size() > longest_) return -1;
  return index_.Find(HashOf(bytes), [&](int32_t id) { return (*this)[id] == bytes; });
}

size_t TokenTable::memory_bytes() const {
  return bytes_.capacity() + offsets_.capacity() * sizeof(uint32_t) + index_.memory_bytes();
}

MergeTable::MergeTable(std::vector<MergeIds> merges) : merges_(std::move(merges)) {
  index_.Reset(merges_.size());
  for (size_t rank = 0; rank < merges_.size(); ++rank) {
    const MergeIds& m = merges_[rank];
    if (FindRank(m.left, m.right) >= 0) continue;
    index_.Insert(HashOf(m.left, m.right), static_cast<int32_t>(rank));
  }
}

int32_t MergeTable::FindRank(int32_t left, int32_t right) const {
  return index_.Find(HashOf(left, right), [&](int32_t rank) {
    return merges_[rank].left == left && merges_[rank].right == right;
  });
}

size_t MergeTable::memory_bytes() const {
  return merges_.capacity() * sizeof(MergeIds) + index_.memory_bytes();
}

}  // namespace sluice
