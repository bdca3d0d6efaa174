// A model to be repacked, whatever it came as (GGUF or a Hugging Face folder): its config, its
// tokenizer and its tensors under one set of names.
#ifndef SLUICE_LAYOUT_MODEL_SOURCE_H_
#define SLUICE_LAYOUT_MODEL_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/model_config.h"
#include "layout/source_type.h"
#include "layout/sparsity_records.h"
#include "layout/tokenizer_data.h"

namespace sluice {

struct SourceTensor {
  // GGUF's names are the canonical ones: token_embd.weight, output_norm.weight, output.weight,
  // rope_freqs.weight, blk.N.{attn_norm,attn_q,attn_k,attn_v,attn_output,ffn_norm,ffn_gate,
  // ffn_up,ffn_down}.weight, blk.N.{attn_q,attn_k,attn_v}.bias; of relatives of the Llama family
  // also position_embd.weight, output_norm.bias, blk.N.{attn_norm,attn_output,ffn_norm,ffn_up,
  // ffn_down}.bias. PowerInfer's files have blk.N.ffn_down_t.weight [d_ff x d_model] in place of
  // ffn_down. Predictors are blk.N.{fc1,fc2}.weight.
  std::string name;
  SourceType type = SourceType::kF32;
  std::vector<uint64_t> shape;  // outermost first; the last dimension is contiguous
};

// The predictors that a model comes with: for each layer blk.N.fc1.weight [rank x d_model] and
// blk.N.fc2.weight [d_ff x rank], logits = fc2 relu(fc1 x).
struct SourcePredictors {
  std::vector<uint32_t> ranks;  // by layer, as they are: 1 .. kMaxRank, not rounded up
  PredictorRecord record;
};

// Thread-compatible; ReadTensor is thread-safe. Borrowed references live as long as the source.
class ModelSource {
 public:
  virtual ~ModelSource() = default;

  // For messages: the file or folder.
  virtual const std::string& path() const = 0;
  // Every file that the model comes from, so that none is overwritten; some may not exist.
  virtual std::vector<std::string> files() const { return {path()}; }
  // Already validated and its texts printable, with every needed tensor present and of the shape
  // that the config asks for.
  virtual const ModelConfig& config() const = 0;
  virtual const TokenizerData& tokenizer() const = 0;
  // All tensors of the model; one that an importer leaves out is named in warnings().
  virtual std::span<const SourceTensor> tensors() const = 0;
  // Null if the model has none.
  virtual const SourcePredictors* predictors() const { return nullptr; }
  // Null if there is none of that name.
  virtual const SourceTensor* Find(std::string_view name) const = 0;
  // Reads raw bytes that begin `offset` bytes into the tensor.
  virtual absl::Status ReadTensor(const SourceTensor& tensor, uint64_t offset,
                                  std::span<std::byte> dst) const = 0;
  // What the user should know, a sentence each: a tensor that was left out, a vocabulary's
  // pre-tokenizer that was guessed, ... Printable. Tools print them to stderr.
  virtual std::span<const std::string> warnings() const { return {}; }
};

struct ImportOptions {
  // Overrides what the source says or does not say.
  std::optional<Activation> activation;
  std::optional<float> activation_threshold;
};

// Opens `path`: a GGUF file (or any part of a split one) or a Hugging Face folder. What is neither
// (HTML page, git-lfs pointer, old GGML, empty file, directory without config.json) is named in
// the error. Architectures other than llama, qwen2, bamboo, opt, nemotron and arcee are refused by
// name.
absl::StatusOr<std::unique_ptr<ModelSource>> OpenModelSource(const std::string& path,
                                                             const ImportOptions& options);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_MODEL_SOURCE_H_
