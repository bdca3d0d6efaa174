#include "runtime/decoder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/cpu_topology.h"
#include "io/logged_engine.h"
#include "io/status.h"
#include "runtime/hot_plan.h"
#include "runtime/layer_vectors.h"
#include "runtime/tensor_ops.h"

namespace sluice {
namespace {

constexpr uint64_t kSpinNs = 50'000;  // before a worker parks

StreamFfn::Options StreamOptions(const MemoryPlan& plan, const SluiceFile& file,
                                 const ExactSelector& selector, bool observed) {
  const ModelConfig& config = file.config();
  StreamFfn::Options o;
  o.max_tokens = plan.chunk;
  // What is dense may leave out exact zeros, but nothing by thresholds: prompts of predicted mode.
  const bool selects = plan.request.mode == DecodeMode::kPredicted
                           ? config.sparse()
                           : IsSparse(plan.request.mode, file);
  if (selects) o.selector = &selector;
  o.keep_inactive = plan.holds_all_bundles;
  o.rectify_gate = observed && config.rectifies_up();
  if (!IsSparse(plan.request.mode, file)) {
    o.keep = CacheSegment::kHot;
    o.keep_per_layer = (plan.n_slots + config.n_layers - 1) / config.n_layers;
  }
  return o;
}

// Whether a pass can know ahead what the next layer needs, and whether that would be read.
bool CanLookAhead(const SluiceFile& file, const MemoryPlan& plan) {
  if (plan.request.mapped || plan.holds_all_bundles) return false;
  if (file.predictor()->input == PredictorInput::kPrevious) return true;
  // Those that are asked twice for each layer must not be streamed twice.
  for (uint32_t l = 0; l < file.config().n_layers; ++l) {
    for (const MatrixRole r : {MatrixRole::kPredictor1, MatrixRole::kPredictor2}) {
      if (!plan.resident[file.MatrixIndex(r, l)]) return false;
    }
  }
  return true;
}

// It is opened a second time, by name.
absl::Status ChangedFile(const SluiceFile& file) {
  return absl::DataLossError(absl::StrFormat(
      "%s: was replaced or changed while it was being opened; start again", file.path()));
}

}  // namespace

Decoder::Decoder(const SluiceFile& file, const MemoryPlan& plan)
    : file_(file), config_(file.config()), plan_(plan) {}

Decoder::~Decoder() {
  if (io_ != nullptr) io_->Drain();  // nothing may be written into memory that is about to go
  if (map_ != nullptr) munmap(const_cast<std::byte*>(map_), file_.file_size());
}

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(const SluiceFile& file,
                                                         const MemoryPlan& plan,
                                                         const DecoderOptions& options) {
  auto decoder = std::unique_ptr<Decoder>(new Decoder(file, plan));
  SLUICE_RETURN_IF_ERROR(decoder->Open(options));
  return decoder;
}

absl::Status Decoder::MapFile() {
  // A descriptor of its own: that of storage_ has read-ahead turned off.
  const int fd = open(file_.path().c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, file_.path());
  struct stat info;
  if (fstat(fd, &info) != 0 || static_cast<uint64_t>(info.st_size) != file_.file_size()) {
    close(fd);
    return ChangedFile(file_);
  }
  void* map = mmap(nullptr, file_.file_size(), PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  close(fd);
  if (map == MAP_FAILED) return ErrnoStatus(error, file_.path() + ": mmap");
  map_ = static_cast<const std::byte*>(map);
  return absl::OkStatus();
}

absl::Status Decoder::OpenIo(const DecoderOptions& options) {
  const bool mapped = plan_.request.mapped;  // then nothing is read, and nothing need be probed
  SLUICE_ASSIGN_OR_RETURN(
      storage_, StorageFile::Open(file_.path(), mapped ? DirectMode::kOff : options.direct,
                                  file_.bundles().block));
  if (storage_->size() != file_.file_size()) return ChangedFile(file_);
  SLUICE_ASSIGN_OR_RETURN(ring_memory_,
                          AlignedBuffer::Allocate(size_t{plan_.n_buffers} * plan_.piece_bytes));
  const DeviceProfile* profile = mapped ? nullptr : options.profile.get();
  if (profile != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(merge_memory_, AlignedBuffer::Allocate(plan_.merge_bytes));
  }
  const std::array<std::span<std::byte>, 3> buffers = {cache_->arena(), ring_memory_.span(),
                                                       merge_memory_.span()};
  EngineOptions engine_options;
  engine_options.kind = mapped ? EngineKind::kPread : options.engine;
  engine_options.depth = kMostInFlight;
  if (profile != nullptr) engine_options.depth = std::min(kMostInFlight, profile->BestDepth());
  engine_options.buffers = buffers;
  SLUICE_ASSIGN_OR_RETURN(auto engine, MakeReadEngine(*storage_, engine_options, &engine_note_));
  if (options.wrap_engine) {
    engine = options.wrap_engine(std::move(engine), *storage_);
    absl::StrAppend(&engine_note_, "; ", engine->description());
  }
  if (spans_ != nullptr) {
    const auto lane = static_cast<size_t>(plan_.request.n_threads);
    engine = std::make_unique<LoggedEngine>(std::move(engine), spans_, lane);
  }
  IoThreadOptions thread_options;
  thread_options.capacity = plan_.io_capacity;
  thread_options.core = options.io_core;
  schedule_note_ = absl::StrCat("reads: at most ", engine->depth(), " in flight; ");
  if (profile != nullptr) {
    const ReadMerger::Limits limits = {engine->depth(), plan_.merge_bytes};
    thread_options.merger = std::make_unique<ReadMerger>(*profile, file_.bundles().layer_bytes(),
                                                         limits, ReadMerger::MarginFor(*profile));
    thread_options.bounce = merge_memory_.span();
    absl::StrAppend(&schedule_note_, "merged by the costs of ", profile->model().name());
  } else {
    schedule_note_ += "not merged, no device profile";
  }
  SLUICE_ASSIGN_OR_RETURN(io_thread_,
                          IoThread::Start(*storage_, std::move(engine), std::move(thread_options)));
  io_ = std::make_unique<WeightIo>(*io_thread_, *storage_, plan_.io_capacity, plan_.n_buffers,
                                   spans_);
  ring_ = std::make_unique<StreamRing>(*io_, ring_memory_.span(), plan_.piece_bytes);
  return absl::OkStatus();
}

absl::Status Decoder::Open(const DecoderOptions& options) {
  spans_ = options.spans;
  kernels_ = options.kernels != nullptr ? options.kernels : &BestKernels();
  const int n_threads = plan_.request.n_threads;
  const auto cores = static_cast<int>(AllowedCores().size());
  SLUICE_ASSIGN_OR_RETURN(pool_,
                          ThreadPool::Create(n_threads, n_threads <= cores ? kSpinNs : 0, spans_));
  const NeuronCache::Shape shape = {config_.n_layers, config_.d_ff, file_.bundles().stride};
  SLUICE_ASSIGN_OR_RETURN(cache_, NeuronCache::Create(shape, plan_.n_slots));
  if (IsSparse(plan_.request.mode, file_)) cache_->PlanHot(PlanHot(file_, plan_.n_slots));
  SLUICE_RETURN_IF_ERROR(OpenIo(options));
  if (plan_.request.mapped) {
    SLUICE_RETURN_IF_ERROR(MapFile());
    map_checked_.resize(size_t{config_.n_layers} * config_.d_ff);
  }
  SLUICE_ASSIGN_OR_RETURN(store_,
                          WeightStore::Create(file_, plan_, map_, *kernels_, *pool_, *io_, *ring_));
  observer_ = options.observer;
  activations_ =
      std::make_unique<Activations>(plan_.chunk, std::max(config_.d_model, config_.q_dim()));
  SLUICE_ASSIGN_OR_RETURN(attention_, AttentionLayer::Create(file_, plan_, *kernels_, *pool_,
                                                             *store_, *activations_, observer_));
  selector_ = std::make_unique<ExactSelector>(config_, file_.thresholds());
  sums_ = std::make_unique<DownSums>(config_.d_ff, config_.d_model);
  ffn_ = std::make_unique<FfnContext>(FfnContext{file_, *kernels_, *pool_, *io_, *ring_,
                                                 cache_.get(), map_, map_checked_, *sums_, spans_});
  trace_ = options.trace;
  MakeFfns(options);

  const size_t chunk = plan_.chunk;
  for (std::vector<float>* v : {&x_, &normed_, &delta_}) v->resize(chunk * config_.d_model);
  gate_.resize(chunk * config_.d_ff);
  logits_.resize(size_t{plan_.logit_rows} * config_.vocab_size);
  SLUICE_RETURN_IF_ERROR(store_->LoadResident());

  // Both lists get their full capacity now, so that a pass allocates nothing.
  const PassPieces most = MaxPassPieces(file_, plan_);
  demand_pieces_.reserve(most.demand);
  stream_pieces_.reserve(most.stream);
  ListPieces(/*demand=*/true, demand_pieces_);
  const uint32_t head = file_.MatrixIndex(MatrixRole::kHead, 0);
  if (store_->streamed(head)) {
    head_pieces_ = std::span(demand_pieces_)
                       .last(WeightStore::NumPieces(file_.matrix(head), plan_.piece_bytes));
  }
  return absl::OkStatus();
}

void Decoder::MakeFfns(const DecoderOptions& options) {
  if (plan_.request.mode == DecodeMode::kPredicted) {
    predictor_ = std::make_unique<NeuronPredictor>(file_, PredictedPart::kNeurons, *kernels_,
                                                   *pool_, *store_);
    if (options.look_ahead && CanLookAhead(file_, plan_)) {
      look_ahead_ = std::make_unique<LookAhead>(*ffn_);
    }
  }
  demand_ffn_ = std::make_unique<DemandFfn>(*ffn_, look_ahead_.get(), options.cached_first);
  if (predictor_ != nullptr) {
    predicted_ffn_ = std::make_unique<PredictedFfn>(*ffn_, *predictor_, *demand_ffn_,
                                                    look_ahead_.get(), options.miss_skip);
  }
  stream_ffn_ = std::make_unique<StreamFfn>(
      *ffn_, StreamOptions(plan_, file_, *selector_, observer_ != nullptr));
}

// Of a call with so many tokens left. A predictor is asked for single tokens; whether it is asked
// at all must not depend on how long the chunks are that memory allows.
Decoder::Pass Decoder::FirstPass(size_t n_tokens, bool is_prompt) const {
  const size_t most = predictor_ != nullptr && !is_prompt ? 1 : plan_.chunk;
  return {static_cast<uint32_t>(std::min(n_tokens, most)), is_prompt};
}

bool Decoder::TakesDemandPath(const Pass& pass) const {
  if (predictor_ != nullptr) return !pass.is_prompt;
  // What will stay in DRAM anyway is read once, whole and in order, instead of miss by miss.
  const bool fills_cache = plan_.holds_all_bundles && cache_->n_free() > 0;
  return IsSparse(plan_.request.mode, file_) && pass.n_tokens < kStreamTokens && !fills_cache;
}

// Predictors in the order in which they are asked: those that look at the layer before, a layer
// ahead.
void Decoder::AppendPredictorPieces(uint32_t layer, std::vector<StreamPiece>& pieces) const {
  const auto add = [&](uint32_t l) {
    if (l >= config_.n_layers) return;
    for (const MatrixRole r : {MatrixRole::kPredictor1, MatrixRole::kPredictor2}) {
      store_->AppendPieces(file_.MatrixIndex(r, l), pieces);
    }
  };
  if (predictor_->input() != PredictorInput::kPrevious) return add(layer);
  if (layer == 0) add(0);
  add(layer + 1);
}

// What a pass streams, in the order in which it uses it.
void Decoder::ListPieces(bool demand, std::vector<StreamPiece>& pieces) const {
  pieces.clear();
  const bool predicts = demand && predictor_ != nullptr;
  const auto add = [&](MatrixRole role, uint32_t layer) {
    if (layer < config_.n_layers) store_->AppendPieces(file_.MatrixIndex(role, layer), pieces);
  };
  for (uint32_t l = 0; l < config_.n_layers; ++l) {
    if (predicts && attention_->predicts_heads()) {
      for (const MatrixRole r : {MatrixRole::kHeadPredictor1, MatrixRole::kHeadPredictor2}) {
        add(r, l);
      }
    }
    for (const MatrixRole r : {MatrixRole::kQ, MatrixRole::kK, MatrixRole::kV, MatrixRole::kO}) {
      add(r, l);
    }
    if (!predicts || observer_ != nullptr) add(MatrixRole::kGate, l);
    if (predicts) AppendPredictorPieces(l, pieces);
    if (!demand) stream_ffn_->AppendPieces(l, pieces);
  }
  store_->AppendPieces(file_.MatrixIndex(MatrixRole::kHead, 0), pieces);
}

// Chooses the path of the next pass and starts to read for it. On a change of path nothing may be
// left that was read ahead: streaming takes what is on its way to the cache for cached.
void Decoder::BeginPass(const Pass& pass) {
  if (TakesDemandPath(pass) != demand_pass_) CancelReads();
  demand_pass_ = TakesDemandPath(pass);
  if (!demand_pass_) ListPieces(false, stream_pieces_);  // it changes with what is cached
  ring_->Begin(demand_pass_ ? demand_pieces_ : stream_pieces_);
}

void Decoder::CancelReads() {
  demand_ffn_->Cancel();
  ring_->Cancel();
}

absl::Status Decoder::Forward(std::span<const int32_t> tokens, const std::atomic<int>* stop,
                              const LogitsSink* sink) {
  if (tokens.size() > context() - position_) {
    return absl::OutOfRangeError(
        absl::StrFormat("%u tokens do not fit the context of %u, of which %u are used",
                        tokens.size(), context(), position_));
  }
  for (const int32_t t : tokens) {
    if (t < 0 || static_cast<uint32_t>(t) >= config_.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrFormat("token id %d is outside the vocabulary of %u", t, config_.vocab_size));
    }
  }
  const uint32_t first = position_;
  const bool is_prompt = tokens.size() >= kStreamTokens;
  while (!tokens.empty()) {
    const Pass pass = FirstPass(tokens.size(), is_prompt);
    const auto chunk = tokens.first(pass.n_tokens);
    tokens = tokens.subspan(chunk.size());
    // After the last chunk most likely one more token follows.
    const Pass next = tokens.empty() ? Pass{1, false} : FirstPass(tokens.size(), is_prompt);
    const absl::Status status = RunPass(chunk, pass, next, stop, sink);
    if (!status.ok()) {
      CancelReads();  // they are for a pass that is over
      position_ = first;
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status Decoder::RunPass(std::span<const int32_t> tokens, const Pass& pass, const Pass& next,
                              const std::atomic<int>* stop, const LogitsSink* sink) {
  const uint32_t n = pass.n_tokens;
  const StageSpan span(spans_, n == 1 ? "token" : "prompt", position_);
  if (TakesDemandPath(pass) != demand_pass_ || !ring_->is_fresh()) {
    CancelReads();
    BeginPass(pass);
  }
  attention_->BeginPass(position_, n, predicts());
  SLUICE_RETURN_IF_ERROR(store_->Embed(tokens, x_.data()));
  AddLearnedPositions(file_, position_, n, x_.data());
  for (uint32_t l = 0; l < config_.n_layers; ++l) {
    if (stop != nullptr && stop->load(std::memory_order_relaxed) != 0) {
      return absl::CancelledError("stopped on request");
    }
    SLUICE_RETURN_IF_ERROR(RunLayer(l, n));
  }
  SLUICE_RETURN_IF_ERROR(RunHead(n, sink));
  if (demand_pass_ && trace_ != nullptr) RecordPass(n);
  position_ += n;
  BeginPass(next);  // its first weights may come while the caller samples
  return absl::OkStatus();
}

// The logits that are wanted, in groups for which there is room. A streamed head comes with the
// pass once, and again for each further group.
absl::Status Decoder::RunHead(uint32_t n, const LogitsSink* sink) {
  const StageSpan span(spans_, "head", n);
  const uint32_t vocab = config_.vocab_size;
  uint32_t first = n - 1;  // of the pass
  const bool wanted = sink != nullptr && sink->first < position_ + n;
  if (wanted) first = std::max(sink->first, position_) - position_;
  for (uint32_t begin = first, rows = 0; begin < n; begin += rows) {
    rows = std::min(plan_.logit_rows, n - begin);
    if (begin > first && !head_pieces_.empty()) ring_->Begin(head_pieces_);
    const auto x = Norm(file_.output_norm(), file_.output_norm_bias(), begin, rows);
    SLUICE_RETURN_IF_ERROR(
        store_->Multiply(file_.MatrixIndex(MatrixRole::kHead, 0), x, logits_.data(), vocab));
    for (uint32_t r = 0; wanted && r < rows; ++r) {
      sink->take(position_ + begin + r, std::span(logits_).subspan(size_t{r} * vocab, vocab));
    }
    // Those of the last token go to where logits() looks.
    if (rows > 1) std::copy_n(&logits_[size_t{rows - 1} * vocab], vocab, logits_.begin());
  }
  return absl::OkStatus();
}

// normed_ = norm of tokens [first, first + n) of the pass; with a bias it is a layer norm.
std::span<const VectorView> Decoder::Norm(std::span<const float> weight,
                                          std::span<const float> bias, uint32_t first, uint32_t n) {
  const uint32_t d = config_.d_model;
  pool_->Run(n, WorthwhileGrain(d * sizeof(float), 1), [&](size_t begin, size_t end, int) {
    for (size_t t = begin; t < end; ++t) {
      Normalize({&x_[(first + t) * d], d}, weight, bias, config_.norm_epsilon,
                {&normed_[t * d], d});
    }
  });
  return activations_->Prepare(*kernels_, *pool_, normed_.data(), n, d);
}

absl::Status Decoder::RunLayer(uint32_t layer, uint32_t n) {
  const size_t size = size_t{n} * config_.d_model;
  SLUICE_RETURN_IF_ERROR(RunAttention(layer, n));
  AddInPlace(std::span(x_).first(size), std::span(delta_).first(size));
  SLUICE_RETURN_IF_ERROR(RunFfn(layer, n));
  AddInPlace(std::span(x_).first(size), std::span(delta_).first(size));
  return absl::OkStatus();
}

// delta = O(attention(Q(norm(x)), K(norm(x)), V(norm(x)))), with the biases that the model has.
absl::Status Decoder::RunAttention(uint32_t layer, uint32_t n) {
  const StageSpan span(spans_, "attention", layer);
  const auto x = Norm(file_.attention_norm(layer), file_.attention_norm_bias(layer), 0, n);
  const size_t size = size_t{n} * config_.d_model;
  return attention_->Run(layer, {std::span(x_).first(size), std::span(normed_).first(size), x},
                         delta_.data());
}

// delta = down(activation(gate(norm(x))) * up(norm(x))); without a gate the up rows stand for it.
absl::Status Decoder::RunFfn(uint32_t layer, uint32_t n) {
  const StageSpan span(spans_, "ffn", layer);
  const uint32_t d_ff = config_.d_ff;
  const auto x = Norm(file_.ffn_norm(layer), file_.ffn_norm_bias(layer), 0, n);
  std::fill_n(delta_.begin(), size_t{n} * config_.d_model, 0.0f);
  AddToRows(file_.down_bias(layer), delta_.data(), n);
  if (!predicts() || observer_ != nullptr) {
    const StageSpan gate(spans_, "gate", layer);
    SLUICE_RETURN_IF_ERROR(
        store_->Multiply(file_.MatrixIndex(MatrixRole::kGate, layer), x, gate_.data(), d_ff));
    AddUpBias(file_, layer, n, gate_.data());
  }
  if (predicts()) return RunPredictedFfn(layer, x[0]);
  if (!demand_pass_) {
    SLUICE_RETURN_IF_ERROR(stream_ffn_->Run(layer, gate_.data(), x, delta_.data()));
    if (observer_ != nullptr) Show(layer, 0, n, {});
    return absl::OkStatus();
  }
  for (uint32_t t = 0; t < n; ++t) {
    const auto gate = std::span(gate_).subspan(size_t{t} * d_ff, d_ff);
    const uint32_t n_active = selector_->Select({layer, gate}, demand_ffn_->active_buffer());
    SLUICE_RETURN_IF_ERROR(demand_ffn_->Begin(layer, n_active));
    SLUICE_RETURN_IF_ERROR(demand_ffn_->Finish(gate, x[t], &delta_[size_t{t} * config_.d_model]));
    if (observer_ != nullptr && config_.rectifies_up()) demand_ffn_->DropRectified(gate);
    if (trace_ != nullptr) RecordActive(layer, t);
  }
  if (observer_ != nullptr) Show(layer, 0, n, {});
  return absl::OkStatus();
}

absl::Status Decoder::RunPredictedFfn(uint32_t layer, const VectorView& x) {
  if (observer_ != nullptr && config_.rectifies_up()) {
    const auto gate = std::span(gate_).first(config_.d_ff);
    SLUICE_RETURN_IF_ERROR(demand_ffn_->RectifyGate(layer, gate, x, delta_));
    std::fill_n(delta_.begin(), config_.d_model, 0.0f);
  }
  SLUICE_RETURN_IF_ERROR(predicted_ffn_->Run(layer, x, normed_.data(), x_.data(), delta_.data()));
  if (observer_ != nullptr) Show(layer, 0, 1, demand_ffn_->active());
  if (trace_ != nullptr) RecordActive(layer, 0);
  return absl::OkStatus();
}

void Decoder::RecordActive(uint32_t layer, uint32_t token) {
  const size_t set = size_t{token} * config_.n_layers + layer;
  if (pass_active_.size() <= set) pass_active_.resize(set + 1);
  const auto active = demand_ffn_->active();
  pass_active_[set].assign(active.begin(), active.end());
}

void Decoder::Show(uint32_t layer, uint32_t first, uint32_t n,
                   std::span<const uint32_t> predicted) const {
  const auto rows = [=](const std::vector<float>& values, size_t width) {
    return std::span(values).subspan(first * width, n * width);
  };
  observer_->Observe({.layer = layer,
                      .n_tokens = n,
                      .residual = rows(x_, config_.d_model),
                      .normed = rows(normed_, config_.d_model),
                      .gate = rows(gate_, config_.d_ff),
                      .predicted = predicted});
}

// A pass takes all its tokens through a layer, a trace has all layers of a token together; and of a
// pass that failed, and will be repeated, nothing may stay.
void Decoder::RecordPass(uint32_t n) {
  const size_t n_sets = size_t{n} * config_.n_layers;
  for (size_t set = 0; set < n_sets; ++set) trace_->Append(pass_active_[set]);
}

}  // namespace sluice
