#include "predictor/adamw.h"

#include <cmath>

namespace sluice {

void AdamW::Step(std::span<float> weights, std::span<const float> gradient, float rate,
                 const ParallelFor& parallel) {
  constexpr float kMeanDecay = 0.9f, kSquareDecay = 0.999f, kEpsilon = 1e-8f;
  decayed_mean_ *= kMeanDecay;
  decayed_square_ *= kSquareDecay;
  const auto step = static_cast<float>(rate / (1.0 - decayed_mean_));
  const auto square_correction = static_cast<float>(1.0 / (1.0 - decayed_square_));
  const float keep = 1.0f - rate * weight_decay_;
  constexpr size_t kGrain = 4 * 1024;
  parallel(weights.size(), kGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const float g = gradient[i];
      mean_[i] = kMeanDecay * mean_[i] + (1.0f - kMeanDecay) * g;
      square_[i] = kSquareDecay * square_[i] + (1.0f - kSquareDecay) * g * g;
      weights[i] = keep * weights[i] -
                   step * mean_[i] / (std::sqrt(square_[i] * square_correction) + kEpsilon);
    }
  });
}

}  // namespace sluice
