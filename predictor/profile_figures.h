// What an activation profile says in a few numbers. All are shares of 1 and measured.
#ifndef SLUICE_PREDICTOR_PROFILE_FIGURES_H_
#define SLUICE_PREDICTOR_PROFILE_FIGURES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "predictor/activation_profile.h"
#include "predictor/activation_trace.h"

namespace sluice {

// Cold neurons are active for at most this share of the tokens.
constexpr double kColdNeuronShare = 0.5;

// Of the neurons, the mean share that is not active for a training token.
double Sparsity(const ActivationProfile& profile, uint32_t layer);

// How unevenly `counts` are spread over neurons.
class FrequencyCurve {
 public:
  explicit FrequencyCurve(std::span<const uint32_t> counts = {});

  // The share of all activations that the most active neurons give, so many of 1.
  double Covered(double neurons) const;
  // The least share of the neurons that gives this share of all activations; 0 if there are none.
  double NeuronsFor(double activations) const;

 private:
  std::vector<uint64_t> sums_;  // of the most active neurons: none, one, two, ...
};

// How likely a cold neuron is active, given that another one of its layer is: over pairs, from the
// training sets that are kept.
struct Coactivation {
  static constexpr uint32_t kBins = 100;
  uint64_t n_pairs = 0;
  double mean = 0;
  // Pairs by their likelihood: bin i is from i % up to i + 1 %, the last one with 100 %.
  std::vector<uint64_t> pairs = std::vector<uint64_t>(kBins);
};

// Looks at neurons evenly spread over the cold ones that are active often enough to tell, and at
// all cold neurons for each. Takes 256 bytes of memory a neuron of the layer.
Coactivation MeasureCoactivation(const ActivationProfile& profile, uint32_t layer);

// Mean number of active neurons that lie side by side in a layer, where neuron i lies at
// position_of[i]. 0 if none is active.
double MeanRun(const ActivationTrace& sets, uint32_t layer, std::span<const uint32_t> position_of);

}  // namespace sluice

#endif  // SLUICE_PREDICTOR_PROFILE_FIGURES_H_
