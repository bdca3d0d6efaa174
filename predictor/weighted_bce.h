// Binary cross entropy with a weight for each class. Active neurons are few: unweighted, a network
// does well by calling none active. As in Deja Vu (Liu et al., 2023) an active neuron counts 1 and
// an inactive one the share of active ones + 0.005, so that both classes count nearly the same.
#ifndef SLUICE_PREDICTOR_WEIGHTED_BCE_H_
#define SLUICE_PREDICTOR_WEIGHTED_BCE_H_

#include <cstdint>
#include <span>

namespace sluice {

constexpr float InactiveWeight(double density) { return static_cast<float>(density + 0.005); }

// Of one token. `labels`: bit i of word i / 64 is set if neuron i is active.
// The loss, summed over the neurons.
double WeightedBce(std::span<const float> logits, const uint64_t* labels, float inactive_weight);
// Replaces the logits by factor * the gradient of that sum by them.
void WeightedBceGradient(std::span<float> logits, const uint64_t* labels, float inactive_weight,
                         float factor);

}  // namespace sluice

#endif  // SLUICE_PREDICTOR_WEIGHTED_BCE_H_
