#include "tests/toy_model.h"

#include <cmath>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/counter_rng.h"
#include "layout/gguf_source.h"
#include "layout/gguf_writer.h"
#include "layout/source_encode.h"
#include "layout/tokenizer_data.h"

namespace sluice {
namespace {

// The part that all elements of all embeddings share, in units of their deviation.
constexpr float kCommon = 0.5f;

struct Tensor {
  std::string name;
  std::vector<uint64_t> shape;
  float deviation;
  float mean;
};

bool IsGated(const ToyModel& m) { return m.architecture == "llama" || m.architecture == "qwen2"; }
bool HasLayerNorms(const ToyModel& m) {
  return m.architecture == "opt" || m.architecture == "nemotron";
}

std::vector<Tensor> Tensors(const ToyModel& m) {
  const auto by = [](uint32_t n) { return 1.0f / std::sqrt(static_cast<float>(n)); };
  const uint64_t d = m.d_model, q = uint64_t{m.n_heads} * m.head_dim;
  const uint64_t kv = uint64_t{m.n_kv_heads} * m.head_dim;
  std::vector<Tensor> out;
  const bool gated = IsGated(m), is_opt = m.architecture == "opt";
  const auto bias = [&](const std::string& name, uint64_t n, float mean = 0.0f) {
    out.push_back({name + ".bias", {n}, 0.2f, mean});
  };
  // Layer norms take out what embeddings share: their biases put it in again.
  const auto norm = [&](const std::string& name) {
    out.push_back({name + ".weight", {d}, 0.1f, 1.0f});
    if (HasLayerNorms(m)) bias(name, d, kCommon / std::sqrt(1.0f + kCommon * kCommon));
  };
  out.push_back({"token_embd.weight", {m.vocab_size, d}, 1.0f, kCommon});
  if (is_opt) out.push_back({"position_embd.weight", {m.context_length, d}, 0.5f, 0.0f});
  for (uint32_t l = 0; l < m.n_layers; ++l) {
    const std::string blk = absl::StrCat("blk.", l, ".");
    norm(blk + "attn_norm");
    norm(blk + "ffn_norm");
    out.push_back({blk + "attn_q.weight", {q, d}, 1.5f * by(m.d_model), 0.0f});
    out.push_back({blk + "attn_k.weight", {kv, d}, 1.5f * by(m.d_model), 0.0f});
    out.push_back({blk + "attn_v.weight", {kv, d}, by(m.d_model), 0.0f});
    out.push_back({blk + "attn_output.weight", {d, q}, 0.7f * by(static_cast<uint32_t>(q)), 0.0f});
    // The input of the gate (or up, without one) has mean kCommon / sqrt(1 + kCommon^2): this mean
    // of its weights moves gate values by gate_lean * that much.
    const float lean = -m.gate_lean / static_cast<float>(m.d_model);
    if (gated) out.push_back({blk + "ffn_gate.weight", {m.d_ff, d}, by(m.d_model), lean});
    out.push_back({blk + "ffn_up.weight", {m.d_ff, d}, by(m.d_model), gated ? 0.0f : lean});
    out.push_back({blk + "ffn_down.weight", {d, m.d_ff}, 2.0f * by(m.d_ff), 0.0f});
    if (is_opt) {
      bias(blk + "attn_output", d);
      bias(blk + "ffn_up", m.d_ff);
      bias(blk + "ffn_down", d);
    }
    if (m.architecture != "qwen2" && !is_opt) continue;
    out.push_back({blk + "attn_q.bias", {q}, 0.3f, 0.0f});
    out.push_back({blk + "attn_k.bias", {kv}, 0.3f, 0.0f});
    out.push_back({blk + "attn_v.bias", {kv}, 0.3f, 0.0f});
  }
  norm("output_norm");
  if (!m.tied_head) out.push_back({"output.weight", {m.vocab_size, d}, 3.0f * by(m.d_model), 0.0f});
  if (m.rope_divisors) out.push_back({"rope_freqs.weight", {m.head_dim / 2}, 0.3f, 2.0f});
  return out;
}

// <unk>, <s>, </s>, all bytes, then words of one to three letters.
void AddVocabulary(const ToyModel& m, GgufWriter& writer) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {static_cast<int32_t>(TokenType::kUnknown),
                                static_cast<int32_t>(TokenType::kControl),
                                static_cast<int32_t>(TokenType::kControl)};
  for (uint32_t b = 0; b < 256; ++b) {
    tokens.push_back(absl::StrFormat("<0x%02X>", b));
    types.push_back(static_cast<int32_t>(TokenType::kByte));
  }
  for (uint32_t i = 0; tokens.size() < m.vocab_size; ++i) {
    std::string word = "\u2581";
    for (uint32_t n = i;; n /= 26) {
      word += static_cast<char>('a' + n % 26);
      if (n < 26) break;
    }
    tokens.push_back(word);
    types.push_back(static_cast<int32_t>(TokenType::kNormal));
  }
  std::vector<float> scores(tokens.size());
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = -static_cast<float>(i);
  writer.AddString("tokenizer.ggml.model", "llama");
  writer.AddStringArray("tokenizer.ggml.tokens", tokens);
  writer.AddFloat32Array("tokenizer.ggml.scores", scores);
  writer.AddInt32Array("tokenizer.ggml.token_type", types);
}

void AddMetadata(const ToyModel& m, GgufWriter& writer) {
  writer.AddString("general.architecture", m.architecture);
  writer.AddString("general.name", "toy");
  const auto number = [&](const char* key, uint32_t value) {
    writer.AddUint32(absl::StrCat(m.architecture, ".", key), value);
  };
  number("block_count", m.n_layers);
  number("embedding_length", m.d_model);
  number("feed_forward_length", m.d_ff);
  number("context_length", m.context_length);
  number("attention.head_count", m.n_heads);
  number("attention.head_count_kv", m.n_kv_heads);
  number("attention.key_length", m.head_dim);
  number("attention.value_length", m.head_dim);
  if (m.architecture == "nemotron") number("rope.dimension_count", m.head_dim / 2);
  writer.AddFloat32(
      absl::StrCat(m.architecture, HasLayerNorms(m) ? ".attention.layer_norm_epsilon"
                                                    : ".attention.layer_norm_rms_epsilon"),
      1e-5f);
  writer.AddFloat32(absl::StrCat(m.architecture, ".rope.freq_base"), m.rope_base);
  writer.AddString(kActivationKey, ActivationName(m.activation));
  if (m.activation == Activation::kFatRelu) {
    writer.AddFloat32(kActivationThresholdKey, m.threshold);
  }
  AddVocabulary(m, writer);
}

}  // namespace

