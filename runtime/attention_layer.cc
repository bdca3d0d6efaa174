#include "runtime/attention_layer.h"

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
      q_(size_t{chunk} * config_.q_dim()),
      k_(size_t{chunk} * config_.kv_dim()),
      v_(k_.size()),
      attended_(q_.size()) {}

size_t AttentionLayer::ScratchBytes(const ModelConfig& config, uint32_t chunk) {
  return chunk * 2 * (size_t{config.q_dim()} + config.kv_dim()) * sizeof(float);
}

absl::StatusOr<std::unique_ptr<AttentionLayer>> AttentionLayer::Create(
    const SluiceFile& file, const MemoryPlan& plan, const KernelTable& kernels, ThreadPool& pool,
    WeightStore& store, Activations& activations, FfnObserver* observer) {
  auto a = std::unique_ptr<AttentionLayer>(
      new AttentionLayer(file, plan.chunk, kernels, pool, store, activations, observer));
  SLUICE_ASSIGN_OR_RETURN(a->attention_,
                          Attention::Create(file.config(), {plan.request.context, plan.chunk},
                                            file.rope_divisors(), kernels, pool));
  return a;
}

absl::Status AttentionLayer::Run(uint32_t layer, const AttentionInput& in, float* out) {
  const auto multiply = [&](MatrixRole role, std::span<const VectorView> vectors, float* product,
                            size_t width) {
    return store_.Multiply(file_.MatrixIndex(role, layer), vectors, product, width);
  };
  const std::span<const VectorView> x = in.x;
  const auto n = static_cast<uint32_t>(x.size());
  const uint32_t q_dim = config_.q_dim(), kv_dim = config_.kv_dim();
  SLUICE_RETURN_IF_ERROR(multiply(MatrixRole::kQ, x, q_.data(), q_dim));
  SLUICE_RETURN_IF_ERROR(multiply(MatrixRole::kK, x, k_.data(), kv_dim));
  SLUICE_RETURN_IF_ERROR(multiply(MatrixRole::kV, x, v_.data(), kv_dim));
  AddToRows(file_.q_bias(layer), q_.data(), n);
  AddToRows(file_.k_bias(layer), k_.data(), n);
  AddToRows(file_.v_bias(layer), v_.data(), n);
  attention_->Run(layer, q_.data(), k_.data(), v_.data(), attended_.data());
  if (observer_ != nullptr) {
    observer_->ObserveAttention({.layer = layer,
                                 .n_tokens = n,
                                 .residual = in.residual,
                                 .normed = in.normed,
                                 .attended = std::span(attended_).first(size_t{n} * q_dim),
                                 .predicted = {}});
  }
  const auto attended = activations_.Prepare(kernels_, pool_, attended_.data(), n, q_dim);
  SLUICE_RETURN_IF_ERROR(multiply(MatrixRole::kO, attended, out, config_.d_model));
  AddToRows(file_.o_bias(layer), out, n);
  return absl::OkStatus();
}

}  // namespace sluice
