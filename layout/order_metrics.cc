#include "layout/order_metrics.h"

#include <algorithm>

#include "io/io_request.h"

namespace sluice {
namespace {

void Add(const MergedBatch& batch, MergedBatch* sum) {
  sum->operations += batch.operations;
  sum->bytes += batch.bytes;
  sum->ns += batch.ns;
}

void Divide(double n, MergedBatch* sum) {
  sum->operations /= n;
  sum->bytes /= n;
  sum->ns /= n;
}

void AddSet(std::span<const uint32_t> positions, uint32_t layer, const BundleLayout& bundles,
            ReadMerger& merger, OrderCost* cost) {
  std::vector<IoRequest> reads;
  std::vector<uint64_t> pieces;  // bytes of each run, cut where padding lies between two blobs
  for (size_t i = 0; i < positions.size(); ++i) {
    const uint64_t offset = bundles.BundleOffset(layer, positions[i]);
    cost->runs += i == 0 || positions[i] != positions[i - 1] + 1;
    if (i > 0 && offset == reads.back().offset + bundles.stride) {
      pieces.back() += bundles.stride;
    } else {
      pieces.push_back(bundles.stride);
    }
    reads.push_back({offset, bundles.stride, nullptr, 0});
  }
  cost->active += static_cast<double>(positions.size());
  MergedBatch exact = {static_cast<double>(pieces.size()), 0, merger.TimeNs(pieces)};
  for (const uint64_t bytes : pieces) exact.bytes += static_cast<double>(bytes);
  Add(exact, &cost->exact);
  Add(MergeAll(merger, reads), &cost->merged);
}

}  // namespace

std::vector<uint32_t> PositionsOf(std::span<const uint32_t> order) {
  std::vector<uint32_t> position_of(order.size());
  for (uint32_t p = 0; p < order.size(); ++p) position_of[order[p]] = p;
  return position_of;
}

void ToPositions(std::span<const uint32_t> position_of, std::vector<uint32_t>* neurons) {
  for (uint32_t& n : *neurons) n = position_of[n];
  std::sort(neurons->begin(), neurons->end());
}

OrderCost MeasureOrder(const ActiveSets& sets, std::span<const std::vector<uint32_t>> orders,
                       const BundleLayout& bundles, ReadMerger& merger) {
  OrderCost cost;
  std::vector<uint32_t> active;
  for (uint32_t layer = 0; layer < sets.n_layers; ++layer) {
    const std::vector<uint32_t> position_of = PositionsOf(orders[layer]);
    for (uint32_t token = 0; token < sets.n_tokens; ++token) {
      sets.get(token, layer, &active);
      ToPositions(position_of, &active);
      AddSet(active, layer, bundles, merger, &cost);
    }
  }
  const double n = std::max(sets.n_tokens, 1u);
  cost.active /= n;
  cost.runs /= n;
  Divide(n, &cost.exact);
  Divide(n, &cost.merged);
  return cost;
}

}  // namespace sluice
