#include "runtime/memory_plan.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "cache/neuron_cache.h"
#include "io/status.h"
#include "runtime/activations.h"
#include "runtime/attention_layer.h"
#include "runtime/down_sums.h"
#include "runtime/ffn_demand.h"
#include "runtime/ffn_stream.h"
#include "runtime/look_ahead.h"
#include "runtime/neuron_predictor.h"
#include "runtime/predicted_ffn.h"
#include "runtime/sampler.h"
#include "runtime/weight_store.h"

namespace sluice {
namespace {

constexpr uint32_t kLargePiece = 512 * 1024;
constexpr uint32_t kManyBuffers = 8;
constexpr uint32_t kFewSlots = 16;
constexpr uint32_t kMaxIoCapacity = 4096;
// What chunk scratch, stream buffers and merged reads may take of a budget, as a divisor.
constexpr uint64_t kScratchShare = 8;
constexpr uint64_t kRingShare = 16, kMergeShare = 32;
constexpr uint32_t kLeastMerge = 256 * 1024, kMostMerge = 4 << 20;
// Of a sparse model about a quarter of the neurons give four fifths of the activations (PowerInfer,
// sec. 2: 26 %). A byte of cache for them saves more than a byte of gate rows, which can be read in
// large reads; a byte of cache for the others saves less. A cache that does not hold the active
// sets of one token hits nothing, since each layer comes round once a token.
constexpr uint32_t kHotPercent = 30;

uint64_t ChunkBytes(const ModelConfig& c, uint32_t chunk, int n_threads) {
  const uint32_t widest = std::max(c.d_model, c.q_dim());
  const uint64_t floats = 3 * uint64_t{c.d_model} + c.d_ff;
  StreamFfn::Options options;
  options.max_tokens = chunk;
  return chunk * floats * sizeof(float) + AttentionLayer::ScratchBytes(c, chunk) +
         Activations::Bytes(chunk, widest) + StreamFfn::ScratchBytes(options, c.d_model, n_threads);
}

// Head and attention matrices, predictors or gates, in the order in which they are given DRAM:
// every prefix is spread evenly over the layers, so that streaming is spread evenly too.
enum class Residency { kAttention, kPredictors, kHeadPredictors, kGates };

std::vector<uint32_t> ResidencyOrder(const SluiceFile& file, Residency which) {
  const ModelConfig& c = file.config();
  std::vector<uint32_t> layers;
  // Bit-reversed counting visits them so.
  uint32_t bits = 0;
  while ((1u << bits) < c.n_layers) ++bits;
  for (uint32_t i = 0; i < (1u << bits); ++i) {
    uint32_t reversed = 0;
    for (uint32_t b = 0; b < bits; ++b) reversed |= ((i >> b) & 1u) << (bits - 1 - b);
    if (reversed < c.n_layers) layers.push_back(reversed);
  }
  std::vector<uint32_t> order;
  const auto add = [&](std::initializer_list<MatrixRole> roles) {
    for (const uint32_t l : layers) {
      for (const MatrixRole r : roles) order.push_back(file.MatrixIndex(r, l));
    }
  };
  switch (which) {
    case Residency::kAttention:
      order.push_back(file.MatrixIndex(MatrixRole::kHead, 0));
      add({MatrixRole::kQ, MatrixRole::kK, MatrixRole::kV, MatrixRole::kO});
      break;
    case Residency::kPredictors:
      add({MatrixRole::kPredictor1, MatrixRole::kPredictor2});
      break;
    case Residency::kHeadPredictors:
      add({MatrixRole::kHeadPredictor1, MatrixRole::kHeadPredictor2});
      break;
    case Residency::kGates:
      add({MatrixRole::kGate});
      break;
  }
  return order;
}

class Planner {
 public:
  Planner(const SluiceFile& file, const PlanRequest& request)
      : file_(file), config_(file.config()), request_(request) {
    plan_.request = request;
    plan_.resident.resize(file.directory().matrices.size());
    shape_ = {config_.n_layers, config_.d_ff, file.bundles().stride};
    const auto& matrices = file.directory().matrices;
    smallest_piece_ = file.bundles().stride;
    for (const MatrixEntry& m : matrices) {
      smallest_piece_ = std::max(smallest_piece_, m.tile_stride);
    }
    plan_.chunk = 1;
    plan_.piece_bytes = smallest_piece_;
    plan_.n_buffers = 2;
    plan_.merge_bytes = kLeastMerge;
    plan_.n_slots = std::min<uint32_t>(kFewSlots, config_.d_ff);
  }

