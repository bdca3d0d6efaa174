#include "tests/tiny_sluice.h"

#include <array>

#include "io/status.h"
#include "layout/sluice_writer.h"

namespace sluice {
namespace {

constexpr uint32_t kUpStream = 1000, kDownStream = 2000;

// Element i of a row: a multiple of a power of two in the range of the type's quants. One element
// of each block has the largest magnitude, which fixes the block's scale to that power of two.
std::vector<float> ExactRow(WeightType type, uint32_t stream, uint32_t row, uint32_t n) {
  std::vector<float> out(n);
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t mixed = (stream * 2654435761u) ^ (row * 40503u + 977u) ^ (i * 97u + 13u);
    const uint32_t noise = (mixed * 2246822519u) >> 16;
    const bool extreme = i % kQuantBlock == (row + 5) % kQuantBlock;
    if (type == WeightType::kQ4) {
      out[i] = 0.25f * (extreme ? -8 : static_cast<int>(noise % 15) - 7);
    } else if (type == WeightType::kQ8) {
      out[i] = 0x1p-7f * (extreme ? 127 : static_cast<int>(noise % 253) - 126);
    } else {
      out[i] = 0x1p-6f * (static_cast<int>(noise % 511) - 255);
    }
  }
  return out;
}

std::vector<float> Vectors(const ModelConfig& config) {
  std::vector<float> out(VectorCount(config));
  for (size_t i = 0; i < out.size(); ++i) out[i] = 1.0f + 0x1p-10f * static_cast<float>(i);
  return out;
}

TokenizerData Tokenizer(uint32_t vocab_size) {
  TokenizerData t;
  t.tokens = {"<unk>", "<s>", "</s>"};
  t.types = {TokenType::kUnknown, TokenType::kControl, TokenType::kControl};
  for (uint32_t id = 3; id < vocab_size; ++id) {
    t.tokens.push_back(std::string(1, static_cast<char>('A' + id - 3)));
    t.types.push_back(TokenType::kNormal);
  }
  for (uint32_t id = 0; id < vocab_size; ++id) t.scores.push_back(-static_cast<float>(id));
  t.unk = 0;
  t.bos = 1;
  t.eos = 2;
  t.add_bos = true;
  return t;
}

absl::Status WriteMatrix(const TinySluice& model, uint32_t index, SluiceWriter& writer) {
  const MatrixEntry& m = model.directory.matrices[index];
  std::vector<std::byte> rows(m.rows_per_tile * m.row_bytes());
  for (uint32_t t = 0; t < m.n_tiles(); ++t) {
    const uint32_t count = m.rows_in_tile(t);
    for (uint32_t r = 0; r < count; ++r) {
      EncodeRow(m.type, TinyMatrixRow(model, index, t * m.rows_per_tile + r),
                std::span(rows).subspan(r * m.row_bytes(), m.row_bytes()));
    }
    SLUICE_RETURN_IF_ERROR(
        writer.WriteTile(index, t, std::span(rows).first(count * m.row_bytes())));
  }
  return absl::OkStatus();
}

absl::Status WriteBundles(const TinySluice& model, SluiceWriter& writer) {
  const BundleLayout& b = model.directory.bundles;
  std::vector<std::byte> payload(b.payload_bytes());
  for (uint32_t l = 0; l < model.config.n_layers; ++l) {
    for (uint32_t p = 0; p < b.d_ff; ++p) {
      const uint32_t neuron = TinyNeuron(l, p);
      if (b.has_gate) {
        const uint32_t gate = 1 + 4 * model.config.n_layers + (model.config.tied_head ? 0 : 1) + l;
        EncodeRow(b.type, TinyMatrixRow(model, gate, p), std::span(payload).first(b.row_bytes()));
      }
      if (b.has_up) {
        EncodeRow(b.type, TinyUpRow(model, l, neuron),
                  std::span(payload).subspan(b.up_offset(), b.row_bytes()));
      }
      EncodeRow(b.type, TinyDownColumn(model, l, neuron),
                std::span(payload).subspan(b.down_offset()));
      SLUICE_RETURN_IF_ERROR(writer.WriteBundle(l, p, neuron, payload));
    }
  }
  return absl::OkStatus();
}

DirectoryShape TinyShape(WeightType ffn) {
  DirectoryShape shape;
  shape.matrix_types.fill(WeightType::kQ8);
  shape.matrix_types[static_cast<size_t>(MatrixRole::kEmbedding)] = WeightType::kF16;
  shape.matrix_types[static_cast<size_t>(MatrixRole::kHead)] = WeightType::kF16;
  shape.matrix_types[static_cast<size_t>(MatrixRole::kGate)] = ffn;
  shape.bundle_type = ffn;
  shape.block = 512;
  return shape;
}

DirectoryShape PredictedShape(WeightType ffn) {
  DirectoryShape shape = TinyShape(ffn);
  shape.gate_in_bundles = true;
  shape.predictor_ranks = {32, 64};
  return shape;
}

}  // namespace

