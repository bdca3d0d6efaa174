// The FFN of single tokens with the active sets that the predictors of a model give, and what is
// read for the next layer meanwhile.
//
// Where predictors look at the layer before (PredictorInput::kPrevious), the next layer's set is
// known a layer ahead. Where they look at the layer's own input, the next layer's predictor is
// asked with this layer's residual as well. The residual changes little from layer to layer (Deja
// Vu, sec. 4), so the answer foretells most of the set; it is read ahead, and decides nothing.
#ifndef SLUICE_RUNTIME_PREDICTED_FFN_H_
#define SLUICE_RUNTIME_PREDICTED_FFN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/ffn_demand.h"
#include "runtime/look_ahead.h"
#include "runtime/neuron_predictor.h"

namespace sluice {

// Confined to the decode thread. Allocates nothing after construction.
class PredictedFfn {
 public:
  // Borrows all; `look_ahead`, which `demand` has too, may be null: nothing is read ahead.
  // `miss_skip`, below 1: of the predicted neurons of a layer that would have to be read, the share
  // that is left out, those with the lowest scores (cache-aware, as DIP-CA, arXiv 2412.01380). More
  // than 0: the result depends on what is cached.
  PredictedFfn(const FfnContext& context, NeuronPredictor& predictor, DemandFfn& demand,
               LookAhead* look_ahead, double miss_skip);

  // Adds the FFN's output to y [d_model]. x is the token's normed input in the forms that dots
  // need, `normed` and `residual` [d_model] what predictors may look at. Layers in order.
  absl::Status Run(uint32_t layer, const VectorView& x, const float* normed, const float* residual,
                   float* y);

  // Predicted, and left out since they were not cached.
  uint64_t n_skipped() const { return n_skipped_; }

  static size_t ScratchBytes(const BundleLayout& bundles);

 private:
  bool looks_back() const { return predictor_.input() == PredictorInput::kPrevious; }
  absl::StatusOr<uint32_t> Choose(uint32_t layer, const float* normed, const float* residual);
  absl::Status ReadAhead(uint32_t layer, const float* residual);
  absl::StatusOr<uint32_t> Ask(uint32_t layer, const float* input, std::span<uint32_t> active);
  uint32_t SkipMisses(uint32_t layer, std::span<uint32_t> active);

  const FfnContext& c_;
  NeuronPredictor& predictor_;
  DemandFfn& demand_;
  LookAhead* const look_ahead_;
  const double miss_skip_;
  std::vector<uint32_t> expected_;  // of the next layer; the first n_expected_
  uint32_t n_expected_ = 0;
  std::vector<uint32_t> missing_;  // scratch of SkipMisses
  std::vector<float> normed_;      // scratch of ReadAhead
  uint64_t n_skipped_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_PREDICTED_FFN_H_
