#include "predictor/trainer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/counter_rng.h"
#include "layout/sluice_format.h"
#include "predictor/adamw.h"
#include "predictor/low_rank_mlp.h"
#include "predictor/weighted_bce.h"

namespace sluice {
namespace {

constexpr size_t kBatch = 256;
constexpr float kWeightDecay = 0.01f;
constexpr float kWarmUp = 0.05f;   // the share of the steps in which the rate rises
constexpr uint32_t kPatience = 3;  // epochs without a better one
enum RandomStream : uint64_t { kWeights = 1, kOrder = 2 };

uint32_t RoundRank(uint32_t rank) { return (rank + kRankStep - 1) / kRankStep * kRankStep; }

// Each rank costs a training: the further the bound, the larger the step.
uint32_t GrowRank(uint32_t rank, double excess) {
  return static_cast<uint32_t>(rank * std::clamp(excess, 1.5, 4.0));
}

// What each input is divided by while training, so that all weigh alike.
std::vector<float> InputScales(const TrainingSamples& samples) {
  const uint32_t d = samples.d_model();
  std::vector<double> squares(d);
  std::vector<float> x(d);
  const size_t stride = samples.size() / 10'000 + 1;
  size_t n = 0;
  for (size_t s = 0; s < samples.size(); s += stride, ++n) {
    samples.GetInput(s, x);
    for (uint32_t i = 0; i < d; ++i) squares[i] += double{x[i]} * x[i];
  }
  const double mean = std::accumulate(squares.begin(), squares.end(), 0.0) / d;
  std::vector<float> scales(d);
  for (uint32_t i = 0; i < d; ++i) {  // an input that is hardly ever there gets no giant weights
    const double square = std::max(squares[i], 1e-4 * mean) / static_cast<double>(n);
    scales[i] = square > 0 ? static_cast<float>(std::sqrt(square)) : 1.0f;
  }
  return scales;
}

// The network and how well it does as it would be stored.
struct Candidate {
  LowRankMlp mlp;  // on scaled inputs
  LayerPredictor predictor;
  PredictorQuality quality;
};

class Training {
 public:
  Training(const TrainingSamples& train, const TrainingSamples& validation,
           const TrainerOptions& options, DenseProducts& products)
      : train_(train),
        validation_(validation),
        options_(options),
        products_(products),
        pass_(products),
        scales_(InputScales(train)),
        order_(train.size()) {
    std::iota(order_.begin(), order_.end(), 0u);
  }

  absl::StatusOr<TrainedPredictor> Run();

 private:
  // How far the density is from its bound; 1: there.
  double Excess(const Candidate& c) const {
    return c.quality.density() / (options_.density_ratio * c.quality.true_density());
  }
  bool Meets(const Candidate& c) const { return Excess(c) <= 1.0; }
  absl::StatusOr<Candidate> TrainRank(LowRankMlp mlp);
  void RunEpoch(uint32_t epoch, LowRankMlp& mlp, AdamW& fc1, AdamW& fc2);
  void Shuffle();
  void GatherBatch(size_t first, size_t n);
  float Rate(double done) const;  // `done`: the share of the steps
  absl::StatusOr<Candidate> Judge(const LowRankMlp& mlp);

  const TrainingSamples& train_;
  const TrainingSamples& validation_;
  const TrainerOptions& options_;
  DenseProducts& products_;
  MlpPass pass_;
  const std::vector<float> scales_;
  std::vector<uint32_t> order_;  // of the samples in an epoch
  uint64_t n_shuffles_ = 0;
  std::vector<float> inputs_;  // of a batch
};

void Training::Shuffle() {
  CounterRng rng(options_.seed, kOrder, n_shuffles_++);
  for (size_t i = order_.size(); i > 1; --i) {
    std::swap(order_[i - 1], order_[rng.Below(static_cast<uint32_t>(i))]);
  }
}

void Training::GatherBatch(size_t first, size_t n) {
  const size_t d = train_.d_model();
  inputs_.resize(n * d);
  products_.parallel()(n, 16, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const auto x = std::span(inputs_).subspan(i * d, d);
      train_.GetInput(order_[first + i], x);
      for (size_t k = 0; k < d; ++k) x[k] /= scales_[k];
    }
  });
}

float Training::Rate(double done) const {
  const double rise = done / kWarmUp, fall = (1.0 - done) / (1.0 - kWarmUp);
  return options_.rate * static_cast<float>(std::min(rise, fall));
}

void Training::RunEpoch(uint32_t epoch, LowRankMlp& mlp, AdamW& fc1, AdamW& fc2) {
  const size_t n_batches = (train_.size() + kBatch - 1) / kBatch;
  const float inactive_weight = InactiveWeight(train_.density());
  Shuffle();
  for (size_t b = 0; b < n_batches; ++b) {
    const size_t first = b * kBatch, n = std::min(kBatch, train_.size() - first);
    GatherBatch(first, n);
    const std::span<float> logits = pass_.Forward(mlp, inputs_, n);
    products_.parallel()(n, 4, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        WeightedBceGradient(logits.subspan(i * mlp.d_out, mlp.d_out),
                            train_.labels(order_[first + i]), inactive_weight,
                            1.0f / static_cast<float>(n));
      }
    });
    pass_.Backward(mlp, inputs_, n, logits);
    const double done =
        (epoch + (static_cast<double>(b) + 0.5) / static_cast<double>(n_batches)) / options_.epochs;
    fc1.Step(mlp.fc1, pass_.d_fc1(), Rate(done), products_.parallel());
    fc2.Step(mlp.fc2, pass_.d_fc2(), Rate(done), products_.parallel());
  }
}

