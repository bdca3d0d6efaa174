// Which bundles the neuron cache keeps once they have been read: those that fire most, by what the
// file says of a text that the model was profiled with.
#ifndef SLUICE_RUNTIME_HOT_PLAN_H_
#define SLUICE_RUNTIME_HOT_PLAN_H_

#include <cstdint>
#include <vector>

#include "layout/sluice_file.h"

namespace sluice {

// By key of the cache (layer * d_ff + position), for a cache of so many slots; empty: none, since
// nothing is known, or since what a layer needs at once would not find room beside them.
//
// How many: LRU hits nothing in a cache that holds less than the active sets of a token, so there
// nine tenths are hot; half of a larger one (bench/RESULTS.md, "Cache policies"). Which: the file's
// placement of that size (layout/placement.h), in each layer the most frequent.
std::vector<bool> PlanHot(const SluiceFile& file, uint32_t n_slots);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_HOT_PLAN_H_