  absl::StatusOr<MemoryPlan> Run() {
    if (request_.mode == DecodeMode::kPredicted && file_.predictor() == nullptr) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s: has no predictors; make them with sluice train, or take --mode exact",
          file_.path()));
    }
    if (request_.predicts_heads() && file_.head_predictor() == nullptr) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s: has no predictors of attention heads; make them with sluice train --heads, or leave "
          "out --predict-heads",
          file_.path()));
    }
    if (config_.learned_positions && request_.context > config_.context_length) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: a context of %u tokens was asked for, but the model has learned %u positions and no "
          "more: give -c %u or less",
          file_.path(), request_.context, config_.context_length, config_.context_length));
    }
    if (request_.mapped) {
      plan_.n_slots = 0;
      plan_.n_buffers = 0;
      plan_.merge_bytes = 0;
      plan_.chunk = request_.chunk;
      GrowLogits(UINT64_MAX);
    }
    plan_.minimum = Total();
    if (request_.budget < plan_.minimum) return BudgetTooSmall();
    if (request_.mapped) return Describe();
    plan_.everything = Everything();
    if (request_.budget >= plan_.everything) {
      HoldEverything();
      GrowRing(Left());
      GrowChunk(Left());
      GrowLogits(Left());
      return Describe();
    }
    GrowRing(std::min(request_.budget / kRingShare, Left()));
    GrowMerge(std::min(request_.budget / kMergeShare, Left()));
    GrowChunk(std::min(request_.budget / kScratchShare, Left()));
    GrowLogits(std::min(request_.budget / kScratchShare, Left()));
    GiveToMatrices(ResidencyOrder(file_, Residency::kAttention));
    if (request_.mode == DecodeMode::kPredicted) {
      GiveToMatrices(ResidencyOrder(file_, Residency::kPredictors));
      if (request_.predict_heads) {
        GiveToMatrices(ResidencyOrder(file_, Residency::kHeadPredictors));
      }
      GiveToCache(100);  // gates are for prompts only: bundles have their own
    } else if (IsSparse(request_.mode, file_)) {
      GiveToCache(kHotPercent);
    }
    GiveToMatrices(ResidencyOrder(file_, Residency::kGates));
    GiveToCache(100);
    // A token reads one tile of an embedding that is not the head as well.
    GiveToMatrices({file_.MatrixIndex(MatrixRole::kEmbedding, 0)});
    return Describe();
  }

 private:
  absl::Status BudgetTooSmall() const {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s: a memory budget of %s is too small; with a context of %u tokens the "
                        "least is %u bytes: "
                        "give --mem-budget %uK or more, or a smaller -c",
                        file_.path(), FormatBytes(request_.budget), request_.context, plan_.minimum,
                        (plan_.minimum + 1023) / 1024));
  }
  uint32_t io_capacity() const {
    return std::clamp<uint32_t>(config_.d_ff + 2 * kManyBuffers, 64, kMaxIoCapacity);
  }
  uint64_t FixedBytes() const {
    return file_.memory_bytes() + request_.tokenizer_bytes +
           Attention::KvBytes(config_, request_.context) + KeptInputBytes();
  }
  // For K and V that are made later.
  uint64_t KeptInputBytes() const {
    return request_.predicts_heads() ? PredictedHeads::KeptBytes(file_, request_.context) : 0;
  }
  uint64_t LogitsBytes() const { return config_.vocab_size * sizeof(float); }
  uint64_t SamplingBytes() const {
    return plan_.logit_rows * LogitsBytes() + Sampler::Bytes(config_.vocab_size, request_.context);
  }
  uint64_t StreamBytes() const {
    const MatrixEntry& embedding = file_.matrix(0);
    const PassPieces pieces = MaxPassPieces(file_, plan_);
    return uint64_t{plan_.n_buffers} * plan_.piece_bytes +
           WeightStore::EmbedBufferBytes(embedding, plan_.chunk) + plan_.merge_bytes +
           WeightIo::Bytes(io_capacity(), plan_.n_buffers) +
           (pieces.demand + pieces.stream) * sizeof(StreamPiece);
  }
  uint64_t ResidentBytes() const {
    uint64_t bytes = 0;
    for (size_t i = 0; i < plan_.resident.size(); ++i) {
      if (plan_.resident[i]) bytes += WeightStore::ResidentBytes(file_.matrix(i));
    }
    return bytes;
  }
  // With what the paths that use it keep of each slot.
  uint64_t SlotBytes() const {
    const uint64_t ahead = LookAheadBytes(2) - LookAheadBytes(1);
    return NeuronCache::BytesPerSlot(shape_) + DemandFfn::ScratchBytes(config_.d_ff, 2) -
           DemandFfn::ScratchBytes(config_.d_ff, 1) + ahead;
  }
  uint64_t LookAheadBytes(uint32_t n_slots) const {
    if (request_.mode != DecodeMode::kPredicted || request_.mapped) return 0;
    return LookAhead::Bytes(config_.d_ff, n_slots);
  }
  uint64_t AttentionScratchBytes() const {
    const Attention::Size size = {request_.context, plan_.chunk, request_.predicts_heads()};
    return Attention::ScratchBytes(config_, size, request_.n_threads);
  }
  uint64_t PredictorBytes() const {
    if (request_.mode != DecodeMode::kPredicted) return 0;
    const uint64_t heads =
        request_.predict_heads ? PredictedHeads::ScratchBytes(file_) : uint64_t{0};
    return heads + NeuronPredictor::ScratchBytes(file_, PredictedPart::kNeurons) +
           PredictedFfn::ScratchBytes(file_.bundles()) + LookAheadBytes(plan_.n_slots);
  }
  uint64_t CacheBytes() const {
    return NeuronCache::FixedBytes(shape_) + plan_.n_slots * NeuronCache::BytesPerSlot(shape_);
  }
  uint64_t ScratchBytes() const {
    return ChunkBytes(config_, plan_.chunk, request_.n_threads) + AttentionScratchBytes() +
           SamplingBytes() + DemandFfn::ScratchBytes(config_.d_ff, plan_.n_slots) +
           DownSums::Bytes(config_.d_ff, config_.d_model) + PredictorBytes();
  }
  uint64_t Total() const {
    return FixedBytes() + StreamBytes() + ResidentBytes() + CacheBytes() + ScratchBytes();
  }
  uint64_t Left() const {
    const uint64_t total = Total();
    return request_.budget > total ? request_.budget - total : 0;
  }

  // Larger stream buffers, for at most so many bytes more.
  void GrowRing(uint64_t limit) {
    const uint32_t piece = std::max(kLargePiece, smallest_piece_);
    const uint64_t now = uint64_t{plan_.n_buffers} * plan_.piece_bytes;
    for (const uint32_t buffers : {kManyBuffers, kManyBuffers / 2}) {
      if (buffers <= plan_.n_buffers || uint64_t{buffers} * piece > now + limit) continue;
      plan_.piece_bytes = piece;
      plan_.n_buffers = buffers;
      return;
    }
  }

  // More room for reads that are done together, up to so many bytes.
  void GrowMerge(uint64_t limit) {
    const auto most = static_cast<uint32_t>(std::min<uint64_t>(limit, kMostMerge));
    plan_.merge_bytes = std::max(plan_.merge_bytes, most / kLeastMerge * kLeastMerge);
  }

  // Longer chunks, for at most so many bytes more.
  void GrowChunk(uint64_t limit) {
    const uint64_t most = Total() + std::min(limit, UINT64_MAX - Total());
    const uint32_t least = plan_.chunk;
    plan_.chunk = std::max(request_.chunk, least);
    while (plan_.chunk > least && Total() > most) plan_.chunk = std::max(plan_.chunk / 2, least);
  }

  // Logits of more tokens of a chunk at a time, for at most so many bytes more.
  void GrowLogits(uint64_t limit) {
    const uint64_t rows = plan_.logit_rows + limit / LogitsBytes();
    plan_.logit_rows = static_cast<uint32_t>(
        std::min({rows, uint64_t{request_.logit_rows}, uint64_t{plan_.chunk}}));
  }

  void GiveToMatrices(const std::vector<uint32_t>& order) {
    for (const uint32_t i : order) {
      if (WeightStore::ResidentBytes(file_.matrix(i)) <= Left()) plan_.resident[i] = true;
    }
  }

  // Lets the cache grow to a share of all bundles.
  void GiveToCache(uint32_t percent) {
    const uint64_t all = uint64_t{config_.n_layers} * config_.d_ff;
    const uint64_t most = std::max<uint64_t>(all * percent / 100, plan_.n_slots);
    plan_.n_slots =
        static_cast<uint32_t>(std::min<uint64_t>(most, plan_.n_slots + Left() / SlotBytes()));
  }

  bool IsUsed(const MatrixEntry& m) const {
    if (IsHeadPredictor(m.role)) return request_.predicts_heads();
    return !IsPredictor(m.role) || request_.mode == DecodeMode::kPredicted;
  }
  void HoldEverything() {
    for (size_t i = 0; i < plan_.resident.size(); ++i) plan_.resident[i] = IsUsed(file_.matrix(i));
    plan_.n_slots = config_.n_layers * config_.d_ff;
    GrowRing(Total() / kRingShare);
    GrowChunk(Total() / kScratchShare);
    GrowLogits(Total() / kScratchShare);
  }

  uint64_t Everything() {
    const MemoryPlan saved = plan_;
    HoldEverything();
    const uint64_t total = Total();
    plan_ = saved;
    return total;
  }

  MemoryPlan Describe() {
    plan_.io_capacity = io_capacity();
    plan_.holds_all_bundles = plan_.n_slots == config_.n_layers * config_.d_ff;
    size_t n_resident = 0;
    for (const bool r : plan_.resident) n_resident += r;
    const auto add = [&](std::string name, uint64_t bytes, std::string note) {
      plan_.items.push_back({std::move(name), bytes, std::move(note)});
      plan_.total += bytes;
    };
    add("resident weights", ResidentBytes(),
        request_.mapped
            ? "mapped by the kernel, not planned"
            : absl::StrFormat(
                  "%u of %u matrices%s", n_resident, plan_.resident.size(),
                  n_resident < plan_.resident.size() ? "; the others are streamed" : ""));
    add("neuron cache", CacheBytes(),
        request_.mapped
            ? "only its index: mapped"
            : absl::StrFormat("%u of %u bundles", plan_.n_slots, config_.n_layers * config_.d_ff));
    add("KV cache", Attention::KvBytes(config_, request_.context),
        absl::StrFormat("%u positions", request_.context));
    if (request_.predicts_heads()) {
      add("inputs of skipped heads", KeptInputBytes(), "for K and V that are made later");
    }
    add("scratch", ScratchBytes(), absl::StrFormat("prompt chunks of %u tokens", plan_.chunk));
    add("reading", StreamBytes(),
        request_.mapped
            ? ""
            : absl::StrFormat("%u buffers of %s, %s for merged reads, queues", plan_.n_buffers,
                              FormatBytes(plan_.piece_bytes), FormatBytes(plan_.merge_bytes)));
    add("tokenizer and directory", file_.memory_bytes() + request_.tokenizer_bytes, "");
    return plan_;
  }

  const SluiceFile& file_;
  const ModelConfig& config_;
  const PlanRequest& request_;
  NeuronCache::Shape shape_;
  uint32_t smallest_piece_ = 0;
  MemoryPlan plan_;
};

}  // namespace

