#include "predictor/training_samples.h"

#include <algorithm>

#include "layout/weight_type.h"

namespace sluice {
namespace {

size_t WordsFor(uint32_t d_ff) { return (size_t{d_ff} + 63) / 64; }

}  // namespace

TrainingSamples::TrainingSamples(uint32_t d_model, uint32_t d_ff)
    : d_model_(d_model), d_ff_(d_ff), words_(WordsFor(d_ff)) {}

void TrainingSamples::Add(std::span<const float> input, std::span<const uint32_t> active) {
  constexpr float kLargestHalf = 65504.0f;
  for (const float v : input) {
    inputs_.push_back(FloatToHalf(std::clamp(v, -kLargestHalf, kLargestHalf)));
  }
  labels_.resize(labels_.size() + words_);
  uint64_t* set = &labels_[n_ * words_];
  for (const uint32_t i : active) set[i / 64] |= uint64_t{1} << (i % 64);
  n_active_ += active.size();
  ++n_;
}

void TrainingSamples::Reserve(size_t n) {
  inputs_.reserve(n * d_model_);
  labels_.reserve(n * words_);
}

double TrainingSamples::density() const {
  if (n_ == 0) return 0;
  return static_cast<double>(n_active_) / (static_cast<double>(n_) * d_ff_);
}

void TrainingSamples::GetInput(size_t sample, std::span<float> input) const {
  DecodeRow(WeightType::kF16,
            std::as_bytes(std::span(inputs_).subspan(sample * d_model_, d_model_)), input);
}

size_t TrainingSamples::BytesOfOne(uint32_t d_model, uint32_t d_ff) {
  return d_model * sizeof(uint16_t) + WordsFor(d_ff) * sizeof(uint64_t);
}

}  // namespace sluice
