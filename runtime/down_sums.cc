#include "runtime/down_sums.h"

namespace sluice {

DownSums::DownSums(uint32_t d_ff, uint32_t d_model)
    : sections_(d_ff),
      d_model_(d_model),
      sums_(size_t{sections_.count()} * d_model),
      used_(sections_.count()) {}

size_t DownSums::Bytes(uint32_t d_ff, uint32_t d_model) {
  return DownSections(d_ff).count() * (d_model * sizeof(float) + 1);
}

float* DownSums::Section(uint32_t section) {
  float* sum = &sums_[size_t{section} * d_model_];
  if (!used_[section]) std::fill_n(sum, d_model_, 0.0f);
  used_[section] = true;
  return sum;
}

void DownSums::AddTo(ThreadPool& pool, float* y) const {
  const size_t n_used = static_cast<size_t>(std::count(used_.begin(), used_.end(), true));
  const size_t grain = WorthwhileGrain((n_used + 1) * sizeof(float), 64);
  pool.Run(d_model_, grain, [&](size_t begin, size_t end, int) {
    for (size_t s = 0; s < used_.size(); ++s) {
      if (!used_[s]) continue;
      const float* sum = &sums_[s * d_model_];
      for (size_t j = begin; j < end; ++j) y[j] += sum[j];
    }
  });
}

}  // namespace sluice
