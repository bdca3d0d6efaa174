#include "predictor/packed_predictor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>

#include "layout/weight_type.h"

namespace sluice {
namespace {

std::vector<std::byte> Pack(std::span<const float> weights, uint32_t width) {
  const size_t bytes = RowBytes(WeightType::kQ8, width), n_rows = weights.size() / width;
  std::vector<std::byte> rows(n_rows * bytes);
  for (size_t r = 0; r < n_rows; ++r) {
    EncodeRow(WeightType::kQ8, weights.subspan(r * width, width),
              std::span(rows).subspan(r * bytes, bytes));
  }
  return rows;
}

std::vector<float> UnpackRows(std::span<const std::byte> rows, uint32_t width) {
  const size_t bytes = RowBytes(WeightType::kQ8, width), n_rows = rows.size() / bytes;
  std::vector<float> weights(n_rows * width);
  for (size_t r = 0; r < n_rows; ++r) {
    DecodeRow(WeightType::kQ8, rows.subspan(r * bytes, bytes),
              std::span(weights).subspan(r * width, width));
  }
  return weights;
}

// Vectors of one length, quantised.
class QuantisedVectors {
 public:
  QuantisedVectors(size_t n, uint32_t length)
      : length_(length),
        quants_(n * length),
        scales_(n * length / kQuantBlock),
        sums_(n * length / kQuantBlock),
        views_(n) {}

  std::span<const VectorView> Prepare(const KernelTable& kernels, std::span<const float> vectors) {
    const size_t n = vectors.size() / length_, blocks = length_ / kQuantBlock;
    for (size_t v = 0; v < n; ++v) {
      int8_t* q = &quants_[v * length_];
      float* scale = &scales_[v * blocks];
      int32_t* sums = &sums_[v * blocks];
      kernels.quantize(&vectors[v * length_], length_, q, scale, sums);
      views_[v] = {.f = nullptr, .q = q, .scale = scale, .block_sums = sums};
    }
    return std::span(views_).first(n);
  }

 private:
  uint32_t length_;
  std::vector<int8_t> quants_;
  std::vector<float> scales_;
  std::vector<int32_t> sums_;
  std::vector<VectorView> views_;
};

void Dot(const KernelTable& kernels, std::span<const std::byte> rows, uint32_t width,
         std::span<const VectorView> x, float* out) {
  RowSet set;
  set.base = rows.data();
  set.stride = RowBytes(WeightType::kQ8, width);
  set.n_rows = rows.size() / set.stride;
  kernels.dot[static_cast<size_t>(WeightType::kQ8)](set, width, x.data(), x.size(), out,
                                                    set.n_rows);
}

bool IsActive(const uint64_t* labels, size_t i) { return (labels[i / 64] >> (i % 64) & 1) != 0; }

// How many of `n` may be missed.
uint64_t Allowance(double recall, uint64_t n) {
  const double needed = std::ceil(recall * static_cast<double>(n) - 1e-9);
  return n - std::min(n, static_cast<uint64_t>(std::max(needed, 0.0)));
}

}  // namespace

PackedPredictor::PackedPredictor(const LowRankMlp& mlp)
    : d_model_(mlp.d_in),
      rank_(mlp.rank),
      d_ff_(mlp.d_out),
      fc1_(Pack(mlp.fc1, mlp.d_in)),
      fc2_(Pack(mlp.fc2, mlp.rank)) {}

PackedPredictor::PackedPredictor(const LayerPredictor& p)
    : d_model_(static_cast<uint32_t>(p.fc1.size() / p.rank)),
      rank_(p.rank),
      d_ff_(static_cast<uint32_t>(p.fc2.size() / p.rank)),
      fc1_(Pack(p.fc1, d_model_)),
      fc2_(Pack(p.fc2, rank_)) {}

size_t PackedPredictor::BytesFor(uint32_t d_model, uint32_t rank, uint32_t d_ff) {
  return rank * RowBytes(WeightType::kQ8, d_model) + d_ff * RowBytes(WeightType::kQ8, rank);
}

LayerPredictor PackedPredictor::Unpack(float threshold) const {
  return {rank_, UnpackRows(fc1_, d_model_), UnpackRows(fc2_, rank_), threshold};
}

void PackedPredictor::ForEach(const TrainingSamples& samples, DenseProducts& products,
                              const Visit& visit) const {
  constexpr size_t kAtOnce = 64;
  products.parallel()(samples.size(), kAtOnce, [&](size_t begin, size_t end) {
    const KernelTable& kernels = products.kernels();
    std::vector<float> inputs(kAtOnce * d_model_), hidden(kAtOnce * rank_);
    std::vector<float> logits(kAtOnce * d_ff_);
    QuantisedVectors x(kAtOnce, d_model_), h(kAtOnce, rank_);
    for (size_t first = begin; first < end; first += kAtOnce) {
      const size_t n = std::min(kAtOnce, end - first);
      for (size_t i = 0; i < n; ++i) {
        samples.GetInput(first + i, std::span(inputs).subspan(i * d_model_, d_model_));
      }
      Dot(kernels, fc1_, d_model_, x.Prepare(kernels, std::span(inputs).first(n * d_model_)),
          hidden.data());
      for (float& v : hidden) v = std::max(v, 0.0f);
      Dot(kernels, fc2_, rank_, h.Prepare(kernels, std::span(hidden).first(n * rank_)),
          logits.data());
      for (size_t i = 0; i < n; ++i) {
        visit(first + i, std::span<const float>(logits).subspan(i * d_ff_, d_ff_));
      }
    }
  });
}

float PackedPredictor::ThresholdFor(double recall, const TrainingSamples& samples,
                                    DenseProducts& products) const {
  if (samples.n_active() == 0) return std::numeric_limits<float>::max();
  std::mutex mutex;
  std::vector<float> found;  // logits of active neurons; their order does not matter
  found.reserve(samples.n_active());
  ForEach(samples, products, [&](size_t sample, std::span<const float> logits) {
    const uint64_t* labels = samples.labels(sample);
    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < logits.size(); ++i) {
      if (IsActive(labels, i)) found.push_back(logits[i]);
    }
  });
  const uint64_t missed = std::min<uint64_t>(Allowance(recall, found.size()), found.size() - 1);
  const auto at = found.begin() + static_cast<ptrdiff_t>(missed);
  std::nth_element(found.begin(), at, found.end());
  return *at;
}