// Folds the scales of the inputs into fc1, and gives both matrices weights of one size: scales of
// packed blocks are half floats, which know no very small numbers.
LowRankMlp ForRawInputs(const LowRankMlp& mlp, std::span<const float> scales) {
  LowRankMlp m = mlp;
  for (size_t i = 0; i < m.fc1.size(); ++i) m.fc1[i] /= scales[i % m.d_in];
  const auto mean_square = [](const std::vector<float>& weights) {
    double sum = 0;
    for (const float w : weights) sum += double{w} * w;
    return sum / static_cast<double>(weights.size());
  };
  const double in = mean_square(m.fc1), out = mean_square(m.fc2);
  if (in <= 0 || out <= 0) return m;
  const auto factor = static_cast<float>(std::pow(out / in, 0.25));
  for (float& w : m.fc1) w *= factor;
  for (float& w : m.fc2) w /= factor;
  return m;
}

absl::StatusOr<Candidate> Training::Judge(const LowRankMlp& mlp) {
  const LowRankMlp raw = ForRawInputs(mlp, scales_);
  const auto finite = [](float w) { return std::isfinite(w); };
  if (!std::all_of(raw.fc1.begin(), raw.fc1.end(), finite) ||
      !std::all_of(raw.fc2.begin(), raw.fc2.end(), finite)) {
    return absl::InternalError(absl::StrFormat(
        "training diverges at a rate of %g; the weights are not finite any more", options_.rate));
  }
  const PackedPredictor packed(raw);
  // Twice the error above what is asked for, so that it holds for other text too; but at most half
  // way to finding all, where there are few samples.
  float threshold = packed.ThresholdFor(options_.recall, validation_, products_);
  const double error = packed.RecallError(threshold, validation_, products_);
  const double margin = std::min(2 * error, (1 - options_.recall) / 2);
  threshold = packed.ThresholdFor(options_.recall + margin, validation_, products_);
  return Candidate{mlp, packed.Unpack(threshold), packed.Judge(threshold, validation_, products_)};
}

absl::StatusOr<Candidate> Training::TrainRank(LowRankMlp mlp) {
  AdamW fc1(mlp.fc1.size(), kWeightDecay), fc2(mlp.fc2.size(), kWeightDecay);
  std::optional<Candidate> best;
  uint32_t best_epoch = 0;
  for (uint32_t epoch = 0; epoch < options_.epochs && epoch <= best_epoch + kPatience; ++epoch) {
    RunEpoch(epoch, mlp, fc1, fc2);
    SLUICE_ASSIGN_OR_RETURN(Candidate now, Judge(mlp));
    if (!best || now.quality.n_predicted < best->quality.n_predicted) {
      best = std::move(now);
      best_epoch = epoch;
    }
    if (options_.progress &&
        !options_.progress({mlp.rank, epoch + 1, options_.epochs, best->quality.density()})) {
      return absl::CancelledError("stopped on request");
    }
  }
  return *std::move(best);
}

absl::StatusOr<TrainedPredictor> Training::Run() {
  const uint32_t max_rank = LargestRank(train_.d_model(), train_.d_ff(), options_.max_bytes);
  uint32_t rank = RoundRank(max_rank / 4);
  SLUICE_ASSIGN_OR_RETURN(Candidate best,
                          TrainRank(LowRankMlp::Random(train_.d_model(), rank, train_.d_ff(),
                                                       options_.seed, kWeights)));
  const auto resized = [&](uint32_t to) {
    return TrainRank(best.mlp.Resized(to, options_.seed, kWeights));
  };
  if (Meets(best)) {
    while (rank > kRankStep) {
      rank = RoundRank(rank / 2);
      SLUICE_ASSIGN_OR_RETURN(Candidate smaller, resized(rank));
      if (!Meets(smaller)) break;
      best = std::move(smaller);
    }
  } else {
    while (!Meets(best) && rank < max_rank) {
      rank = std::min(max_rank, RoundRank(GrowRank(rank, Excess(best))));
      SLUICE_ASSIGN_OR_RETURN(best, resized(rank));
    }
  }
  const bool meets = Meets(best);
  return TrainedPredictor{std::move(best.predictor), best.quality, meets};
}

}  // namespace

uint32_t LargestRank(uint32_t d_model, uint32_t d_ff, uint64_t max_bytes) {
  const uint64_t bytes_of_step = PackedPredictor::BytesFor(d_model, kRankStep, d_ff);
  const uint64_t n_steps = std::min<uint64_t>(max_bytes / bytes_of_step, kMaxRank / kRankStep);
  return static_cast<uint32_t>(std::max<uint64_t>(n_steps, 1)) * kRankStep;
}

absl::StatusOr<TrainedPredictor> TrainPredictor(const TrainingSamples& train,
                                                const TrainingSamples& validation,
                                                const TrainerOptions& options,
                                                DenseProducts& products) {
  if (train.n_active() == 0 || validation.n_active() == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "there is nothing to learn from: %u samples with %u active neurons to train on, %u with %u "
        "to judge by",
        train.size(), train.n_active(), validation.size(), validation.n_active()));
  }
  return Training(train, validation, options, products).Run();
}

}  // namespace sluice
