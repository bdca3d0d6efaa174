// Attention of one layer, projections included: O(attention(Q(x), K(x), V(x))), with the biases
// that the model has.
//
// Confined to the decode thread, which spreads work over a ThreadPool. Run allocates nothing.
#ifndef SLUICE_RUNTIME_ATTENTION_LAYER_H_
#define SLUICE_RUNTIME_ATTENTION_LAYER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "layout/sluice_file.h"
#include "runtime/activations.h"
#include "runtime/attention.h"
#include "runtime/ffn_observer.h"
#include "runtime/kernels/kernels.h"
#include "runtime/memory_plan.h"
#include "runtime/predicted_heads.h"
#include "runtime/thread_pool.h"
#include "runtime/weight_store.h"

namespace sluice {

// The tokens of a pass before a layer's attention.
struct AttentionInput {
  std::span<const float> residual;  // [n x d_model] before the norm
  std::span<const float> normed;    // [n x d_model]
  std::span<const VectorView> x;    // the normed ones in the forms that dots need
};

class AttentionLayer {
 public:
  // Borrows all references but the plan, and `observer`, which may be null. `activations` holds
  // what Run is given and, during Run, the outputs of the heads; it has room for a chunk of the
  // plan.
  static absl::StatusOr<std::unique_ptr<AttentionLayer>> Create(
      const SluiceFile& file, const MemoryPlan& plan, const KernelTable& kernels, ThreadPool& pool,
      WeightStore& store, Activations& activations, FfnObserver* observer);

  // The tokens of this pass have the positions first .. first + n - 1. `predicts`: it is a single
  // token, for which heads are chosen if that was asked for.
  void BeginPass(uint32_t first, uint32_t n, bool predicts);
  // out [n x d_model] of the tokens of the pass. Layers in order.
  absl::Status Run(uint32_t layer, const AttentionInput& in, float* out);

  bool predicts_heads() const { return heads_ != nullptr; }
  HeadStats head_stats() const { return heads_ != nullptr ? heads_->stats() : HeadStats{}; }
  uint64_t touched_kv_bytes() const { return attention_->touched_bytes(); }
  // Layers of which no single heads can be had, since Q, K or V pass through the stream ring.
  uint32_t n_whole_layers() const;

  // Of the vectors between the projections, for a chunk of tokens.
  static size_t ScratchBytes(const ModelConfig& config, uint32_t chunk);

 private:
  AttentionLayer(const SluiceFile& file, uint32_t chunk, const KernelTable& kernels,
                 ThreadPool& pool, WeightStore& store, Activations& activations,
                 FfnObserver* observer);

  absl::Status Multiply(MatrixRole role, uint32_t layer, std::span<const VectorView> x, float* out,
                        size_t width);
  absl::Status AttendWithAll(uint32_t layer, const AttentionInput& in);
  absl::Status AttendWithChosen(uint32_t layer, const AttentionInput& in);
  absl::Status MakeAll(uint32_t layer, std::span<const VectorView> x);
  void Show(uint32_t layer, const AttentionInput& in, std::span<const uint32_t> predicted) const;

  const SluiceFile& file_;
  const ModelConfig& config_;
  const KernelTable& kernels_;
  ThreadPool& pool_;
  WeightStore& store_;
  Activations& activations_;
  FfnObserver* const observer_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<PredictedHeads> heads_;  // where heads are predicted
  uint32_t first_ = 0, n_ = 0;             // positions of the pass
  bool predicts_ = false;                  // in this pass
  std::vector<uint32_t> all_heads_;
  std::vector<float> q_, k_, v_, attended_;  // [chunk x width] each
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_ATTENTION_LAYER_H_
