#include "runtime/neuron_predictor.h"

#include <algorithm>

#include "io/status.h"

namespace sluice {
namespace {

uint32_t MaxRank(const SluiceFile& file) {
  uint32_t rank = 0;
  for (const MatrixEntry& m : file.directory().matrices) {
    if (m.role == MatrixRole::kPredictor1) rank = std::max(rank, m.rows);
  }
  return rank;
}

}  // namespace

NeuronPredictor::NeuronPredictor(const SluiceFile& file, const KernelTable& kernels,
                                 ThreadPool& pool, WeightStore& store)
    : file_(file),
      kernels_(kernels),
      pool_(pool),
      store_(store),
      input_(1, file.config().d_model),
      hidden_(1, MaxRank(file)),
      inner_(MaxRank(file)),
      logits_(file.config().d_ff) {}

size_t NeuronPredictor::ScratchBytes(const SluiceFile& file) {
  const uint32_t rank = MaxRank(file);
  return Activations::Bytes(1, file.config().d_model) + Activations::Bytes(1, rank) +
         (rank + size_t{file.config().d_ff}) * sizeof(float);
}

absl::StatusOr<uint32_t> NeuronPredictor::Predict(uint32_t layer, const float* x,
                                                  std::span<uint32_t> active) {
  const uint32_t fc1 = file_.MatrixIndex(MatrixRole::kPredictor1, layer);
  const uint32_t rank = file_.matrix(fc1).rows, d_ff = file_.config().d_ff;
  const auto in = input_.Prepare(kernels_, pool_, x, 1, file_.config().d_model);
  SLUICE_RETURN_IF_ERROR(store_.Multiply(fc1, in, inner_.data(), rank));
  for (float& h : std::span(inner_).first(rank)) h = std::max(h, 0.0f);
  const auto hidden = hidden_.Prepare(kernels_, pool_, inner_.data(), 1, rank);
  SLUICE_RETURN_IF_ERROR(store_.Multiply(file_.MatrixIndex(MatrixRole::kPredictor2, layer), hidden,
                                         logits_.data(), d_ff));
  const float threshold = file_.predictor()->thresholds[layer];
  uint32_t n = 0;
  for (uint32_t p = 0; p < d_ff; ++p) {
    active[n] = p;
    n += !(logits_[p] < threshold);
  }
  return n;
}

}  // namespace sluice
