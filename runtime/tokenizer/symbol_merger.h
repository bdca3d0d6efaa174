// The merging that SentencePiece's BPE and byte-level BPE share: the neighbouring pair of lowest
// rank is joined (of equal ranks the leftmost), over and over until no pair can be. A heap of
// candidate pairs makes it O(n log n) for n symbols (Sennrich et al. 2016 for the method; Kudo and
// Richardson 2018 for the heap).
#ifndef SLUICE_RUNTIME_TOKENIZER_SYMBOL_MERGER_H_
#define SLUICE_RUNTIME_TOKENIZER_SYMBOL_MERGER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "layout/tokenizer_data.h"

namespace sluice {

// A piece of the text; `id` is its token, or kNoToken where none is known.
struct Symbol {
  uint32_t begin, length;  // in bytes
  int32_t id;
};

// What a pair of neighbours becomes.
struct MergeCandidate {
  int32_t rank;  // lower merges first; -1: the pair does not merge
  int32_t id;
};

// Thread-compatible. Keeps its memory from one text to the next.
class SymbolMerger {
 public:
  // Symbols are added from left to right and touch each other. At most 2^31 - 1 bytes in all.
  void Clear() { nodes_.clear(); }
  void Add(uint32_t length, int32_t id) {
    const uint32_t begin = nodes_.empty() ? 0 : nodes_.back().begin + nodes_.back().length;
    const auto index = static_cast<int32_t>(nodes_.size());
    nodes_.push_back({{begin, length, id}, index - 1, index + 1});
  }

  // `find(left, right)` gives the MergeCandidate of two neighbours; it must depend on nothing else.
  template <typename Find>
  void Merge(Find find) {
    if (nodes_.empty()) return;
    nodes_.back().next = kEnd;
    heap_.clear();
    for (size_t i = 0; i + 1 < nodes_.size(); ++i) PushPair(static_cast<int32_t>(i), find);
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    while (!heap_.empty()) {
      const Candidate best = heap_.front();
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      heap_.pop_back();
      if (IsStale(best)) continue;
      Join(best);
      const int32_t left = best.left();
      if (PushPair(left, find)) std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
      if (PushPair(nodes_[left].prev, find)) {
        std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
      }
    }
  }

  // Calls `visit` with what is left, in order.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const Node& node : nodes_) {
      if (node.length > 0) visit(static_cast<const Symbol&>(node));
    }
  }

 private:
  static constexpr int32_t kEnd = -1;

  struct Node : Symbol {  // length 0: joined to an earlier one
    int32_t prev, next;
  };

  struct Candidate {
    uint64_t key;  // rank, then the index of the left symbol: orders by rank, then position
    uint32_t length;
    int32_t id;
    int32_t left() const { return static_cast<int32_t>(key & 0xFFFFFFFF); }
    bool operator>(const Candidate& other) const { return key > other.key; }
  };

  // Appends the pair that begins at `left` to the heap's array, if it can merge.
  template <typename Find>
  bool PushPair(int32_t left, Find& find) {
    if (left == kEnd || nodes_[left].next == kEnd) return false;
    const Node& a = nodes_[left];
    const Node& b = nodes_[a.next];
    const MergeCandidate found = find(static_cast<const Symbol&>(a), static_cast<const Symbol&>(b));
    if (found.rank < 0) return false;
    const uint64_t key = static_cast<uint64_t>(found.rank) << 32 | static_cast<uint32_t>(left);
    heap_.push_back({key, a.length + b.length, found.id});
    return true;
  }

  // Symbols only grow, so a pair is what it was when pushed if both together are as long.
  bool IsStale(const Candidate& c) const {
    const Node& a = nodes_[c.left()];
    return a.length == 0 || a.next == kEnd || a.length + nodes_[a.next].length != c.length;
  }

  void Join(const Candidate& c) {
    Node& a = nodes_[c.left()];
    Node& b = nodes_[a.next];
    a.length = c.length;
    a.id = c.id;
    a.next = b.next;
    if (a.next != kEnd) nodes_[a.next].prev = c.left();
    b.length = 0;
  }

  std::vector<Node> nodes_;
  std::vector<Candidate> heap_;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_TOKENIZER_SYMBOL_MERGER_H_
