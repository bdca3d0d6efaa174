// Who lies next to whom on flash: an order of each layer's neurons, from what fired in a text, so
// that the neurons of a token are read in few and long runs. Every neuron is stored once.
//
//   hot    those that fire for more than kHotShare of the tokens, the most frequent first. They are
//          everybody's friends and would join whatever is unlike; a placement pins a prefix.
//   cold   lined up by the greedy path over the graph of co-activation (layout/greedy_path.h);
//          chains by falling mean frequency.
//   rest   what never fired, in the order of the source.
// Counts of firings and of pairs are exact; that the path is greedy is the heuristic.
//
// A layer of 14,336 neurons and 4,096 tokens takes seconds and some 150 MB for each thread (time
// grows with neurons^2 * tokens); of more than kMostOrderTokens tokens only so many, evenly spread,
// are looked at for pairs.
#ifndef SLUICE_LAYOUT_NEURON_ORDER_H_
#define SLUICE_LAYOUT_NEURON_ORDER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice {

// A hot neuron is needed more often than not, so what is read unasked of a run of them is less than
// what is wanted. Read times hardly depend on the share (bench/RESULTS.md).
constexpr double kHotShare = 0.5;
constexpr uint32_t kMostOrderTokens = 1 << 16;

// The neurons that fire, token by token.
struct ActiveSets {
  uint32_t n_layers = 0;
  uint32_t n_neurons = 0;  // of a layer
  uint32_t n_tokens = 0;
  // Replaces *active by the neurons that fire in a layer for a token, in rising order. Called by
  // several threads at once.
  std::function<void(uint32_t token, uint32_t layer, std::vector<uint32_t>* active)> get;
};

struct OrderOptions {
  uint32_t n_threads = 1;  // any number gives the same order
  // Called after each layer, by one thread at a time; false ends the run with Cancelled.
  std::function<bool(uint32_t layers_done, uint32_t n_layers)> progress = nullptr;
};

// How many of a layer's neurons are hot, given for how many of `n_tokens` tokens each fired.
uint32_t CountHot(std::span<const uint32_t> counts, uint32_t n_tokens);

// By layer, the neuron at each position. `counts` are, by layer, for how many of `n_counted` tokens
// each neuron fired; they decide who is hot, and may be of more tokens than `sets` (the training
// sets) are. InvalidArgument if the two do not fit each other or a set holds what is no neuron.
absl::StatusOr<std::vector<std::vector<uint32_t>>> OrderNeurons(
    const ActiveSets& sets, std::span<const std::span<const uint32_t>> counts, uint32_t n_counted,
    const OrderOptions& options);

// The order of a frequency sort, for comparison: the most frequent first, ties by number.
std::vector<uint32_t> ByFrequency(std::span<const uint32_t> counts);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_NEURON_ORDER_H_
