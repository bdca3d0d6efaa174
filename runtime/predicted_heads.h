// Which attention heads single tokens compute (Deja Vu, arXiv 2310.17157), and the keys and values
// of heads that are left out. A KV head is needed if one of its query heads is chosen. For those
// that are not, the token's input is kept; when such a head is needed later, K and V of all
// positions that lack them are made first, with the bits that they would have had at once. So what
// is lacking of a KV head are always its last positions.
//
// Where Q, K or V of a layer pass through the stream ring, they pass whole, and K and V are made at
// once; so they are for an observer.
//
// Confined to the decode thread, which spreads products over a ThreadPool. No allocation after
// Create.
#ifndef SLUICE_RUNTIME_PREDICTED_HEADS_H_
#define SLUICE_RUNTIME_PREDICTED_HEADS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "layout/sluice_file.h"
#include "runtime/attention.h"
#include "runtime/kept_inputs.h"
#include "runtime/kernels/kernels.h"
#include "runtime/neuron_predictor.h"
#include "runtime/thread_pool.h"
#include "runtime/weight_store.h"

namespace sluice {

struct HeadStats {
  uint64_t heads = 0, chosen = 0;  // of the tokens for which the predictor was asked
  uint64_t made_later = 0;         // pairs of a KV head and a position: K and V that were lacking
  uint64_t predictor_ns = 0;       // see NeuronPredictor::busy_ns
};

class PredictedHeads {
 public:
  // Borrows all; the file has predictors of heads, and `attention` keeps angles.
  static absl::StatusOr<std::unique_ptr<PredictedHeads>> Create(
      const SluiceFile& file, uint32_t context, const KernelTable& kernels, ThreadPool& pool,
      WeightStore& store, Attention& attention);

  // The query heads that a token needs, in rising order; valid until the next call. Layers in
  // order.
  absl::StatusOr<std::span<const uint32_t>> Choose(uint32_t layer, const float* residual,
                                                   const float* normed);
  // Whether Q, K and V rows of single heads can be had; else all of them pass anyway.
  bool IsResident(uint32_t layer) const;

  // Sees to K and V of the KV heads that the chosen heads need, for all positions up to `position`,
  // the token's own, of which x is the input. The layer is resident.
  absl::Status MakeNeeded(uint32_t layer, uint32_t position, std::span<const uint32_t> chosen,
                          const VectorView& x);
  // Makes what positions before `first` lack: a pass with all heads begins there.
  absl::Status MakeUpAll(uint32_t layer, uint32_t first);
  // K and V of all heads have been stored up to position `end`.
  void NoteAllMade(uint32_t layer, uint32_t end);

  HeadStats stats() const {
    HeadStats stats = stats_;
    stats.predictor_ns = predictor_.busy_ns();
    return stats;
  }

  static size_t KeptBytes(const SluiceFile& file, uint32_t context) {
    return KeptInputs::Bytes(file, context);
  }
  static size_t ScratchBytes(const SluiceFile& file);

 private:
  PredictedHeads(const SluiceFile& file, KeptInputs kept, const KernelTable& kernels,
                 ThreadPool& pool, WeightStore& store, Attention& attention);
  void ForgetFrom(uint32_t layer, uint32_t position);
  absl::Status MakeUp(uint32_t layer, uint32_t kv_head, uint32_t end);
  absl::Status Multiply(uint32_t layer, std::span<const uint32_t> kv_heads,
                        std::span<const VectorView> x);
  uint32_t& n_made(uint32_t layer, uint32_t kv_head) {
    return n_made_[size_t{layer} * config_.n_kv_heads + kv_head];
  }

  const SluiceFile& file_;
  const ModelConfig& config_;
  KeptInputs kept_;
  ThreadPool& pool_;
  WeightStore& store_;
  Attention& attention_;
  NeuronPredictor predictor_;
  std::vector<uint32_t> chosen_;   // [heads]
  std::vector<uint32_t> needed_;   // [KV heads]
  std::vector<float> previous_;    // residual of the layer before, if the predictor looks at that
  std::vector<uint32_t> n_made_;   // by layer and KV head: positions whose K and V are there
  std::vector<VectorView> views_;  // of positions that are made up together
  std::vector<float> k_, v_;       // for those, or of all KV heads of a token
  HeadStats stats_;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_PREDICTED_HEADS_H_
