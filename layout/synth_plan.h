// What a generated model is to be: shapes, where things lie in the residual stream, and the numbers
// that make its FFN neurons fire as asked.
//
// The residual stream is cut into ranges of dimensions, each whole quantisation blocks:
//   constant  1 for every token, so that a gate row's weights here act as a threshold although the
//             architecture has no biases (RMSNorm rescales threshold and signal alike);
//   code      a random vector per token, from the embedding;
//   context   a weighted mean of the codes of recent tokens, written by the attention of the first
//             layer: queries and keys are constant, so that RoPE alone shapes the weights, and the
//             planted frequencies give a peak some four tokens wide at any position;
//   free      where everything else writes, at small amplitude.
// A gate row is  a code direction + a context direction - threshold, with unit variance, so the
// neuron fires with the probability that its threshold gives, for any text and in every layer. The
// mix of code (new for each token) and context (slow) sets persistence; a direction shared within a
// group makes its members fire together.
// The head's row of a token holds the code of its predecessor in one cycle through the vocabulary,
// so greedy decoding walks that cycle and never falls into a short loop.
#ifndef SLUICE_LAYOUT_SYNTH_PLAN_H_
#define SLUICE_LAYOUT_SYNTH_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/model_config.h"
#include "layout/synth.h"

namespace sluice {

// Cold neurons fire for at most this share of tokens.
constexpr double kColdShare = 0.5;

struct DimRange {
  uint32_t begin = 0;
  uint32_t size = 0;
  uint32_t end() const { return begin + size; }
};

struct ResidualLayout {
  DimRange constant, code, context, free;
};

// The attention of the first layer: rotation pairs first_pair .. first_pair + n_pairs of each head
// carry equal weight, the others none.
struct RecencyKernel {
  uint32_t first_pair = 0;
  uint32_t n_pairs = 0;
  double amplitude = 0;        // of one element of a query or key
  double gain = 0;             // brings the mean of codes back to unit variance
  double autocorrelation = 0;  // of the context, from one token to the next
};

// One layer's neurons, by index.
struct LayerNeurons {
  std::vector<uint32_t> rank;   // 0 is the hottest
  std::vector<uint32_t> group;  // empty if there are no groups
};

// Immutable after Make; thread-safe.
class SynthPlan {
 public:
  // InvalidArgument naming the option that is out of range.
  static absl::StatusOr<SynthPlan> Make(const SynthOptions& options);

  const SynthOptions& options() const { return options_; }
  const ModelConfig& config() const { return config_; }
  const ResidualLayout& residual() const { return residual_; }
  const RecencyKernel& kernel() const { return kernel_; }
  uint32_t n_groups() const { return n_groups_; }
  double persistence() const { return persistence_; }  // as planned
  // Share of a gate's variance that comes from the context rather than the token's own code.
  double context_share() const { return context_share_; }
  // Root mean square of a token's residual before and after the first attention.
  double embedding_rms() const { return embedding_rms_; }
  double residual_rms() const { return residual_rms_; }
  // Mean over tokens of the squared norm of a layer's FFN activations.
  double activation_energy() const { return activation_energy_; }

  // By rank: the probability of firing and the threshold (in standard deviations) that gives it.
  std::span<const double> heat() const { return heat_; }
  std::span<const double> threshold() const { return threshold_; }
  LayerNeurons Neurons(uint32_t layer) const;

  // The cycle that greedy decoding walks. Ordinary tokens come after control and byte tokens, which
  // are not on it; `Alias` is the ordinary token that such a token resembles.
  uint32_t Successor(uint32_t ordinary_token) const;
  uint32_t Predecessor(uint32_t ordinary_token) const;
  uint32_t Alias(uint32_t special_token) const;

 private:
  SynthPlan() = default;
  void PlanResidual();
  void PlanKernel();
  void PlanHeat();
  absl::Status PlanPersistence();
  void PlanCycle();
  double ColdOverlap(double autocorrelation) const;

  SynthOptions options_;
  ModelConfig config_;
  ResidualLayout residual_;
  RecencyKernel kernel_;
  uint32_t n_groups_ = 0;
  double persistence_ = 0;
  double context_share_ = 0;
  double embedding_rms_ = 0;
  double residual_rms_ = 0;
  double activation_energy_ = 0;
  std::vector<double> heat_;
  std::vector<double> threshold_;
  uint32_t cycle_step_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_LAYOUT_SYNTH_PLAN_H_
