#include "layout/greedy_path.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <utility>

namespace sluice {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// Chains while they grow.
class Links {
 public:
  explicit Links(uint32_t n) : neighbours_(n, {kNone, kNone}), parent_(n) {
    std::iota(parent_.begin(), parent_.end(), 0u);
  }

  bool IsOpen(uint32_t i) const { return neighbours_[i][1] == kNone; }

  void LinkIfAllowed(uint32_t a, uint32_t b) {
    if (!IsOpen(a) || !IsOpen(b)) return;
    const uint32_t chain_a = Find(a), chain_b = Find(b);
    if (chain_a == chain_b) return;
    parent_[std::max(chain_a, chain_b)] = std::min(chain_a, chain_b);
    neighbours_[a][neighbours_[a][0] != kNone] = b;
    neighbours_[b][neighbours_[b][0] != kNone] = a;
  }

  std::vector<std::vector<uint32_t>> Chains() const {
    std::vector<std::vector<uint32_t>> chains;
    std::vector<bool> done(neighbours_.size());
    for (uint32_t end = 0; end < neighbours_.size(); ++end) {
      if (done[end] || !IsOpen(end)) continue;
      std::vector<uint32_t>& chain = chains.emplace_back();
      for (uint32_t before = kNone, at = end; at != kNone;) {
        chain.push_back(at);
        done[at] = true;
        const auto [first, second] = neighbours_[at];
        before = std::exchange(at, first != before ? first : second);
      }
    }
    return chains;
  }

 private:
  uint32_t Find(uint32_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }

  std::vector<std::array<uint32_t, 2>> neighbours_;  // the first fills first
  std::vector<uint32_t> parent_;
};

// Calls visit(a, b, count) for all pairs of `open`, in rising order of a, then of b. Several rows
// of the bits stay in the nearest cache while the others pass by.
template <typename Visit>
void ForEachPair(const Coactivation& fired, std::span<const uint32_t> open, const Visit& visit) {
  constexpr size_t kRows = 8, kColumns = 32;
  std::vector<uint32_t> counts(kRows * open.size());
  for (size_t begin = 0; begin < open.size(); begin += kRows) {
    const size_t end = std::min(begin + kRows, open.size());
    for (size_t c = begin; c < open.size(); c += kColumns) {
      const auto others = open.subspan(c, std::min(kColumns, open.size() - c));
      for (size_t a = begin; a < end; ++a) {
        fired.CountTogether(open[a], others,
                            std::span(counts).subspan((a - begin) * open.size() + c));
      }
    }
    for (size_t a = begin; a < end; ++a) {
      const uint32_t* const row = counts.data() + (a - begin) * open.size();
      for (size_t b = a + 1; b < open.size(); ++b) visit(open[a], open[b], row[b]);
    }
  }
}

}  // namespace

std::vector<std::vector<uint32_t>> GreedyChains(const Coactivation& fired, size_t most_pairs) {
  const uint32_t n = fired.n_neurons();
  Links links(n);
  std::vector<uint32_t> totals(n), open;
  for (uint32_t i = 0; i < n; ++i) {
    totals[i] = fired.Count(i);
    if (totals[i] > 0) open.push_back(i);
  }
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  uint32_t done = fired.n_tokens() + 1;  // pairs of this count or more have had their turn
  while (done > 1 && open.size() > 1) {
    std::vector<size_t> n_pairs(done);  // by count
    ForEachPair(fired, open, [&](uint32_t, uint32_t, uint32_t count) {
      if (count < done) ++n_pairs[count];
    });
    uint32_t least = done - 1;  // one count at the least
    size_t total = n_pairs[least];
    while (least > 1 && total + n_pairs[least - 1] <= most_pairs) total += n_pairs[--least];

    // A pair fires together no more often than either of the two fires.
    const auto rare = std::partition_point(open.begin(), open.end(),
                                           [&](uint32_t i) { return totals[i] >= least; });
    const std::span<const uint32_t> frequent(open.begin(), rare);
    if (total > most_pairs) {  // of one count, which need no sorting
      ForEachPair(fired, frequent, [&](uint32_t a, uint32_t b, uint32_t count) {
        if (count == least) links.LinkIfAllowed(a, b);
      });
    } else if (total > 0) {
      std::vector<size_t> next(done);  // by count: where the next pair goes
      for (uint32_t c = done - 1; c > least; --c) next[c - 1] = next[c] + n_pairs[c];
      pairs.resize(total);
      ForEachPair(fired, frequent, [&](uint32_t a, uint32_t b, uint32_t count) {
        if (count >= least && count < done) pairs[next[count]++] = {a, b};
      });
      for (const auto& [a, b] : pairs) links.LinkIfAllowed(a, b);
    }
    done = least;
    std::erase_if(open, [&](uint32_t i) { return !links.IsOpen(i); });
  }
  return links.Chains();
}

}  // namespace sluice
