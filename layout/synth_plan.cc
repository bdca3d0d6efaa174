#include "layout/synth_plan.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/counter_rng.h"
#include "layout/synth_streams.h"
#include "layout/synth_vocab.h"

namespace sluice {
namespace {

constexpr uint32_t kContextLength = 4096;
constexpr uint32_t kBlock = 32;
constexpr double kHottest = 0.98;  // no neuron fires always

constexpr double kDefaultPersistence = 0.5;
constexpr uint32_t kNeuronsPerGroup = 64;

// The planted attention scores: sharpness * mean over the pairs of cos(distance * frequency). Sharp
// enough that thousands of far tokens together weigh less than the near ones; frequencies low
// enough that the peak spans a few tokens, and many enough that they do not line up again.
constexpr double kSharpness = 16.0;
constexpr double kHighestFrequency = 0.18;
constexpr double kFrequencySpan = 64.0;

double NormalCdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }
double NormalPdf(double x) { return std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi); }

// The x in [low, high] at which the rising function f reaches `target`.
template <typename F>
double SolveRising(double low, double high, double target, F f) {
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (f(middle) < target ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

// Probability that a neuron which fires with probability p fires again, where its gate is a normal
// variable of the given autocorrelation: Simpson's rule over the first gate value above threshold.
double FiresAgain(double p, double threshold, double autocorrelation) {
  constexpr int kIntervals = 200;
  const double spread = std::sqrt(1.0 - autocorrelation * autocorrelation);
  const double h = (std::max(threshold, 0.0) + 7.0 - threshold) / kIntervals;
  double sum = 0.0;
  for (int i = 0; i <= kIntervals; ++i) {
    const double x = threshold + h * i;
    const double weight = i == 0 || i == kIntervals ? 1.0 : i % 2 == 1 ? 4.0 : 2.0;
    sum += weight * NormalPdf(x) * NormalCdf((autocorrelation * x - threshold) / spread);
  }
  return sum * h / 3.0 / p;
}

absl::Status OutOfRange(const char* option, double value, double low, double high) {
  return absl::InvalidArgumentError(
      absl::StrFormat("--%s is %g; it must be in %g..%g", option, value, low, high));
}

absl::Status CheckOptions(const SynthOptions& o) {
  // Negated comparisons refuse NaN as well.
  if (!(o.active >= 0.005 && o.active <= 0.5)) return OutOfRange("active", o.active, 0.005, 0.5);
  if (!(o.zipf >= 0.0 && o.zipf <= 3.0)) return OutOfRange("zipf", o.zipf, 0, 3);
  const uint32_t max_groups = o.shape.d_ff / 2;
  if (o.groups && *o.groups > max_groups) return OutOfRange("groups", *o.groups, 0, max_groups);
  if (!(o.group_correlation >= 0.0 && o.group_correlation <= 0.99)) {
    return OutOfRange("group-correlation", o.group_correlation, 0, 0.99);
  }
  if (o.type != SourceType::kQ4_0 && o.type != SourceType::kF16 && o.type != SourceType::kF32) {
    return absl::InvalidArgumentError("the type must be q4_0, f16 or f32");
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> MakeConfig(const SynthShape& s) {
  ModelConfig c;
  c.architecture = "llama";
  c.name = absl::StrFormat("sluice synth %s (generated)", s.name);
  c.n_layers = s.n_layers;
  c.d_model = s.d_model;
  c.d_ff = s.d_ff;
  c.n_heads = s.n_heads;
  c.n_kv_heads = s.n_kv_heads;
  c.head_dim = s.n_heads == 0 ? 0 : s.d_model / s.n_heads;
  c.vocab_size = s.vocab_size;
  c.context_length = kContextLength;
  c.activation = Activation::kRelu;
  c.activation_origin = ActivationOrigin::kMetadata;
  SLUICE_RETURN_IF_ERROR(ValidateConfig(c));
  if (c.q_dim() != c.d_model || c.head_dim % kBlock != 0 || c.d_model < 8 * kBlock ||
      c.vocab_size < kMinSynthVocabulary || c.vocab_size > kMaxSynthVocabulary) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a generated model needs a width of %d or more, cut into heads of a multiple of %d, and a "
        "vocabulary of %d..%d",
        8 * kBlock, kBlock, kMinSynthVocabulary, kMaxSynthVocabulary));
  }
  return c;
}

void Shuffle(std::vector<uint32_t>& values, CounterRng rng) {
  for (size_t i = values.size(); i > 1; --i) {
    std::swap(values[i - 1], values[rng.Below(static_cast<uint32_t>(i))]);
  }
}

}  // namespace

