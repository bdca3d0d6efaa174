#include "layout/synth.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "io/status.h"
#include "layout/gguf_writer.h"
#include "layout/parallel_rows.h"
#include "layout/source_encode.h"
#include "layout/synth_plan.h"
#include "layout/synth_vocab.h"
#include "layout/synth_weights.h"

namespace sluice {
namespace {

// Widths and head counts of TinyLlama 1.1B, Llama 3.2 3B and Mistral 7B.
constexpr SynthShape kPresets[] = {
    {"tiny", 256, 1024, 4, 8, 4, 2048},
    {"1b", 2048, 5632, 22, 32, 4, 32000},
    {"3b", 3072, 8192, 28, 24, 8, 32000},
    {"7b", 4096, 14336, 32, 32, 8, 32000},
};

constexpr size_t kPieceBytes = 2 << 20;

// GGUF's `general.file_type`.
uint32_t FileType(SourceType type) {
  return type == SourceType::kF32 ? 0 : type == SourceType::kF16 ? 1 : 2;
}

void AddModelMetadata(const SynthPlan& plan, GgufWriter& writer) {
  const ModelConfig& c = plan.config();
  writer.AddString("general.architecture", "llama");
  writer.AddString("general.name", c.name);
  writer.AddUint32("general.file_type", FileType(plan.options().type));
  writer.AddUint32("llama.block_count", c.n_layers);
  writer.AddUint32("llama.context_length", c.context_length);
  writer.AddUint32("llama.embedding_length", c.d_model);
  writer.AddUint32("llama.feed_forward_length", c.d_ff);
  writer.AddUint32("llama.attention.head_count", c.n_heads);
  writer.AddUint32("llama.attention.head_count_kv", c.n_kv_heads);
  writer.AddFloat32("llama.attention.layer_norm_rms_epsilon", c.norm_epsilon);
  writer.AddUint32("llama.rope.dimension_count", c.head_dim);
  writer.AddFloat32("llama.rope.freq_base", c.rope_base);
  writer.AddUint32("llama.vocab_size", c.vocab_size);
  writer.AddString("sluice.activation", ActivationName(c.activation));
  // What makes the same file again.
  writer.AddBool("sluice.generated", true);
  writer.AddString("sluice.synth.seed", absl::StrFormat("%d", plan.options().seed));
  writer.AddFloat32("sluice.synth.active", static_cast<float>(plan.options().active));
  writer.AddFloat32("sluice.synth.zipf", static_cast<float>(plan.options().zipf));
  writer.AddUint32("sluice.synth.groups", plan.n_groups());
  writer.AddFloat32("sluice.synth.group_correlation",
                    static_cast<float>(plan.options().group_correlation));
  writer.AddFloat32("sluice.synth.persistence", static_cast<float>(plan.persistence()));
}

void AddVocabulary(const TokenizerData& vocabulary, GgufWriter& writer) {
  std::vector<int32_t> types;
  for (const TokenType type : vocabulary.types) types.push_back(static_cast<int32_t>(type));
  writer.AddString("tokenizer.ggml.model", "llama");
  writer.AddString("tokenizer.ggml.pre", "default");
  writer.AddStringArray("tokenizer.ggml.tokens", vocabulary.tokens);
  writer.AddFloat32Array("tokenizer.ggml.scores", vocabulary.scores);
  writer.AddInt32Array("tokenizer.ggml.token_type", types);
  writer.AddUint32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(vocabulary.bos));
  writer.AddUint32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(vocabulary.eos));
  writer.AddUint32("tokenizer.ggml.unknown_token_id", static_cast<uint32_t>(vocabulary.unk));
  writer.AddBool("tokenizer.ggml.add_bos_token", vocabulary.add_bos);
  writer.AddBool("tokenizer.ggml.add_eos_token", vocabulary.add_eos);
  writer.AddBool("tokenizer.ggml.add_space_prefix", vocabulary.space_prefix != SpacePrefix::kNone);
}

// Generates and encodes rows [begin, end) into `encoded`.
void EncodeRows(const RowFiller& fill, SourceType type, uint32_t columns, size_t begin, size_t end,
                std::span<std::byte> encoded) {
  std::vector<float> row(columns);
  const size_t row_bytes = columns / BlockElements(type) * size_t{BlockBytes(type)};
  for (size_t r = begin; r < end; ++r) {
    fill(static_cast<uint32_t>(r), row);
    EncodeSource(type, row, encoded.subspan((r - begin) * row_bytes, row_bytes));
  }
}

}  // namespace

std::span<const SynthShape> SynthPresets() { return kPresets; }

absl::StatusOr<SynthShape> FindSynthPreset(std::string_view name) {
  for (const SynthShape& shape : kPresets) {
    if (shape.name == name) return shape;
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "unknown preset \"%s\"; known are %s", name,
      absl::StrJoin(kPresets, ", ",
                    [](std::string* out, const SynthShape& shape) { out->append(shape.name); })));
}

absl::StatusOr<SourceType> ParseSynthType(std::string_view name) {
  if (name == "q4_0") return SourceType::kQ4_0;
  if (name == "f16") return SourceType::kF16;
  if (name == "f32") return SourceType::kF32;
  return absl::InvalidArgumentError(
      absl::StrFormat("unknown type \"%s\"; a generated model is q4_0, f16 or f32", name));
}

absl::StatusOr<uint64_t> WriteSynthModel(const SynthPlan& plan, const std::string& path,
                                         const SynthWriteOptions& options) {
  const std::vector<SynthTensor> tensors = ListSynthTensors(plan);
  const auto type_of = [&plan](const SynthTensor& t) {
    return t.kind == SynthTensorKind::kNorm ? SourceType::kF32 : plan.options().type;
  };
  GgufWriter writer;
  AddModelMetadata(plan, writer);
  AddVocabulary(MakeSynthVocabulary(plan.config().vocab_size), writer);
  for (const SynthTensor& t : tensors) {
    const uint64_t matrix[] = {t.rows, t.columns};
    const std::span<const uint64_t> shape(matrix);
    writer.DeclareTensor(t.name, type_of(t),
                         t.kind == SynthTensorKind::kNorm ? shape.last(1) : shape);
  }
  SLUICE_RETURN_IF_ERROR(writer.Start(path, options.overwrite));

  const uint64_t total = writer.TensorBytes();
  uint64_t written = 0;
  std::vector<std::byte> piece;
  for (const SynthTensor& t : tensors) {
    const SourceType type = type_of(t);
    const RowFiller fill = MakeRowFiller(plan, t);
    const size_t row_bytes = t.columns / BlockElements(type) * size_t{BlockBytes(type)};
    const size_t rows_in_piece = std::max<size_t>(1, kPieceBytes / row_bytes);
    for (size_t first = 0; first < t.rows; first += rows_in_piece) {
      const size_t n = std::min<size_t>(rows_in_piece, t.rows - first);
      piece.resize(n * row_bytes);
      ParallelRows(options.n_threads, n, [&](size_t begin, size_t end) {
        EncodeRows(fill, type, t.columns, first + begin, first + end,
                   std::span(piece).subspan(begin * row_bytes));
      });
      SLUICE_RETURN_IF_ERROR(writer.Write(piece));
      written += piece.size();
      if (options.progress && !options.progress(written, total)) {
        return absl::CancelledError("stopped on request");
      }
    }
  }
  SLUICE_RETURN_IF_ERROR(writer.Finish());
  return writer.FileBytes();
}

}  // namespace sluice
