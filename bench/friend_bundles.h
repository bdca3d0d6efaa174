// An idea that did not work, kept as a baseline: each neuron is stored with a copy of the one that
// it fires with most often, and both are read together (tried and dropped by LLM in a Flash, arXiv
// 2312.11514). Very hot neurons are everybody's closest friend and are read again and again.
#ifndef SLUICE_BENCH_FRIEND_BUNDLES_H_
#define SLUICE_BENCH_FRIEND_BUNDLES_H_

#include <cstdint>

#include "io/read_merger.h"
#include "layout/neuron_order.h"

namespace sluice {

// Of the mean token of `test` (one layer), with friends chosen by `train`. A neuron that came along
// with one before it is not read again.
MergedBatch ReadWithFriends(const ActiveSets& train, const ActiveSets& test, uint32_t bundle_bytes,
                            const ReadMerger& costs);

}  // namespace sluice

#endif  // SLUICE_BENCH_FRIEND_BUNDLES_H_
