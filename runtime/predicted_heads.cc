#include "runtime/predicted_heads.h"

#include <algorithm>
#include <utility>

#include "io/status.h"
#include "runtime/tensor_ops.h"

namespace sluice {
namespace {

constexpr uint32_t kAtOnce = 32;  // positions of a head that are made up together

// Room for K of so many positions of a head, or of all heads of a position.
size_t KeyScratch(const ModelConfig& c) {
  return std::max(size_t{kAtOnce} * c.head_dim, size_t{c.kv_dim()});
}

}  // namespace

PredictedHeads::PredictedHeads(const SluiceFile& file, KeptInputs kept, const KernelTable& kernels,
                               ThreadPool& pool, WeightStore& store, Attention& attention)
    : file_(file),
      config_(file.config()),
      kept_(std::move(kept)),
      pool_(pool),
      store_(store),
      attention_(attention),
      predictor_(file, PredictedPart::kHeads, kernels, pool, store),
      chosen_(config_.n_heads),
      needed_(config_.n_kv_heads),
      previous_(config_.d_model),
      n_made_(size_t{config_.n_layers} * config_.n_kv_heads),
      views_(kAtOnce),
      k_(KeyScratch(config_)),
      v_(KeyScratch(config_)) {}

size_t PredictedHeads::ScratchBytes(const SluiceFile& file) {
  const ModelConfig& c = file.config();
  return NeuronPredictor::ScratchBytes(file, PredictedPart::kHeads) +
         (c.n_heads + (size_t{c.n_layers} + 1) * c.n_kv_heads) * sizeof(uint32_t) +
         (c.d_model + 2 * KeyScratch(c)) * sizeof(float) + kAtOnce * sizeof(VectorView);
}

absl::StatusOr<std::unique_ptr<PredictedHeads>> PredictedHeads::Create(
    const SluiceFile& file, uint32_t context, const KernelTable& kernels, ThreadPool& pool,
    WeightStore& store, Attention& attention) {
  SLUICE_ASSIGN_OR_RETURN(KeptInputs kept, KeptInputs::Create(file, context));
  return std::unique_ptr<PredictedHeads>(
      new PredictedHeads(file, std::move(kept), kernels, pool, store, attention));
}

bool PredictedHeads::IsResident(uint32_t layer) const {
  return !store_.streamed(file_.MatrixIndex(MatrixRole::kQ, layer)) &&
         !store_.streamed(file_.MatrixIndex(MatrixRole::kK, layer)) &&
         !store_.streamed(file_.MatrixIndex(MatrixRole::kV, layer));
}

absl::StatusOr<std::span<const uint32_t>> PredictedHeads::Choose(uint32_t layer,
                                                                 const float* residual,
                                                                 const float* normed) {
  const bool looks_back = predictor_.input() == PredictorInput::kPrevious;
  const float* input = residual;
  if (predictor_.input() == PredictorInput::kNormed) input = normed;
  if (looks_back && layer > 0) input = previous_.data();
  SLUICE_ASSIGN_OR_RETURN(const uint32_t n, predictor_.Predict(layer, input, chosen_));
  if (looks_back) std::copy_n(residual, config_.d_model, previous_.begin());
  stats_.heads += config_.n_heads;
  stats_.chosen += n;
  return std::span<const uint32_t>(chosen_).first(n);
}

// After a Rewind, or a pass that failed, what was made for later positions is of other tokens.
void PredictedHeads::ForgetFrom(uint32_t layer, uint32_t position) {
  for (uint32_t h = 0; h < config_.n_kv_heads; ++h) {
    n_made(layer, h) = std::min(n_made(layer, h), position);
  }
}

absl::Status PredictedHeads::MakeNeeded(uint32_t layer, uint32_t position,
                                        std::span<const uint32_t> chosen, const VectorView& x) {
  ForgetFrom(layer, position);
  uint32_t n = 0;
  for (const uint32_t head : chosen) {
    const uint32_t kv_head = head / (config_.n_heads / config_.n_kv_heads);
    if (n == 0 || needed_[n - 1] != kv_head) needed_[n++] = kv_head;
  }
  if (n < config_.n_kv_heads) kept_.Keep(layer, position, x);
  const auto needed = std::span<const uint32_t>(needed_).first(n);
  for (const uint32_t h : needed) SLUICE_RETURN_IF_ERROR(MakeUp(layer, h, position));
  SLUICE_RETURN_IF_ERROR(Multiply(layer, needed, {&x, 1}));
  for (uint32_t i = 0; i < n; ++i) {
    const size_t at = size_t{i} * config_.head_dim;
    attention_.StoreHead(layer, needed[i], position, &k_[at], &v_[at]);
    n_made(layer, needed[i]) = position + 1;
  }
  return absl::OkStatus();
}

absl::Status PredictedHeads::MakeUpAll(uint32_t layer, uint32_t first) {
  ForgetFrom(layer, first);
  for (uint32_t h = 0; h < config_.n_kv_heads; ++h) {
    SLUICE_RETURN_IF_ERROR(MakeUp(layer, h, first));
  }
  return absl::OkStatus();
}

void PredictedHeads::NoteAllMade(uint32_t layer, uint32_t end) {
  for (uint32_t h = 0; h < config_.n_kv_heads; ++h) n_made(layer, h) = end;
}

// K and V of the positions before `end` that lack them.
absl::Status PredictedHeads::MakeUp(uint32_t layer, uint32_t kv_head, uint32_t end) {
  const uint32_t d = config_.head_dim;
  for (uint32_t& made = n_made(layer, kv_head); made < end;) {
    const uint32_t first = made, n = std::min(kAtOnce, end - made);
    for (uint32_t i = 0; i < n; ++i) views_[i] = kept_.View(layer, first + i);
    SLUICE_RETURN_IF_ERROR(Multiply(layer, {&kv_head, 1}, std::span(views_).first(n)));
    pool_.Run(n, WorthwhileGrain(4 * d * sizeof(float), 1), [&](size_t begin, size_t stop, int) {
      for (size_t i = begin; i < stop; ++i) {
        attention_.StoreHead(layer, kv_head, first + static_cast<uint32_t>(i), &k_[i * d],
                             &v_[i * d]);
      }
    });
    made += n;
    stats_.made_later += n;
  }
  return absl::OkStatus();
}

// k_ and v_ [n x heads * head_dim], with the biases that the model has.
absl::Status PredictedHeads::Multiply(uint32_t layer, std::span<const uint32_t> kv_heads,
                                      std::span<const VectorView> x) {
  const uint32_t d = config_.head_dim;
  const size_t width = kv_heads.size() * d;
  SLUICE_RETURN_IF_ERROR(store_.MultiplyGroups(file_.MatrixIndex(MatrixRole::kK, layer), kv_heads,
                                               d, x, k_.data(), width));
  SLUICE_RETURN_IF_ERROR(store_.MultiplyGroups(file_.MatrixIndex(MatrixRole::kV, layer), kv_heads,
                                               d, x, v_.data(), width));
  for (size_t t = 0; t < x.size(); ++t) {
    AddToGroups(file_.k_bias(layer), kv_heads, d, &k_[t * width]);
    AddToGroups(file_.v_bias(layer), kv_heads, d, &v_[t * width]);
  }
  return absl::OkStatus();
}

}  // namespace sluice
