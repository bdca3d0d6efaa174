// The decoder: tokens in, logits out. Weights come from a `.sluice` file, resident, cached or
// streamed as a MemoryPlan says; the logits do not depend on that.
//
// Confined to one thread (the decode thread), which owns a pool of compute workers and talks to one
// I/O thread. Forward allocates nothing.
#ifndef SLUICE_RUNTIME_DECODER_H_
#define SLUICE_RUNTIME_DECODER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "cache/neuron_cache.h"
#include "io/device_profile.h"
#include "io/io_thread.h"
#include "io/read_engine.h"
#include "io/span_log.h"
#include "io/storage_file.h"
#include "layout/sluice_file.h"
#include "predictor/activation_trace.h"
#include "predictor/neuron_selector.h"
#include "runtime/activations.h"
#include "runtime/attention_layer.h"
#include "runtime/ffn_demand.h"
#include "runtime/ffn_observer.h"
#include "runtime/ffn_stream.h"
#include "runtime/kernels/kernels.h"
#include "runtime/memory_plan.h"
#include "runtime/neuron_predictor.h"
#include "runtime/predicted_ffn.h"
#include "runtime/stream_ring.h"
#include "runtime/thread_pool.h"
#include "runtime/weight_io.h"
#include "runtime/weight_store.h"

namespace sluice {

struct DecoderOptions {
  EngineKind engine = EngineKind::kAuto;
  DirectMode direct = DirectMode::kAuto;
  const KernelTable* kernels = nullptr;  // null: the best that the machine has
  int io_core = -1;                      // -1: the fastest allowed core
  // Of the storage, for merging reads and for how many are in flight; null: nothing is known.
  std::shared_ptr<const DeviceProfile> profile;
  // Gets the active sets of tokens that go neuron by neuron, once their pass has succeeded; null:
  // they are not recorded. Recording allocates.
  ActivationTrace* trace = nullptr;
  FfnObserver* observer = nullptr;  // null: nobody looks
  // Gets what all threads and reads do, on as many lanes as there are compute threads and one more
  // for reads; null: nothing is logged. Must outlive the decoder, and is to be read after it.
  SpanLog* spans = nullptr;
  bool cached_first = true;  // see DemandFfn
  // Predicted mode only, see PredictedFfn.
  bool look_ahead = true;
  double miss_skip = 0;
  // Wraps the engine: an emulated device, injected faults.
  std::function<std::unique_ptr<ReadEngine>(std::unique_ptr<ReadEngine>, const StorageFile&)>
      wrap_engine;
};

// Totals since Create.
struct DecoderStats {
  uint64_t hits = 0, misses = 0, evictions = 0;  // bundles
  // Of the tokens that went neuron by neuron: active, of how many; and those of the active ones
  // that fired, which is all of them unless a predictor chose or the activation is dReLU.
  uint64_t active_neurons = 0, gated_neurons = 0, firing_neurons = 0;
  // Of the tokens for which predictors of heads were asked: attention heads, those that were
  // computed, and positions of KV heads whose K and V were made later than at once.
  uint64_t heads = 0, chosen_heads = 0, late_keys = 0;
  LookAheadStats look_ahead;  // bundles read a layer ahead
  uint64_t skipped = 0;       // predicted neurons left out, see DecoderOptions::miss_skip
  uint64_t flash_bytes = 0, flash_operations = 0;  // 0 if mapped: the kernel reads
  uint64_t io_busy_ns = 0, io_retries = 0;
  uint64_t stall_ns = 0;      // the decode thread waited for reads
  uint64_t predictor_ns = 0;  // it asked predictors
  // Weights, keys and values that went into sums, each once a pass.
  uint64_t touched_bytes = 0;

  DecoderStats operator-(const DecoderStats& before) const;
};

// Where the logits of more tokens than the last are wanted, as for perplexity.
struct LogitsSink {
  uint32_t first = 0;  // position from which on they are wanted
  // On the decode thread, positions in rising order; the logits are valid during the call.
  absl::FunctionRef<void(uint32_t position, std::span<const float> logits)> take;
};

class Decoder {
 public:
  // `file` must outlive the decoder. Reads the resident weights.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(const SluiceFile& file,
                                                         const MemoryPlan& plan,
                                                         const DecoderOptions& options);
  ~Decoder();

  // Appends tokens (any number up to what the context has left) and leaves the logits of the last
  // one in logits(). OutOfRange if they do not fit, InvalidArgument for an id outside the
  // vocabulary, Cancelled once *stop is not 0, which is looked at before each layer. After an error
  // position() is what it was, and the call may be repeated; what `sink` got then comes again.
  absl::Status Forward(std::span<const int32_t> tokens, const std::atomic<int>* stop = nullptr,
                       const LogitsSink* sink = nullptr);

