// What the importers share: the table of tensors under canonical names, its check against the
// config, and tensors that are computed and not stored, such as RoPE divisors.
#ifndef SLUICE_LAYOUT_IMPORTED_SOURCE_H_
#define SLUICE_LAYOUT_IMPORTED_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "layout/model_source.h"

namespace sluice {

constexpr char kRopeFreqs[] = "rope_freqs.weight";
constexpr char kPositions[] = "position_embd.weight";

// Thread-compatible; ReadTensor is thread-safe.
class ImportedSource : public ModelSource {
 public:
  const std::string& path() const override { return path_; }
  const ModelConfig& config() const override { return config_; }
  const TokenizerData& tokenizer() const override { return tokenizer_; }
  std::span<const SourceTensor> tensors() const override { return tensors_; }
  const SourcePredictors* predictors() const override {
    return predictors_ ? &*predictors_ : nullptr;
  }
  const SourceTensor* Find(std::string_view name) const override;
  absl::Status ReadTensor(const SourceTensor& tensor, uint64_t offset,
                          std::span<std::byte> dst) const final;
  std::span<const std::string> warnings() const override { return warnings_; }

 protected:
  explicit ImportedSource(std::string path) : path_(std::move(path)) {}

  // Reads bytes of tensors()[index] as stored.
  virtual absl::Status ReadStored(size_t index, uint64_t offset,
                                  std::span<std::byte> dst) const = 0;

  // What the source calls the tensor of this canonical name, for messages.
  virtual std::string StoredName(const std::string& name) const { return name; }

  // Rows of the embedding: the size of the vocabulary. InvalidArgument if there is none.
  absl::StatusOr<uint32_t> EmbeddingRows() const;
  // Divides the rotation frequencies by `divisors` (rope_dim / 2 of them, on top of those that the
  // model stores): they become the F32 tensor rope_freqs.weight. Call after the tensors are there.
  absl::Status SetRopeDivisors(std::vector<float> divisors);
  // Leaves out the first rows of the learned positions, two that OPT has for padding.
  void DropPaddingPositions();
  // Adds 1 to the weights of all norms, which "layernorm1p" stores without it.
  absl::Status AddOneToNorms();
  // InvalidArgument unless there are as many tokens as the config's vocabulary has.
  absl::Status CheckTokenCount(size_t n_tokens) const;
  // The last step: makes printable what will be shown, validates the config and checks the table
  // against it, naming the first tensor that is missing, has another shape, or that a decoder of
  // the architecture does not know. The tokenizer must have as many tokens as the embedding has
  // rows.
  absl::Status Check();

  void AddTensor(SourceTensor tensor);  // names are unique: the readers have seen to that

  std::string path_;
  ModelConfig config_;
  TokenizerData tokenizer_;
  std::vector<std::string> warnings_;
  float predictor_threshold_ = 0.0f;  // on the logits of predictors, if there are any

 private:
  absl::StatusOr<std::vector<float>> ReadAsFloats(const SourceTensor& tensor) const;
  // From now on the tensor, new or not, has these values.
  void SetComputed(const std::string& name, std::vector<float> values);
  absl::Status CheckTensors() const;
  absl::Status FindPredictors();

  std::vector<SourceTensor> tensors_;
  std::optional<SourcePredictors> predictors_;
  absl::flat_hash_map<std::string, size_t> index_;
  absl::flat_hash_map<std::string, std::vector<float>> computed_;
  uint64_t skipped_positions_ = 0;  // bytes of kPositions as it is stored
};

constexpr uint32_t kPaddingPositions = 2;

// Sets what the name of the architecture alone says: kind of norm, whether the FFN has a gate,
// learned positions, and for OPT biases. Returns the activation that it implies, if it does.
std::optional<Activation> ApplyArchitecture(ModelConfig& config);

// Settles the activation: the flag, else what the model states, else SiLU. `threshold` is what the
// model states for FATReLU.
absl::Status SettleActivation(const ImportOptions& options, std::optional<Activation> stated,
                              std::optional<float> threshold, ModelConfig& config);

// Stores the attention window (0: none) and limits the context to it, since within the window
// windowed attention is full attention. Returns the sentence that says so, if the limit has an
// effect.
std::optional<std::string> LimitContextToWindow(uint32_t window, ModelConfig& config);

// The divisors of "linear" RoPE scaling: all the factor. InvalidArgument unless 0 < factor < 1e6.
absl::StatusOr<std::vector<float>> LinearRopeDivisors(double factor, uint32_t rope_dim);

// The message for a kind of RoPE scaling that Sluice does not compute.
absl::Status UnsupportedRopeScaling(std::string_view kind);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_IMPORTED_SOURCE_H_
