#include "runtime/neuron_predictor.h"

#include <algorithm>

#include "io/clock.h"
#include "io/status.h"

namespace sluice {
namespace {

MatrixRole Fc1(PredictedPart part) {
  return part == PredictedPart::kHeads ? MatrixRole::kHeadPredictor1 : MatrixRole::kPredictor1;
}
MatrixRole Fc2(PredictedPart part) {
  return part == PredictedPart::kHeads ? MatrixRole::kHeadPredictor2 : MatrixRole::kPredictor2;
}

uint32_t NumOutputs(const SluiceFile& file, PredictedPart part) {
  return part == PredictedPart::kHeads ? file.config().n_heads : file.config().d_ff;
}

uint32_t MaxRank(const SluiceFile& file, PredictedPart part) {
  return std::ranges::max(file.directory().ranks(Fc1(part)));
}

}  // namespace

NeuronPredictor::NeuronPredictor(const SluiceFile& file, PredictedPart part,
                                 const KernelTable& kernels, ThreadPool& pool, WeightStore& store)
    : file_(file),
      record_(part == PredictedPart::kHeads ? file.head_predictor()->use : *file.predictor()),
      fc1_(Fc1(part)),
      fc2_(Fc2(part)),
      kernels_(kernels),
      pool_(pool),
      store_(store),
      input_(1, file.config().d_model),
      hidden_(1, MaxRank(file, part)),
      inner_(MaxRank(file, part)),
      logits_(NumOutputs(file, part)) {}

size_t NeuronPredictor::ScratchBytes(const SluiceFile& file, PredictedPart part) {
  const uint32_t rank = MaxRank(file, part);
  return Activations::Bytes(1, file.config().d_model) + Activations::Bytes(1, rank) +
         (rank + size_t{NumOutputs(file, part)}) * sizeof(float);
}

absl::StatusOr<uint32_t> NeuronPredictor::Predict(uint32_t layer, const float* x,
                                                  std::span<uint32_t> active) {
  const uint64_t begin_ns = NowNs(), stall_ns = store_.stall_ns();
  const uint32_t fc1 = file_.MatrixIndex(fc1_, layer);
  const uint32_t rank = file_.matrix(fc1).rows;
  const auto n_outputs = static_cast<uint32_t>(logits_.size());
  const auto in = input_.Prepare(kernels_, pool_, x, 1, file_.config().d_model);
  SLUICE_RETURN_IF_ERROR(store_.Multiply(fc1, in, inner_.data(), rank));
  for (float& h : std::span(inner_).first(rank)) h = std::max(h, 0.0f);
  const auto hidden = hidden_.Prepare(kernels_, pool_, inner_.data(), 1, rank);
  SLUICE_RETURN_IF_ERROR(
      store_.Multiply(file_.MatrixIndex(fc2_, layer), hidden, logits_.data(), n_outputs));
  const float threshold = record_.thresholds[layer];
  uint32_t n = 0;
  for (uint32_t p = 0; p < n_outputs; ++p) {
    active[n] = p;
    n += !(logits_[p] < threshold);
  }
  busy_ns_ += NowNs() - begin_ns - (store_.stall_ns() - stall_ns);
  return n;
}

}  // namespace sluice
