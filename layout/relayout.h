// Rewrites a `.sluice` file with its neurons in another order, with predictors or with activation
// thresholds. Every weight is copied as it is packed, after its checksum has been compared.
#ifndef SLUICE_LAYOUT_RELAYOUT_H_
#define SLUICE_LAYOUT_RELAYOUT_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/sluice_file.h"

namespace sluice {

// Of one layer. Rows of fc2 are by neuron id, as in the source model, or by head.
struct PredictorWeights {
  uint32_t rank = 0;           // a multiple of 32, at most kMaxRank
  std::span<const float> fc1;  // [rank x d_model]
  std::span<const float> fc2;  // [d_ff or heads x rank]
};

struct RelayoutOptions {
  // By layer, the neuron id at each position; empty: as they are.
  std::span<const std::vector<uint32_t>> order;
  // By layer, packed as q8; empty: those that the file has, if any. A file with predictors has gate
  // rows in its bundles.
  std::span<const PredictorWeights> predictors;
  PredictorRecord predictor_record;  // of `predictors`
  // The same for attention heads. A file that has them has predictors of neurons too.
  std::span<const PredictorWeights> head_predictors;
  HeadPredictorRecord head_predictor_record;
  const ActivityRecord* activity = nullptr;  // by position in the new order; null: what the file
                                             // has, unless the order changes
  std::span<const float> thresholds;         // by layer; empty: those that the file has, if any
  bool overwrite = false;
  // Called now and then with bytes written so far and in all; false ends the run with Cancelled.
  std::function<bool(uint64_t, uint64_t)> progress;
};

// Returns the size of the new file. InvalidArgument if `out` is the input, or an order, predictor
// or threshold does not fit the model; DataLoss if a weight does not match its checksum. Takes as
// much memory as the FFN of a layer.
absl::StatusOr<uint64_t> Relayout(const SluiceFile& in, const std::string& out,
                                  const RelayoutOptions& options);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_RELAYOUT_H_
