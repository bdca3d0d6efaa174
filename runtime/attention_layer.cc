#include "runtime/attention_layer.h"

#include <algorithm>
#include <numeric>

#include "io/status.h"
#include "runtime/tensor_ops.h"

namespace sluice {

AttentionLayer::AttentionLayer(const SluiceFile& file, uint32_t chunk, const KernelTable& kernels,
                               ThreadPool& pool, WeightStore& store, Activations& activations,
                               FfnObserver* observer)
    : file_(file),
      config_(file.config()),
      kernels_(kernels),
      pool_(pool),
      store_(store),
      activations_(activations),
      observer_(observer),
      all_heads_(config_.n_heads),
      q_(size_t{chunk} * config_.q_dim()),
      k_(size_t{chunk} * config_.kv_dim()),
      v_(k_.size()),
      attended_(q_.size()) {
  std::iota(all_heads_.begin(), all_heads_.end(), 0u);
}

size_t AttentionLayer::ScratchBytes(const ModelConfig& config, uint32_t chunk) {
  return chunk * 2 * (size_t{config.q_dim()} + config.kv_dim()) * sizeof(float) +
         config.n_heads * sizeof(uint32_t);
}

absl::StatusOr<std::unique_ptr<AttentionLayer>> AttentionLayer::Create(
    const SluiceFile& file, const MemoryPlan& plan, const KernelTable& kernels, ThreadPool& pool,
    WeightStore& store, Activations& activations, FfnObserver* observer) {
  auto a = std::unique_ptr<AttentionLayer>(
      new AttentionLayer(file, plan.chunk, kernels, pool, store, activations, observer));
  const bool predicts = plan.request.predicts_heads();
  SLUICE_ASSIGN_OR_RETURN(
      a->attention_, Attention::Create(file.config(), {plan.request.context, plan.chunk, predicts},
                                       file.rope_divisors(), kernels, pool));
  if (predicts) {
    SLUICE_ASSIGN_OR_RETURN(a->heads_, PredictedHeads::Create(file, plan.request.context, kernels,
                                                              pool, store, *a->attention_));
  }
  return a;
}

void AttentionLayer::BeginPass(uint32_t first, uint32_t n, bool predicts) {
  first_ = first;
  n_ = n;
  predicts_ = predicts && heads_ != nullptr;
  attention_->SetPositions(first, n);
}

absl::Status AttentionLayer::Run(uint32_t layer, const AttentionInput& in, float* out) {
  SLUICE_RETURN_IF_ERROR(predicts_ ? AttendWithChosen(layer, in) : AttendWithAll(layer, in));
  const auto attended =
      activations_.Prepare(kernels_, pool_, attended_.data(), n_, config_.q_dim());
  SLUICE_RETURN_IF_ERROR(Multiply(MatrixRole::kO, layer, attended, out, config_.d_model));
  AddToRows(file_.o_bias(layer), out, n_);
  return absl::OkStatus();
}

absl::Status AttentionLayer::Multiply(MatrixRole role, uint32_t layer,
                                      std::span<const VectorView> x, float* out, size_t width) {
  return store_.Multiply(file_.MatrixIndex(role, layer), x, out, width);
}

// q_, and K and V of all positions up to the last of the pass.
absl::Status AttentionLayer::MakeAll(uint32_t layer, std::span<const VectorView> x) {
  if (heads_ != nullptr) SLUICE_RETURN_IF_ERROR(heads_->MakeUpAll(layer, first_));
  SLUICE_RETURN_IF_ERROR(Multiply(MatrixRole::kQ, layer, x, q_.data(), config_.q_dim()));
  SLUICE_RETURN_IF_ERROR(Multiply(MatrixRole::kK, layer, x, k_.data(), config_.kv_dim()));
  SLUICE_RETURN_IF_ERROR(Multiply(MatrixRole::kV, layer, x, v_.data(), config_.kv_dim()));
  AddToRows(file_.q_bias(layer), q_.data(), n_);
  AddToRows(file_.k_bias(layer), k_.data(), n_);
  AddToRows(file_.v_bias(layer), v_.data(), n_);
  attention_->Store(layer, k_.data(), v_.data());
  if (heads_ != nullptr) heads_->NoteAllMade(layer, first_ + n_);
  return absl::OkStatus();
}

absl::Status AttentionLayer::AttendWithAll(uint32_t layer, const AttentionInput& in) {
  SLUICE_RETURN_IF_ERROR(MakeAll(layer, in.x));
  attention_->Attend(layer, all_heads_, q_.data(), attended_.data());
  if (observer_ != nullptr) Show(layer, in, {});
  return absl::OkStatus();
}

absl::Status AttentionLayer::AttendWithChosen(uint32_t layer, const AttentionInput& in) {
  SLUICE_ASSIGN_OR_RETURN(const std::span<const uint32_t> chosen,
                          heads_->Choose(layer, in.residual.data(), in.normed.data()));
  const uint32_t d = config_.head_dim;
  if (observer_ != nullptr) {  // who looks wants to see what the others would have given
    SLUICE_RETURN_IF_ERROR(MakeAll(layer, in.x));
    attention_->Attend(layer, all_heads_, q_.data(), attended_.data());
    Show(layer, in, chosen);
    for (const uint32_t head : all_heads_) {
      if (std::binary_search(chosen.begin(), chosen.end(), head)) continue;
      std::fill_n(&attended_[size_t{head} * d], d, 0.0f);
    }
    return absl::OkStatus();
  }
  if (heads_->IsResident(layer)) {
    SLUICE_RETURN_IF_ERROR(heads_->MakeNeeded(layer, first_, chosen, in.x[0]));
    SLUICE_RETURN_IF_ERROR(store_.MultiplyGroups(file_.MatrixIndex(MatrixRole::kQ, layer), chosen,
                                                 d, in.x, q_.data(), chosen.size() * d));
    AddToGroups(file_.q_bias(layer), chosen, d, q_.data());
  } else {
    SLUICE_RETURN_IF_ERROR(MakeAll(layer, in.x));
    for (size_t i = 0; i < chosen.size(); ++i) {  // one after another, as Attend takes them
      std::copy_n(&q_[size_t{chosen[i]} * d], d, &q_[i * d]);
    }
  }
  std::fill_n(attended_.begin(), config_.q_dim(), 0.0f);
  attention_->Attend(layer, chosen, q_.data(), attended_.data());
  return absl::OkStatus();
}

void AttentionLayer::Show(uint32_t layer, const AttentionInput& in,
                          std::span<const uint32_t> predicted) const {
  observer_->ObserveAttention({.layer = layer,
                               .n_tokens = n_,
                               .residual = in.residual,
                               .normed = in.normed,
                               .attended = std::span(attended_).first(size_t{n_} * config_.q_dim()),
                               .predicted = predicted});
}

uint32_t AttentionLayer::n_whole_layers() const {
  uint32_t n = 0;
  for (uint32_t l = 0; heads_ != nullptr && l < config_.n_layers; ++l) n += !heads_->IsResident(l);
  return n;
}

}  // namespace sluice
