// Samples whose labels come from a known network, so that a trainer can find it again.
#ifndef SLUICE_TESTS_TEACHER_SAMPLES_H_
#define SLUICE_TESTS_TEACHER_SAMPLES_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "layout/counter_rng.h"
#include "predictor/training_samples.h"

namespace sluice {

// Of an FFN whose gate has a low rank: gate = out * (in * x) for inputs x of normal numbers and one
// constant, against which all rows of `out` lean, so that a neuron is active for few inputs.
struct Teacher {
  uint32_t d_model = 64, d_ff = 96, rank = 16;
  float lean = 1.5f;  // how far gate values lie below zero, in their deviations
  uint64_t seed = 3;

  TrainingSamples Make(size_t n, uint64_t stream) const {
    std::vector<float> in(size_t{rank} * d_model), out(size_t{d_ff} * rank);
    CounterRng weights(seed, 0, 0);
    for (float& w : in) w = weights.Normal() / std::sqrt(static_cast<float>(d_model));
    for (float& w : out) w = weights.Normal() / std::sqrt(static_cast<float>(rank));
    TrainingSamples samples(d_model, d_ff);
    CounterRng inputs(seed, 1, stream);
    std::vector<float> x(d_model), h(rank);
    for (size_t s = 0; s < n; ++s) {
      for (float& v : x) v = inputs.Normal();
      x[0] = 1.0f;
      for (uint32_t j = 0; j < rank; ++j) {
        h[j] = 0;
        for (uint32_t k = 1; k < d_model; ++k) h[j] += in[size_t{j} * d_model + k] * x[k];
      }
      std::vector<uint32_t> active;
      for (uint32_t i = 0; i < d_ff; ++i) {
        float gate = -lean;
        for (uint32_t j = 0; j < rank; ++j) gate += out[size_t{i} * rank + j] * h[j];
        if (gate > 0) active.push_back(i);
      }
      samples.Add(x, active);
    }
    return samples;
  }
};

}  // namespace sluice

#endif  // SLUICE_TESTS_TEACHER_SAMPLES_H_
