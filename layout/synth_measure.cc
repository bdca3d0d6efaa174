#include "layout/synth_measure.h"

#include <algorithm>
#include <memory>
#include <span>

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/gguf.h"
#include "layout/plain_forward.h"
#include "layout/synth_vocab.h"

namespace sluice {
namespace {

constexpr uint32_t kWarmUp = 16;

struct Ratio {
  double part = 0;
  double whole = 0;
  double value() const { return whole > 0 ? part / whole : 0; }
};

// Adds up firings layer by layer.
class ActivityCounts {
 public:
  ActivityCounts(const SynthPlan& plan, uint32_t n_warm_up)
      : plan_(plan), d_ff_(plan.config().d_ff), n_warm_up_(n_warm_up), by_rank_(d_ff_) {}

  // `gates` is {tokens, d_ff}.
  void AddLayer(uint32_t layer, std::span<const float> gates) {
    const LayerNeurons neurons = plan_.Neurons(layer);
    const size_t n_tokens = gates.size() / d_ff_;
    double active = 0;
    for (size_t t = n_warm_up_; t < n_tokens; ++t) {
      active +=
          AddToken(neurons, gates.subspan(t * d_ff_, d_ff_), gates.subspan((t - 1) * d_ff_, d_ff_));
    }
    layer_active_.push_back(active / static_cast<double>((n_tokens - n_warm_up_) * d_ff_));
  }

  void Report(SynthMeasurement& m) const {
    for (const double share : layer_active_) {
      m.active_mean += share / static_cast<double>(layer_active_.size());
    }
    m.active_min = *std::ranges::min_element(layer_active_);
    m.active_max = *std::ranges::max_element(layer_active_);
    double all = 0, sum = 0;
    for (const double count : by_rank_) all += count;
    size_t rank = 0;
    while (rank < by_rank_.size() && sum < 0.8 * all) sum += by_rank_[rank++];
    m.neurons_for_80_percent = static_cast<double>(rank) / d_ff_;
    m.overlap = overlap_.value();
    m.cold_overlap = cold_overlap_.value();
    m.coactivation_within = within_.value();
    m.coactivation_across = across_.value();
  }

 private:
  // Returns the number of active neurons.
  double AddToken(const LayerNeurons& neurons, std::span<const float> gates,
                  std::span<const float> gates_before) {
    double active = 0;
    // Cold neurons by group: all, and those that are active.
    std::vector<double> members(plan_.n_groups()), firing(plan_.n_groups());
    for (uint32_t i = 0; i < d_ff_; ++i) {
      const bool fires = gates[i] > 0.0f;
      const bool fired_before = gates_before[i] > 0.0f;
      const bool cold = plan_.heat()[neurons.rank[i]] <= kColdShare;
      if (cold && !neurons.group.empty()) {
        members[neurons.group[i]] += 1;
        firing[neurons.group[i]] += fires;
      }
      if (!fires) continue;
      active += 1;
      by_rank_[neurons.rank[i]] += 1;
      overlap_.whole += 1;
      overlap_.part += fired_before;
      if (cold) {
        cold_overlap_.whole += 1;
        cold_overlap_.part += fired_before;
      }
    }
    AddPairs(members, firing);
    return active;
  }

  void AddPairs(std::span<const double> members, std::span<const double> firing) {
    double all_members = 0, all_firing = 0;
    for (const double n : members) all_members += n;
    for (const double n : firing) all_firing += n;
    for (size_t g = 0; g < members.size(); ++g) {
      within_.part += firing[g] * (firing[g] - 1);
      within_.whole += firing[g] * (members[g] - 1);
      across_.part += firing[g] * (all_firing - firing[g]);
      across_.whole += firing[g] * (all_members - members[g]);
    }
  }

  const SynthPlan& plan_;
  const uint32_t d_ff_;
  const uint32_t n_warm_up_;
  std::vector<double> layer_active_;
  std::vector<double> by_rank_;
  Ratio overlap_, cold_overlap_, within_, across_;
};

}  // namespace

absl::StatusOr<SynthMeasurement> MeasureSynthModel(const SynthPlan& plan, const std::string& path,
                                                   uint32_t n_tokens, uint32_t n_threads) {
  if (n_tokens == 0 || n_tokens > kMaxMeasuredTokens) {
    return absl::InvalidArgumentError(absl::StrFormat("cannot measure %d tokens; it must be 1..%d",
                                                      n_tokens, kMaxMeasuredTokens));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  SynthMeasurement m;
  m.n_tokens = n_tokens;
  m.n_warm_up = kWarmUp;
  m.walk = {kSynthBosToken};
  uint32_t token = plan.Alias(kSynthBosToken);
  while (m.walk.size() < kWarmUp + n_tokens) {
    token = plan.Successor(token);
    m.walk.push_back(token);
  }
  ActivityCounts counts(plan, kWarmUp);
  ForwardOptions forward;
  forward.n_threads = n_threads;
  forward.on_gates = [&counts](uint32_t layer, std::span<const float> gates) {
    counts.AddLayer(layer, gates);
  };
  SLUICE_ASSIGN_OR_RETURN(const ForwardResult result,
                          RunPlainForward(*file, plan.config(), m.walk, forward));
  for (size_t t = 0; t + 1 < m.walk.size(); ++t) {
    if (result.best_token[t] != m.walk[t + 1]) {
      return absl::DataLossError(absl::StrFormat(
          "%s: greedy decoding leaves the planted walk after %d tokens: it chooses token %d, "
          "planted is %d",
          path, t, result.best_token[t], m.walk[t + 1]));
    }
  }
  m.least_margin = *std::ranges::min_element(result.margin);
  counts.Report(m);
  return m;
}

}  // namespace sluice