TinySluice MakeTinySluice(WeightType ffn) {
  TinySluice model;
  ModelConfig& c = model.config;
  c.architecture = "llama";
  c.name = "tiny";
  c.n_layers = 2;
  c.d_model = 64;
  c.d_ff = 96;
  c.n_heads = 4;
  c.n_kv_heads = 2;
  c.head_dim = 16;
  c.vocab_size = 40;
  c.context_length = 128;
  c.norm_epsilon = 1e-6f;
  c.rope_base = 50000.0f;
  c.rope_style = RopeStyle::kHalf;
  c.activation = Activation::kFatRelu;
  c.activation_origin = ActivationOrigin::kFlag;
  c.activation_threshold = 0.125f;
  c.qkv_bias = true;
  model.directory = MakeDirectory(c, TinyShape(ffn));
  model.vectors = Vectors(c);
  model.tokenizer = Tokenizer(c.vocab_size);
  model.provenance = {"tiny.gguf", "F32", "test", 0.5f, 0.25f, 0.125f, 0.0625f};
  return model;
}

TinySluice MakeTinyRelative(WeightType ffn) {
  TinySluice model = MakeTinySluice(ffn);
  ModelConfig& c = model.config;
  c.architecture = "opt";
  c.norm = NormKind::kLayer;
  c.gated = false;
  c.o_bias = c.ffn_bias = c.learned_positions = true;
  c.unrotated = 8;
  model.directory = MakeDirectory(c, TinyShape(ffn));
  model.vectors = Vectors(c);
  return model;
}

TinySluice MakeTinyPredicted(WeightType ffn) {
  TinySluice model = MakeTinySluice(ffn);
  const DirectoryShape shape = PredictedShape(ffn);
  model.directory = MakeDirectory(model.config, shape);
  model.predictor = {PredictorInput::kPrevious, {0.5f, -1.25f}};
  ActivityRecord activity{
      .n_tokens = 1234, .n_hot = {10, 0}, .frequency = {}, .placements = {{64, 0}, {96, 64}}};
  for (uint32_t i = 0; i < 2 * model.config.d_ff; ++i) {
    activity.frequency.push_back(static_cast<uint16_t>(65535 - 300 * i));
  }
  model.activity = activity;
  return model;
}

TinySluice MakeTinyHeadPredicted(WeightType ffn) {
  TinySluice model = MakeTinyPredicted(ffn);
  DirectoryShape shape = PredictedShape(ffn);
  shape.head_predictor_ranks = {64, 32};
  model.directory = MakeDirectory(model.config, shape);
  model.head_predictor = {{PredictorInput::kResidual, {-0.5f, 2.0f}}, 0.75f};
  return model;
}

TinySluice MakeTinyThresholded(WeightType ffn) {
  TinySluice model = MakeTinyPredicted(ffn);
  model.config.activation = Activation::kSilu;
  model.config.activation_threshold = 0.0f;
  model.thresholds = {0.25f, 0.0f};
  return model;
}

uint32_t TinyNeuron(uint32_t layer, uint32_t position) {
  return (position * 5 + layer + 1) % 96;  // a permutation: 5 and 96 have no common divisor
}

std::vector<float> TinyMatrixRow(const TinySluice& model, uint32_t matrix, uint32_t row) {
  const MatrixEntry& m = model.directory.matrices[matrix];
  return ExactRow(m.type, matrix, row, m.columns);
}

std::vector<float> TinyUpRow(const TinySluice& model, uint32_t layer, uint32_t neuron) {
  const BundleLayout& b = model.directory.bundles;
  return ExactRow(b.type, kUpStream + layer, neuron, b.d_model);
}

std::vector<float> TinyDownColumn(const TinySluice& model, uint32_t layer, uint32_t neuron) {
  const BundleLayout& b = model.directory.bundles;
  return ExactRow(b.type, kDownStream + layer, neuron, b.d_model);
}

absl::StatusOr<uint64_t> WriteTinySluice(const TinySluice& model, const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(
      auto writer, SluiceWriter::Create(path, /*overwrite=*/true, model.config, model.directory));
  for (uint32_t i = 0; i < model.directory.matrices.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(WriteMatrix(model, i, *writer));
  }
  SLUICE_RETURN_IF_ERROR(WriteBundles(model, *writer));
  return writer->Finish(
      {model.vectors, model.tokenizer, model.provenance,
       model.predictor ? &*model.predictor : nullptr, model.activity ? &*model.activity : nullptr,
       model.head_predictor ? &*model.head_predictor : nullptr, model.thresholds});
}

}  // namespace sluice
