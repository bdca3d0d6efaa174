// A decoder of the Llama family or one of its relatives as the papers write it: float weights, sums
// in double, every key and value kept as a float, one plain loop for each step. Slow and obvious,
// and it shares nothing with runtime/: what the decoder's logits are compared with.
#ifndef SLUICE_TESTS_REFERENCE_DECODER_H_
#define SLUICE_TESTS_REFERENCE_DECODER_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/model_source.h"
#include "layout/weight_type.h"

namespace sluice {

// Thread-compatible.
class ReferenceDecoder {
 public:
  // Reads and decodes all tensors. NotFound naming one that is missing.
  static absl::StatusOr<ReferenceDecoder> Load(const ModelSource& source);

  // Rounds all matrices to what a `.sluice` file of that type holds (down matrices by column), and
  // from now on keys and values to half floats, so that the difference to the decoder's logits is
  // that of the arithmetic alone.
  void RoundLikeDecoder(WeightType type);

  // By layer: an activation of a smaller magnitude counts as zero from now on.
  void SetThresholds(std::span<const float> thresholds) {
    for (size_t l = 0; l < layers_.size(); ++l) layers_[l].threshold = thresholds[l];
  }

  // [tokens x vocab_size]: the logits after each token.
  std::vector<std::vector<float>> Logits(std::span<const int32_t> tokens) const;

  // For the last call of Logits: the share of FFN neurons, over layers and tokens, whose activation
  // was zero.
  double sparsity() const { return n_neurons_ > 0 ? n_zero_ / n_neurons_ : 0; }

 private:
  using Vector = std::vector<float>;

  struct Matrix {
    size_t rows = 0, columns = 0;
    Vector w;  // row after row
    Vector Times(const Vector& x) const;
  };
  struct Norm {
    Vector weight, bias;  // no bias: an RMS norm, else a layer norm
  };
  struct Layer {
    Norm attention_norm, ffn_norm;
    Matrix q, k, v, o;
    Vector q_bias, k_bias, v_bias, o_bias;  // empty where the model has none
    Matrix gate, up, down;                  // gate of no rows: the FFN has none
    Vector up_bias, down_bias;
    float threshold = 0;
  };

  Vector Normed(const Vector& x, const Norm& norm) const;
  void Rotate(size_t position, Vector& heads) const;
  float Activate(float gate) const;
  // Attention of the last of `keys`; keys[p] and values[p] are those of position p.
  Vector Attend(const Vector& q, const std::vector<Vector>& keys,
                const std::vector<Vector>& values) const;
  Vector Ffn(const Layer& layer, const Vector& x) const;
  void RunLayer(const Layer& layer, std::vector<Vector>& x) const;

  ModelConfig config_;
  Matrix embedding_, head_;
  Matrix positions_;  // of no rows: none were learned
  std::vector<Layer> layers_;
  Norm output_norm_;
  Vector rope_divisors_;
  bool half_kv_ = false;
  mutable double n_zero_ = 0, n_neurons_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_TESTS_REFERENCE_DECODER_H_