  std::span<const float> logits() const { return std::span(logits_).first(config_.vocab_size); }
  uint32_t position() const { return position_; }  // tokens so far
  uint32_t context() const { return plan_.request.context; }
  // Forgets all tokens; keeps what is cached.
  void Rewind() { position_ = 0; }

  DecoderStats stats() const;
  DecodeMode mode() const { return plan_.request.mode; }
  // Paths taken up to now, one clause each: engine, direct I/O, I/O core, kernels, mode, threads.
  std::vector<std::string> Notes() const;
  // A sentence if the I/O thread had to change its way while running, else empty.
  std::string ModeChangeNote() const { return io_thread_->mode_change_note(); }
  // Weights are used where the kernel maps them; statistics of bundles and reads say nothing.
  bool mapped() const { return map_ != nullptr; }
  // Whether all reads so far went past the page cache.
  bool reads_directly() const { return storage_->direct() && ModeChangeNote().empty(); }

 private:
  Decoder(const SluiceFile& file, const MemoryPlan& plan);

  absl::Status Open(const DecoderOptions& options);
  absl::Status OpenIo(const DecoderOptions& options);
  void MakeFfns(const DecoderOptions& options);
  absl::Status MapFile();
  // Tokens that pass through the layers together, and whether they are of a call with many.
  struct Pass {
    uint32_t n_tokens;
    bool is_prompt;
  };
  Pass FirstPass(size_t n_tokens, bool is_prompt) const;
  bool TakesDemandPath(const Pass& pass) const;
  void AppendPredictorPieces(uint32_t layer, std::vector<StreamPiece>& pieces) const;
  void ListPieces(bool demand, std::vector<StreamPiece>& pieces) const;
  void BeginPass(const Pass& pass);
  void CancelReads();
  // `next` is what is expected to come after this pass.
  absl::Status RunPass(std::span<const int32_t> tokens, const Pass& pass, const Pass& next,
                       const std::atomic<int>* stop, const LogitsSink* sink);
  absl::Status RunHead(uint32_t n, const LogitsSink* sink);
  absl::Status RunLayer(uint32_t layer, uint32_t n);
  absl::Status RunAttention(uint32_t layer, uint32_t n);
  absl::Status RunFfn(uint32_t layer, uint32_t n);
  absl::Status RunPredictedFfn(uint32_t layer, const VectorView& x);
  bool predicts() const { return predictor_ != nullptr && demand_pass_; }
  void Show(uint32_t layer, uint32_t first, uint32_t n, std::span<const uint32_t> predicted) const;
  void RecordActive(uint32_t layer, uint32_t token);
  void RecordPass(uint32_t n);
  std::span<const VectorView> Norm(std::span<const float> weight, std::span<const float> bias,
                                   uint32_t first, uint32_t n);
  std::string ModeNote() const;
  std::string LookAheadNote() const;
  std::string HeadsNote() const;

  const SluiceFile& file_;
  const ModelConfig& config_;
  const MemoryPlan plan_;
  const KernelTable* kernels_ = nullptr;

  // In order of construction: what is below uses what is above.
  std::unique_ptr<StorageFile> storage_;
  const std::byte* map_ = nullptr;
  std::string engine_note_, schedule_note_;
  AlignedBuffer ring_memory_, merge_memory_;
  std::unique_ptr<NeuronCache> cache_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<IoThread> io_thread_;
  std::unique_ptr<WeightIo> io_;
  std::unique_ptr<StreamRing> ring_;
  std::unique_ptr<WeightStore> store_;
  std::unique_ptr<Activations> activations_;
  std::unique_ptr<AttentionLayer> attention_;
  std::unique_ptr<ExactSelector> selector_;
  std::unique_ptr<NeuronPredictor> predictor_;  // in predicted mode
  std::unique_ptr<DownSums> sums_;
  std::unique_ptr<FfnContext> ffn_;
  std::unique_ptr<LookAhead> look_ahead_;  // where reading ahead is of use
  std::unique_ptr<DemandFfn> demand_ffn_;
  std::unique_ptr<PredictedFfn> predicted_ffn_;  // in predicted mode
  std::unique_ptr<StreamFfn> stream_ffn_;

  std::vector<StreamPiece> demand_pieces_;    // of every pass on the demand path
  std::span<const StreamPiece> head_pieces_;  // its last ones: those of the head
  std::vector<StreamPiece> stream_pieces_;    // of one pass on the other
  bool demand_pass_ = false;                  // the path of the pass that the ring reads for

  // [chunk x width] each.
  std::vector<float> x_, normed_, delta_, gate_;
  std::vector<float> logits_;      // [logit rows of the plan x vocab_size]
  std::vector<bool> map_checked_;  // see FfnContext
  uint32_t position_ = 0;

  ActivationTrace* trace_ = nullptr;
  FfnObserver* observer_ = nullptr;
  SpanLog* spans_ = nullptr;
  std::vector<std::vector<uint32_t>> pass_active_;  // if there is a trace: by token and layer
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_DECODER_H_