bool IsSparse(DecodeMode mode, const SluiceFile& file) {
  return mode == DecodeMode::kPredicted || (mode == DecodeMode::kExact && file.sparse());
}

const char* DecodeModeName(DecodeMode mode) {
  switch (mode) {
    case DecodeMode::kDense:
      return "dense";
    case DecodeMode::kExact:
      return "exact";
    case DecodeMode::kPredicted:
      return "predicted";
  }
  return "?";
}

PassPieces MaxPassPieces(const SluiceFile& file, const MemoryPlan& plan) {
  PassPieces most;
  if (plan.request.mapped) return most;
  const uint32_t head = file.MatrixIndex(MatrixRole::kHead, 0);  // may be the embedding
  for (uint32_t i = 0; i < plan.resident.size(); ++i) {
    const MatrixEntry& m = file.matrix(i);
    if (plan.resident[i] || (m.role == MatrixRole::kEmbedding && i != head)) continue;
    most.demand += WeightStore::NumPieces(m, plan.piece_bytes);
  }
  most.stream =
      most.demand + file.config().n_layers * StreamFfn::MaxPieces(file.bundles(), plan.piece_bytes);
  return most;
}

absl::StatusOr<MemoryPlan> PlanMemory(const SluiceFile& file, const PlanRequest& request) {
  return Planner(file, request).Run();
}

std::string FormatBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto v = static_cast<double>(bytes);
  size_t unit = 0;
  for (; v >= 1024.0 && unit + 1 < std::size(kUnits); ++unit) v /= 1024.0;
  return absl::StrFormat("%.*f %s", unit == 0 ? 0 : 2, v, kUnits[unit]);
}

}  // namespace sluice
