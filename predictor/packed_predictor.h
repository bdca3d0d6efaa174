// A predictor as a `.sluice` file holds it, rows as q8, and how good it is: judged by the logits
// that the decoder will compute, quantised input and hidden units included.
#ifndef SLUICE_PREDICTOR_PACKED_PREDICTOR_H_
#define SLUICE_PREDICTOR_PACKED_PREDICTOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "predictor/dense_products.h"
#include "predictor/layer_predictor.h"
#include "predictor/low_rank_mlp.h"
#include "predictor/training_samples.h"

namespace sluice {

struct PredictorQuality {
  uint64_t n_neurons = 0;  // of all tokens
  uint64_t n_active = 0, n_predicted = 0, n_hits = 0;

  double recall() const { return Share(n_hits, n_active); }
  double precision() const { return Share(n_hits, n_predicted); }
  double true_density() const { return Share(n_active, n_neurons); }
  double density() const { return Share(n_predicted, n_neurons); }  // predicted

 private:
  static double Share(uint64_t part, uint64_t of) {
    return of == 0 ? 1.0 : static_cast<double>(part) / static_cast<double>(of);
  }
};

// Immutable. Members that take DenseProducts keep no scratch: one call at a time on each of those.
class PackedPredictor {
 public:
  // d_in and rank are multiples of 32.
  explicit PackedPredictor(const LowRankMlp& mlp);
  explicit PackedPredictor(const LayerPredictor& predictor);
  // Of rows that are packed already; their sizes are right.
  PackedPredictor(uint32_t d_model, uint32_t rank, uint32_t d_ff, std::span<const std::byte> fc1,
                  std::span<const std::byte> fc2)
      : d_model_(d_model),
        rank_(rank),
        d_ff_(d_ff),
        fc1_(fc1.begin(), fc1.end()),
        fc2_(fc2.begin(), fc2.end()) {}

  uint32_t d_model() const { return d_model_; }
  uint32_t d_ff() const { return d_ff_; }
  std::span<const std::byte> fc1_rows() const { return fc1_; }
  std::span<const std::byte> fc2_rows() const { return fc2_; }

  static size_t BytesFor(uint32_t d_model, uint32_t rank, uint32_t d_ff);
  // The weights that the packed rows stand for; packing them again gives the same rows.
  LayerPredictor Unpack(float threshold) const;

  // The highest threshold that finds at least this share of all active neurons.
  float ThresholdFor(double recall, const TrainingSamples& samples, DenseProducts& products) const;
  // How far the recall at a threshold may be off for other text of the kind: the standard error of
  // its mean over stretches of the samples. 0 if there are too few for two stretches.
  double RecallError(float threshold, const TrainingSamples& samples,
                     DenseProducts& products) const;
  // The least k such that the k neurons of highest logit of each token have that share.
  uint32_t TopKFor(double recall, const TrainingSamples& samples, DenseProducts& products) const;
  PredictorQuality Judge(float threshold, const TrainingSamples& samples,
                         DenseProducts& products) const;

 private:
  using Visit = std::function<void(size_t sample, std::span<const float> logits)>;
  void ForEach(const TrainingSamples& samples, DenseProducts& products, const Visit& visit) const;

  uint32_t d_model_, rank_, d_ff_;
  std::vector<std::byte> fc1_, fc2_;
};

}  // namespace sluice

#endif  // SLUICE_PREDICTOR_PACKED_PREDICTOR_H_