ToyModel ToyRelative(const std::string& architecture) {
  ToyModel toy;
  toy.architecture = architecture;
  if (architecture == "opt") {
    toy.n_kv_heads = toy.n_heads;
    toy.tied_head = true;
  } else {
    toy.activation = Activation::kRelu2;
  }
  return toy;
}

absl::Status WriteToyModel(const ToyModel& model, const std::string& path) {
  GgufWriter writer;
  AddMetadata(model, writer);
  const std::vector<Tensor> tensors = Tensors(model);
  for (const Tensor& t : tensors) {
    const bool matrix = t.shape.size() == 2;
    writer.DeclareTensor(t.name, matrix ? model.type : SourceType::kF32, t.shape);
  }
  SLUICE_RETURN_IF_ERROR(writer.Start(path, /*overwrite=*/true));
  std::vector<float> row;
  std::vector<std::byte> encoded;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    const bool matrix = t.shape.size() == 2;
    const SourceType type = matrix ? model.type : SourceType::kF32;
    row.resize(t.shape.back());
    encoded.resize(row.size() / BlockElements(type) * BlockBytes(type));
    for (uint64_t r = 0; r < (matrix ? t.shape[0] : 1); ++r) {
      if (r == 0 || !model.equal_rows) {
        CounterRng rng(model.seed, i, r);
        for (float& v : row) v = t.mean + t.deviation * rng.Normal();
        EncodeSource(type, row, encoded);
      }
      SLUICE_RETURN_IF_ERROR(writer.Write(encoded));
    }
  }
  return writer.Finish();
}

}  // namespace sluice