absl::StatusOr<SynthPlan> SynthPlan::Make(const SynthOptions& options) {
  SLUICE_RETURN_IF_ERROR(CheckOptions(options));
  SynthPlan plan;
  plan.options_ = options;
  SLUICE_ASSIGN_OR_RETURN(plan.config_, MakeConfig(options.shape));
  plan.n_groups_ = options.groups.value_or(plan.config_.d_ff / kNeuronsPerGroup);
  plan.PlanResidual();
  plan.PlanKernel();
  plan.PlanHeat();
  SLUICE_RETURN_IF_ERROR(plan.PlanPersistence());
  plan.PlanCycle();
  return plan;
}

void SynthPlan::PlanResidual() {
  const auto blocks = [](uint32_t dims) { return dims / kBlock * kBlock; };
  const uint32_t d = config_.d_model;
  residual_.constant = {0, kBlock};
  residual_.code = {kBlock, blocks(d / 2)};
  residual_.context = {residual_.code.end(), blocks(std::min(config_.kv_dim(), d / 4))};
  residual_.free = {residual_.context.end(), d - residual_.context.end()};
  const double code_energy = residual_.constant.size + residual_.code.size;
  embedding_rms_ = std::sqrt(code_energy / d);
  residual_rms_ = std::sqrt((code_energy + residual_.context.size) / d);
}

void SynthPlan::PlanKernel() {
  std::vector<double> frequencies;
  for (uint32_t pair = 0; pair < config_.head_dim / 2; ++pair) {
    const double frequency = std::pow(config_.rope_base, -2.0 * pair / config_.head_dim);
    if (frequency > kHighestFrequency) kernel_.first_pair = pair + 1;
    if (frequency <= kHighestFrequency && frequency >= kHighestFrequency / kFrequencySpan) {
      frequencies.push_back(frequency);
    }
  }
  kernel_.n_pairs = static_cast<uint32_t>(frequencies.size());
  kernel_.amplitude =
      std::sqrt(kSharpness * std::sqrt(config_.head_dim) / static_cast<double>(kernel_.n_pairs));

  std::vector<double> weights(kContextLength);
  double sum = 0.0;
  for (uint32_t distance = 0; distance < kContextLength; ++distance) {
    double cosines = 0.0;
    for (const double f : frequencies) cosines += std::cos(distance * f);
    weights[distance] = std::exp(kSharpness * cosines / static_cast<double>(kernel_.n_pairs));
    sum += weights[distance];
  }
  double variance = 0.0, next = 0.0;
  for (uint32_t i = 0; i < kContextLength; ++i) {
    weights[i] /= sum;
    variance += weights[i] * weights[i];
    if (i > 0) next += weights[i] * weights[i - 1];
  }
  kernel_.gain = 1.0 / std::sqrt(variance);
  kernel_.autocorrelation = next / variance;
}

void SynthPlan::PlanHeat() {
  const uint32_t n = config_.d_ff;
  const auto heat = [&](double scale, uint32_t rank) {
    return std::min(kHottest, scale * std::pow((rank + 0.5) / n, -options_.zipf));
  };
  const double scale = SolveRising(0.0, 1.0, options_.active, [&](double s) {
    double mean = 0.0;
    for (uint32_t rank = 0; rank < n; ++rank) mean += heat(s, rank) / n;
    return mean;
  });
  for (uint32_t rank = 0; rank < n; ++rank) {
    const double p = heat(scale, rank);
    const double threshold =
        SolveRising(-40.0, 40.0, 1.0 - p, [](double x) { return NormalCdf(x); });
    heat_.push_back(p);
    threshold_.push_back(threshold);
    // The second moment of the positive part of a normal variable of mean -threshold.
    activation_energy_ +=
        (threshold * threshold + 1.0) * NormalCdf(-threshold) - threshold * NormalPdf(threshold);
  }
}

