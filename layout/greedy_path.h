// Lines up neurons that fire together: a heuristic for the path through all neurons along which the
// sum of the pair counts is largest, which is the order with the fewest reads expected (Ripple,
// arXiv 2410.19274, algorithm 1). The heaviest pair first, two neurons become neighbours if either
// has fewer than two neighbours and they are not of one chain yet.
//
// Every pair is considered, in exactly that order, and none is kept for long. In a round all pairs
// of neurons that may still get a neighbour are counted; the heaviest, as many as fit a buffer, are
// sorted by a counting sort and linked. That leaves fewer neurons for the next round.
#ifndef SLUICE_LAYOUT_GREEDY_PATH_H_
#define SLUICE_LAYOUT_GREEDY_PATH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "layout/coactivation.h"

namespace sluice {

constexpr size_t kPairsInMemory = 16 << 20;  // 8 bytes each

// Neurons of `fired` are to be numbered by falling Count. Returns chains, each from the end with
// the lower number, in rising order of that number; pairs that never fire together are not linked,
// and a neuron without neighbours is a chain of its own. Of equal pairs that of the lower numbers
// comes first (the lower first number, then the lower second). Deterministic, whatever
// `most_pairs`.
std::vector<std::vector<uint32_t>> GreedyChains(const Coactivation& fired,
                                                size_t most_pairs = kPairsInMemory);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_GREEDY_PATH_H_
