// The KV cache and attention over it.
//
// Keys and values are half floats, for each layer and KV head one row of head_dim a position, so
// that a head's keys are one run of rows for the dot kernel and its values one run for AXPY.
#ifndef SLUICE_RUNTIME_ATTENTION_H_
#define SLUICE_RUNTIME_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "io/aligned_buffer.h"
#include "layout/model_config.h"
#include "layout/weight_type.h"
#include "runtime/kernels/kernels.h"
#include "runtime/tensor_ops.h"
#include "runtime/thread_pool.h"

namespace sluice {

// Confined to the decode thread, which spreads work over a ThreadPool. No allocation after Create.
class Attention {
 public:
  struct Size {
    uint32_t context = 0;       // positions
    uint32_t max_tokens = 1;    // of a pass
    bool keeps_angles = false;  // StoreHead may be called for earlier positions
  };
  static size_t KvBytes(const ModelConfig& config, uint32_t context);
  static size_t ScratchBytes(const ModelConfig& config, const Size& size, int n_threads);

  // Borrows all references; `rope_divisors` as in Rope.
  static absl::StatusOr<std::unique_ptr<Attention>> Create(const ModelConfig& config,
                                                           const Size& size,
                                                           std::span<const float> rope_divisors,
                                                           const KernelTable& kernels,
                                                           ThreadPool& pool);

  // The tokens of this pass have the positions first .. first + n - 1.
  void SetPositions(uint32_t first, uint32_t n);
  // For the n tokens of the pass: turns k [n x kv_dim] by position, stores it and v.
  void Store(uint32_t layer, float* k, const float* v);
  // The same of one head at one position, of k and v [head_dim].
  void StoreHead(uint32_t layer, uint32_t kv_head, uint32_t position, float* k, const float* v);
  // For the n tokens of the pass: turns q by position and writes the outputs of `heads`, in rising
  // order, to their places in `out` [n x q_dim]; q has the heads of a token one after another. Each
  // token sees the positions up to its own, which are stored.
  void Attend(uint32_t layer, std::span<const uint32_t> heads, float* q, float* out);
  // Bytes of keys and values that all calls so far have gone through, each row once a call.
  uint64_t touched_bytes() const { return touched_bytes_; }

 private:
  Attention(const ModelConfig& config, const Size& size, std::span<const float> rope_divisors,
            const KernelTable& kernels, ThreadPool& pool)
      : config_(config),
        context_(size.context),
        keeps_angles_(size.keeps_angles),
        rope_(config, rope_divisors),
        kernels_(kernels),
        pool_(pool) {}

  size_t row_bytes() const { return RowBytes(WeightType::kF16, config_.head_dim); }
  std::byte* keys(uint32_t layer, uint32_t head) const {
    return kv_.data() + (size_t{layer} * config_.n_kv_heads + head) * 2 * context_ * row_bytes();
  }
  std::byte* values(uint32_t layer, uint32_t head) const {
    return keys(layer, head) + context_ * row_bytes();
  }
  static size_t NumAngles(const ModelConfig& config, const Size& size) {
    return size_t{size.keeps_angles ? size.context : size.max_tokens} * config.head_dim;
  }
  // Of a position of the pass or, if angles are kept, of an earlier one.
  std::span<float> angles(uint32_t position) {
    const size_t slot = keeps_angles_ ? position : position - first_;
    return std::span(cos_sin_).subspan(slot * config_.head_dim, config_.head_dim);
  }
  void AttendHeads(uint32_t layer, uint32_t kv_head, uint32_t n_positions,
                   std::span<const uint32_t> heads, const float* q, float* scores,
                   float* out) const;

  const ModelConfig& config_;
  const uint32_t context_;
  const bool keeps_angles_;
  const Rope rope_;
  const KernelTable& kernels_;
  ThreadPool& pool_;
  AlignedBuffer kv_;
  AlignedBuffer scores_;        // for each thread: query heads of a KV head x context
  std::vector<float> cos_sin_;  // for each token of the pass, or each position: head_dim
  uint32_t first_ = 0, n_ = 0;  // positions of the pass
  uint64_t touched_bytes_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_ATTENTION_H_