double PackedPredictor::RecallError(float threshold, const TrainingSamples& samples,
                                    DenseProducts& products) const {
  constexpr size_t kMostStretches = 32, kLeastTokens = 64;  // neighbouring tokens are much alike
  const size_t n_stretches = std::min(kMostStretches, samples.size() / kLeastTokens);
  if (n_stretches < 2 || samples.n_active() == 0) return 0;
  struct Stretch {
    uint64_t n_active = 0, n_hits = 0;
  };
  std::vector<Stretch> stretches(n_stretches);
  std::mutex mutex;
  ForEach(samples, products, [&](size_t sample, std::span<const float> logits) {
    const uint64_t* labels = samples.labels(sample);
    Stretch one;
    for (size_t i = 0; i < logits.size(); ++i) {
      one.n_active += IsActive(labels, i);
      one.n_hits += IsActive(labels, i) && logits[i] >= threshold;
    }
    const std::lock_guard lock(mutex);
    Stretch& s = stretches[sample * n_stretches / samples.size()];
    s.n_active += one.n_active;
    s.n_hits += one.n_hits;
  });
  // Of a ratio of two sums over the stretches (Cochran, Sampling Techniques, sec. 2.11).
  double hits = 0, squares = 0;
  for (const Stretch& s : stretches) hits += static_cast<double>(s.n_hits);
  const auto active = static_cast<double>(samples.n_active());
  for (const Stretch& s : stretches) {
    const double off =
        static_cast<double>(s.n_hits) - hits / active * static_cast<double>(s.n_active);
    squares += off * off;
  }
  const auto n = static_cast<double>(n_stretches);
  return std::sqrt(squares * n / (n - 1)) / active;
}

uint32_t PackedPredictor::TopKFor(double recall, const TrainingSamples& samples,
                                  DenseProducts& products) const {
  std::mutex mutex;
  std::vector<uint64_t> at_place(d_ff_);  // active neurons by their place among the token's logits
  ForEach(samples, products, [&](size_t sample, std::span<const float> logits) {
    const uint64_t* labels = samples.labels(sample);
    std::vector<uint32_t> order(d_ff_);
    for (uint32_t i = 0; i < d_ff_; ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    });
    const std::lock_guard lock(mutex);
    for (uint32_t place = 0; place < d_ff_; ++place) {
      at_place[place] += IsActive(labels, order[place]);
    }
  });
  uint64_t missed = samples.n_active();
  uint32_t k = 0;
  while (missed > Allowance(recall, samples.n_active())) missed -= at_place[k++];
  return k;
}

PredictorQuality PackedPredictor::Judge(float threshold, const TrainingSamples& samples,
                                        DenseProducts& products) const {
  std::mutex mutex;
  PredictorQuality q;
  q.n_neurons = uint64_t{samples.size()} * d_ff_;
  q.n_active = samples.n_active();
  ForEach(samples, products, [&](size_t sample, std::span<const float> logits) {
    const uint64_t* labels = samples.labels(sample);
    uint64_t n_predicted = 0, n_hits = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const bool predicted = logits[i] >= threshold;
      n_predicted += predicted;
      n_hits += predicted && IsActive(labels, i);
    }
    const std::lock_guard lock(mutex);
    q.n_predicted += n_predicted;
    q.n_hits += n_hits;
  });
  return q;
}

}  // namespace sluice
