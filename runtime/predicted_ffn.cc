#include "runtime/predicted_ffn.h"

#include <algorithm>
#include <cmath>

#include "io/status.h"
#include "runtime/tensor_ops.h"

namespace sluice {

PredictedFfn::PredictedFfn(const FfnContext& context, NeuronPredictor& predictor, DemandFfn& demand,
                           LookAhead* look_ahead, double miss_skip)
    : c_(context),
      predictor_(predictor),
      demand_(demand),
      look_ahead_(look_ahead),
      miss_skip_(miss_skip),
      expected_(c_.bundles().d_ff),
      missing_(c_.bundles().d_ff),
      normed_(c_.bundles().d_model) {}

size_t PredictedFfn::ScratchBytes(const BundleLayout& bundles) {
  return 2 * bundles.d_ff * sizeof(uint32_t) + bundles.d_model * sizeof(float);
}

absl::Status PredictedFfn::Run(uint32_t layer, const VectorView& x, const float* normed,
                               const float* residual, float* y) {
  SLUICE_ASSIGN_OR_RETURN(const uint32_t n, Choose(layer, normed, residual));
  SLUICE_RETURN_IF_ERROR(demand_.Begin(layer, n));
  if (layer + 1 < c_.file.config().n_layers) {
    SLUICE_RETURN_IF_ERROR(ReadAhead(layer + 1, residual));
  }
  return demand_.Finish({}, x, y);
}

// The active set of the layer.
absl::StatusOr<uint32_t> PredictedFfn::Choose(uint32_t layer, const float* normed,
                                              const float* residual) {
  const auto active = demand_.active_buffer();
  if (looks_back() && layer > 0) {
    std::copy_n(expected_.begin(), n_expected_, active.begin());
    return n_expected_;
  }
  const bool is_normed = predictor_.input() == PredictorInput::kNormed;
  return Ask(layer, is_normed ? normed : residual, active);
}

// What this layer needs has its slots by now, or else they must not be taken.
absl::Status PredictedFfn::ReadAhead(uint32_t layer, const float* residual) {
  const bool reads = look_ahead_ != nullptr && demand_.is_whole() && look_ahead_->Pays(layer);
  if (!reads && !looks_back()) return absl::OkStatus();
  const float* input = residual;
  if (predictor_.input() == PredictorInput::kNormed) {
    const SluiceFile& file = c_.file;
    Normalize({residual, normed_.size()}, file.ffn_norm(layer), file.ffn_norm_bias(layer),
              file.config().norm_epsilon, normed_);
    input = normed_.data();
  }
  SLUICE_ASSIGN_OR_RETURN(n_expected_, Ask(layer, input, expected_));
  if (reads) look_ahead_->Begin(layer, std::span(expected_).first(n_expected_));
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> PredictedFfn::Ask(uint32_t layer, const float* input,
                                           std::span<uint32_t> active) {
  const StageSpan span(c_.spans, "predictor", layer);
  SLUICE_ASSIGN_OR_RETURN(const uint32_t n, predictor_.Predict(layer, input, active));
  return miss_skip_ > 0 ? SkipMisses(layer, active.first(n)) : n;
}

// Takes the misses of lowest score out of `active`; returns how many positions are left.
uint32_t PredictedFfn::SkipMisses(uint32_t layer, std::span<uint32_t> active) {
  uint32_t n_missing = 0;
  for (const uint32_t p : active) {
    missing_[n_missing] = p;
    n_missing += !c_.cache->Holds(layer, p);
  }
  const auto n_skip = static_cast<uint32_t>(miss_skip_ * n_missing);
  if (n_skip == 0) return static_cast<uint32_t>(active.size());
  const auto score = [logits = predictor_.logits()](uint32_t p) {
    return logits[p] < INFINITY ? logits[p] : INFINITY;  // a NaN must not be hidden
  };
  std::nth_element(
      missing_.begin(), missing_.begin() + n_skip, missing_.begin() + n_missing,
      [&](uint32_t a, uint32_t b) { return score(a) != score(b) ? score(a) < score(b) : a < b; });
  const auto skipped = std::span(missing_).first(n_skip);
  std::sort(skipped.begin(), skipped.end());
  const auto end = std::remove_if(active.begin(), active.end(), [&](uint32_t p) {
    return std::binary_search(skipped.begin(), skipped.end(), p);
  });
  n_skipped_ += n_skip;
  return static_cast<uint32_t>(end - active.begin());
}

}  // namespace sluice