double SynthPlan::ColdOverlap(double autocorrelation) const {
  constexpr uint32_t kSamples = 128;  // the curve over ranks is smooth
  double again = 0.0, all = 0.0;
  for (uint32_t i = 0; i < kSamples; ++i) {
    const uint64_t rank = (2 * uint64_t{i} + 1) * heat_.size() / (2 * kSamples);
    const double p = heat_[rank];
    if (p > kColdShare) continue;
    again += p * FiresAgain(p, threshold_[rank], autocorrelation);
    all += p;
  }
  return again / all;  // NaN if none is cold
}

absl::Status SynthPlan::PlanPersistence() {
  const double low = ColdOverlap(0.0);
  if (std::isnan(low)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "with --active %g and --zipf %g no neuron is cold, and persistence is that of cold ones: "
        "lower --active or raise --zipf",
        options_.active, options_.zipf));
  }
  const double high = ColdOverlap(kernel_.autocorrelation);
  persistence_ = options_.persistence.value_or(std::clamp(kDefaultPersistence, low, high));
  if (!(persistence_ >= low && persistence_ <= high)) {
    // Rounded inwards, so that the values in the message are accepted.
    return absl::InvalidArgumentError(absl::StrFormat(
        "--persistence is %g; with --active %g and --zipf %g it must be in %.3f..%.3f",
        persistence_, options_.active, options_.zipf, std::ceil(low * 1000) / 1000,
        std::floor(high * 1000) / 1000));
  }
  const double autocorrelation = SolveRising(0.0, kernel_.autocorrelation, persistence_,
                                             [this](double r) { return ColdOverlap(r); });
  context_share_ = autocorrelation / kernel_.autocorrelation;
  return absl::OkStatus();
}

void SynthPlan::PlanCycle() {
  const uint32_t n = config_.vocab_size - kFirstSynthOrdinaryToken;
  cycle_step_ = static_cast<uint32_t>(0.618 * n);
  while (std::gcd(cycle_step_, n) != 1) --cycle_step_;
}

LayerNeurons SynthPlan::Neurons(uint32_t layer) const {
  LayerNeurons neurons;
  neurons.rank.resize(config_.d_ff);
  std::iota(neurons.rank.begin(), neurons.rank.end(), 0u);
  Shuffle(neurons.rank, CounterRng(options_.seed, SynthStream(SynthRandom::kHeatOrder, layer), 0));
  if (n_groups_ == 0) return neurons;
  neurons.group.resize(config_.d_ff);
  for (uint32_t i = 0; i < config_.d_ff; ++i) neurons.group[i] = i % n_groups_;
  Shuffle(neurons.group,
          CounterRng(options_.seed, SynthStream(SynthRandom::kGroupOrder, layer), 0));
  return neurons;
}

uint32_t SynthPlan::Successor(uint32_t ordinary_token) const {
  const uint32_t n = config_.vocab_size - kFirstSynthOrdinaryToken;
  return (ordinary_token - kFirstSynthOrdinaryToken + cycle_step_) % n + kFirstSynthOrdinaryToken;
}

uint32_t SynthPlan::Predecessor(uint32_t ordinary_token) const {
  const uint32_t n = config_.vocab_size - kFirstSynthOrdinaryToken;
  return (ordinary_token - kFirstSynthOrdinaryToken + n - cycle_step_) % n +
         kFirstSynthOrdinaryToken;
}

uint32_t SynthPlan::Alias(uint32_t special_token) const {
  CounterRng rng(options_.seed, SynthStream(SynthRandom::kAlias, 0), special_token);
  return kFirstSynthOrdinaryToken + rng.Below(config_.vocab_size - kFirstSynthOrdinaryToken);
}

}  // namespace sluice
