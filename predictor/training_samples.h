// What a predictor of one layer is trained on, or judged by: for each of many tokens the input of
// the predictor and the neurons that were active.
#ifndef SLUICE_PREDICTOR_TRAINING_SAMPLES_H_
#define SLUICE_PREDICTOR_TRAINING_SAMPLES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

// Inputs are kept as half floats, active sets as bits. Thread-compatible.
class TrainingSamples {
 public:
  TrainingSamples(uint32_t d_model, uint32_t d_ff);

  // `input` has d_model floats; `active` are neuron ids below d_ff.
  void Add(std::span<const float> input, std::span<const uint32_t> active);
  void Reserve(size_t n);

  uint32_t d_model() const { return d_model_; }
  uint32_t d_ff() const { return d_ff_; }
  size_t size() const { return n_; }
  uint64_t n_active() const { return n_active_; }  // of all samples
  double density() const;                          // share of the neurons that are active

  void GetInput(size_t sample, std::span<float> input) const;
  // Bit i of word i / 64 is set if neuron i is active.
  const uint64_t* labels(size_t sample) const { return &labels_[sample * words_]; }

  static size_t BytesOfOne(uint32_t d_model, uint32_t d_ff);

 private:
  uint32_t d_model_, d_ff_;
  size_t words_;  // of a set
  size_t n_ = 0;
  uint64_t n_active_ = 0;
  std::vector<uint16_t> inputs_;
  std::vector<uint64_t> labels_;
};

}  // namespace sluice

#endif  // SLUICE_PREDICTOR_TRAINING_SAMPLES_H_
