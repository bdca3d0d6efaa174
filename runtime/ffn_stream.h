// The FFN of one or many tokens with the layer's bundles passing by in file order: prompt chunks,
// and decoding where every neuron is needed. Each bundle is read at most once, in large reads, and
// used for all tokens. What passes by is computed window by window, all threads at one window; one
// token in a layer that is wholly in memory, section by section (see DownSums), each thread at its
// own. Per token the arithmetic and its order are those of DemandFfn, so all give the same bits.
#ifndef SLUICE_RUNTIME_FFN_STREAM_H_
#define SLUICE_RUNTIME_FFN_STREAM_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "predictor/neuron_selector.h"
#include "runtime/ffn_context.h"

namespace sluice {

// Confined to the decode thread. Allocates nothing after construction.
class StreamFfn {
 public:
  struct Options {
    uint32_t max_tokens = 1;
    // Leaves out neurons that are not active; null: none. Must outlive the FFN.
    const ExactSelector* selector = nullptr;
    // Where passing bundles are kept while the cache has free slots: hot, so many a layer (every
    // pass needs all of them, and LRU would keep none), or cold without a bound.
    CacheSegment keep = CacheSegment::kCold;
    uint32_t keep_per_layer = 0;  // kHot only
    bool keep_inactive = false;   // those that were left out too
    bool rectify_gate = false;    // dReLU: for an observer, see FfnObservation::gate
  };
  StreamFfn(const FfnContext& context, const Options& options);

  // Adds the pieces of a layer that are not wholly cached. Until they have been consumed, nothing
  // may be evicted.
  void AppendPieces(uint32_t layer, std::vector<StreamPiece>& pieces) const;
  // Most pieces that AppendPieces adds.
  static size_t MaxPieces(const BundleLayout& bundles, uint32_t piece_bytes);

  // gate [n x d_ff] by position, x[t] the normed inputs; adds the outputs to y [n x d_model].
  // With rectify_gate, gate values of neurons that up takes out become 0.
  absl::Status Run(uint32_t layer, float* gate, std::span<const VectorView> x, float* y);

  // Rows and columns of bundles that went into sums so far, each once for all tokens of a call.
  uint64_t touched_rows() const { return touched_rows_; }

  static size_t ScratchBytes(const Options& options, uint32_t d_model, int n_threads);

 private:
  static constexpr uint32_t kWindow = 128;  // bundles handled at a time
  static constexpr uint32_t kNoPosition = 0xffffffff;

  // One token, all bundles in memory.
  absl::Status RunSections(uint32_t layer, float* gate, const VectorView& x, float* y);
  void RunSection(uint32_t layer, uint32_t section, float* gate, const VectorView& x);
  const std::byte* InMemory(uint32_t layer, uint32_t position) const {
    return c_.map != nullptr ? c_.map + c_.bundles().BundleOffset(layer, position)
                             : c_.cache->Peek(layer, position);
  }

  // Of `count` bundles from position `first` on, how many a window takes.
  uint32_t WindowSize(uint32_t first, uint32_t count) const;
  // Bundles [first, first + count) at bundles_. `fresh`: where they lie if they were just read and
  // are to be checked, else null.
  absl::Status RunWindow(uint32_t layer, uint32_t first, uint32_t count, std::byte* fresh,
                         float* gate, std::span<const VectorView> x, float* y);
  // Up dots and coefficients of rows [begin, end) of the window that begins at position `first`.
  void ComputeRows(uint32_t layer, uint32_t first, uint32_t begin, uint32_t end, bool fresh,
                   const float* gate, std::span<const VectorView> x, int thread);
  void ComputeAllRows(uint32_t begin, uint32_t end, std::span<const VectorView> x);
  void ComputeRow(uint32_t row, std::span<const VectorView> x, int thread);
  void ComputeRowsOfOneToken(uint32_t begin, uint32_t end, const VectorView& x);
  void AddDownOfTokens(uint32_t count, size_t n_tokens);
  void EndSection(size_t n_tokens, float* y);
  absl::Status RunPiece(uint32_t layer, const StreamPiece& piece, float* gate,
                        std::span<const VectorView> x, float* y);
  absl::Status RunCached(uint32_t layer, uint32_t first, uint32_t end, float* gate,
                         std::span<const VectorView> x, float* y);
  void Keep(uint32_t layer, uint32_t first, uint32_t count);
  void CountTouched(uint32_t count, size_t n_tokens);
  uint64_t n_used(uint32_t count) const {
    return static_cast<uint64_t>(std::count(used_.begin(), used_.begin() + count, true));
  }
  bool is_wanted(uint32_t row) const { return used_[row] || options_.keep_inactive; }

  const FfnContext& c_;
  const Options options_;
  std::vector<const std::byte*> bundles_;  // of the window
  std::vector<const std::byte*> down_;     // of the window
  std::vector<uint8_t> used_, damaged_;    // of the window
  std::vector<float> coefficients_;        // [token x kWindow]
  std::vector<float> up_;                  // [token x kWindow]: dots of the up rows
  std::vector<VectorView> thread_views_;   // [thread x max_tokens]
  std::vector<uint32_t> thread_tokens_;    // [thread x max_tokens]
  std::vector<Pin> pins_;                  // of the window: cached bundles, or those being kept
  std::vector<uint32_t> kept_rows_;        // of the window
  std::vector<uint32_t> kept_;             // hot bundles by layer
  std::vector<float> section_sums_;        // [token x d_model]: of the section that passes by
  // Of the threads of a call of RunSections.
  std::atomic<uint64_t> section_rows_{0}, section_used_{0};
  std::atomic<uint32_t> bad_{kNoPosition};  // a position that is absent or damaged
  std::atomic<bool> any_checked_{false};    // mapped bundles that had not been before
  uint64_t touched_rows_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_FFN_STREAM_H_
