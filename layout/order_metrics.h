// What an order of neurons is worth on tokens that it was not made from: how long the runs of
// needed positions are, and what reading them costs by a device profile.
#ifndef SLUICE_LAYOUT_ORDER_METRICS_H_
#define SLUICE_LAYOUT_ORDER_METRICS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "io/read_merger.h"
#include "layout/neuron_order.h"
#include "layout/sluice_format.h"

namespace sluice {

// Of the mean token, over all its layers.
struct OrderCost {
  double active = 0;   // neurons
  double runs = 0;     // of neighbouring positions
  MergedBatch exact;   // a read for each run that lies in one piece on flash, and no byte too many
  MergedBatch merged;  // as the merger decides, gaps and all

  double mean_run() const { return runs > 0 ? active / runs : 0; }
};

// `orders`: by layer, the neuron at each position, as OrderNeurons gives them. Allocates as it
// likes; one merger serves one thread.
OrderCost MeasureOrder(const ActiveSets& sets, std::span<const std::vector<uint32_t>> orders,
                       const BundleLayout& bundles, ReadMerger& merger);

// Where each neuron lies.
std::vector<uint32_t> PositionsOf(std::span<const uint32_t> order);
// Replaces neurons by their positions, in rising order.
void ToPositions(std::span<const uint32_t> position_of, std::vector<uint32_t>* neurons);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_ORDER_METRICS_H_
