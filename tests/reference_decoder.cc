#include "tests/reference_decoder.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "io/status.h"
#include "layout/source_type.h"

namespace sluice {
namespace {

absl::StatusOr<std::vector<float>> ReadFloats(const ModelSource& source, const std::string& name) {
  const SourceTensor* tensor = source.Find(name);
  if (tensor == nullptr) return absl::NotFoundError(absl::StrCat("tensor ", name, " is missing"));
  size_t n = 1;
  for (const uint64_t d : tensor->shape) n *= d;
  std::vector<std::byte> raw(n / BlockElements(tensor->type) * BlockBytes(tensor->type));
  SLUICE_RETURN_IF_ERROR(source.ReadTensor(*tensor, 0, raw));
  std::vector<float> out(n);
  DecodeSource(tensor->type, raw, out);
  return out;
}

void RoundRow(WeightType type, std::span<float> row) {
  std::vector<std::byte> packed(RowBytes(type, row.size()));
  EncodeRow(type, row, packed);
  DecodeRow(type, packed, row);
}

void AddTo(std::vector<float>& x, const std::vector<float>& y) {
  for (size_t i = 0; i < y.size(); ++i) x[i] += y[i];
}

}  // namespace

absl::StatusOr<ReferenceDecoder> ReferenceDecoder::Load(const ModelSource& source) {
  ReferenceDecoder d;
  d.config_ = source.config();
  const auto matrix = [&](const std::string& name, Matrix& m) -> absl::Status {
    SLUICE_ASSIGN_OR_RETURN(m.w, ReadFloats(source, name + ".weight"));
    m.columns = source.Find(name + ".weight")->shape[1];
    m.rows = source.Find(name + ".weight")->shape[0];
    return absl::OkStatus();
  };
  SLUICE_RETURN_IF_ERROR(matrix("token_embd", d.embedding_));
  d.head_ = d.embedding_;
  if (!d.config_.tied_head) SLUICE_RETURN_IF_ERROR(matrix("output", d.head_));
  for (uint32_t l = 0; l < d.config_.n_layers; ++l) {
    const std::string blk = absl::StrCat("blk.", l, ".");
    Layer& layer = d.layers_.emplace_back();
    SLUICE_ASSIGN_OR_RETURN(layer.attention_norm, ReadFloats(source, blk + "attn_norm.weight"));
    SLUICE_ASSIGN_OR_RETURN(layer.ffn_norm, ReadFloats(source, blk + "ffn_norm.weight"));
    SLUICE_RETURN_IF_ERROR(matrix(blk + "attn_q", layer.q));
    SLUICE_RETURN_IF_ERROR(matrix(blk + "attn_k", layer.k));
    SLUICE_RETURN_IF_ERROR(matrix(blk + "attn_v", layer.v));
    SLUICE_RETURN_IF_ERROR(matrix(blk + "attn_output", layer.o));
    SLUICE_RETURN_IF_ERROR(matrix(blk + "ffn_gate", layer.gate));
    SLUICE_RETURN_IF_ERROR(matrix(blk + "ffn_up", layer.up));
    SLUICE_RETURN_IF_ERROR(matrix(blk + "ffn_down", layer.down));
    if (!d.config_.qkv_bias) continue;
    SLUICE_ASSIGN_OR_RETURN(layer.q_bias, ReadFloats(source, blk + "attn_q.bias"));
    SLUICE_ASSIGN_OR_RETURN(layer.k_bias, ReadFloats(source, blk + "attn_k.bias"));
    SLUICE_ASSIGN_OR_RETURN(layer.v_bias, ReadFloats(source, blk + "attn_v.bias"));
  }
  SLUICE_ASSIGN_OR_RETURN(d.output_norm_, ReadFloats(source, "output_norm.weight"));
  d.rope_divisors_.assign(d.config_.head_dim / 2, 1.0f);
  if (source.Find("rope_freqs.weight") != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(d.rope_divisors_, ReadFloats(source, "rope_freqs.weight"));
  }
  return d;
}

void ReferenceDecoder::RoundLikeDecoder(WeightType type) {
  half_kv_ = true;
  const auto by_row = [type](Matrix& m) {
    for (size_t r = 0; r < m.rows; ++r) {
      RoundRow(type, std::span(m.w).subspan(r * m.columns, m.columns));
    }
  };
  const auto by_column = [type](Matrix& m) {
    Vector column(m.rows);
    for (size_t c = 0; c < m.columns; ++c) {
      for (size_t r = 0; r < m.rows; ++r) column[r] = m.w[r * m.columns + c];
      RoundRow(type, column);
      for (size_t r = 0; r < m.rows; ++r) m.w[r * m.columns + c] = column[r];
    }
  };
  by_row(embedding_);
  by_row(head_);
  for (Layer& l : layers_) {
    for (Matrix* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up}) by_row(*m);
    by_column(l.down);
  }
}

ReferenceDecoder::Vector ReferenceDecoder::Matrix::Times(const Vector& x) const {
  Vector y(rows);
  for (size_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (size_t c = 0; c < columns; ++c) {
      sum += static_cast<double>(w[r * columns + c]) * static_cast<double>(x[c]);
    }
    y[r] = static_cast<float>(sum);
  }
  return y;
}

// x / sqrt(mean(x^2) + epsilon) * weight.
ReferenceDecoder::Vector ReferenceDecoder::Normed(const Vector& x, const Vector& weight) const {
  double squares = 0;
  for (const float v : x) squares += static_cast<double>(v) * static_cast<double>(v);
  const double mean = squares / static_cast<double>(x.size());
  const double root = std::sqrt(mean + static_cast<double>(config_.rms_epsilon));
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = static_cast<float>(static_cast<double>(x[i]) / root * static_cast<double>(weight[i]));
  }
  return y;
}

// Pair i of every head turns by position * base^(-2i / head_dim) / divisor[i].
void ReferenceDecoder::Rotate(size_t position, Vector& heads) const {
  const size_t d = config_.head_dim;
  for (size_t head = 0; head < heads.size(); head += d) {
    for (size_t i = 0; i < d / 2; ++i) {
      const double frequency =
          1.0 / std::pow(static_cast<double>(config_.rope_base),
                         2.0 * static_cast<double>(i) / static_cast<double>(d));
      const double angle =
          static_cast<double>(position) * frequency / static_cast<double>(rope_divisors_[i]);
      const bool interleaved = config_.rope_style == RopeStyle::kInterleaved;
      float& a = heads[head + (interleaved ? 2 * i : i)];
      float& b = heads[head + (interleaved ? 2 * i + 1 : i + d / 2)];
      const double x = static_cast<double>(a), y = static_cast<double>(b);
      a = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
      b = static_cast<float>(x * std::sin(angle) + y * std::cos(angle));
    }
  }
}

float ReferenceDecoder::Activate(float gate) const {
  const double g = static_cast<double>(gate);
  switch (config_.activation) {
    case Activation::kSilu:
      return static_cast<float>(g / (1.0 + std::exp(-g)));
    case Activation::kRelu:
      return gate > 0 ? gate : 0.0f;
    case Activation::kRelu2:
      return gate > 0 ? gate * gate : 0.0f;
    case Activation::kFatRelu:
      return gate >= config_.activation_threshold ? gate : 0.0f;
  }
  return 0.0f;
}

ReferenceDecoder::Vector ReferenceDecoder::Attend(const Vector& q, const std::vector<Vector>& keys,
                                                  const std::vector<Vector>& values) const {
  const size_t d = config_.head_dim;
  const size_t group = config_.n_heads / config_.n_kv_heads;
  Vector out(q.size());
  for (size_t head = 0; head < config_.n_heads; ++head) {
    const size_t kv = head / group * d;
    std::vector<double> weight(keys.size());
    double most = -INFINITY;
    for (size_t p = 0; p < keys.size(); ++p) {
      double dot = 0;
      for (size_t i = 0; i < d; ++i) {
        dot += static_cast<double>(q[head * d + i]) * static_cast<double>(keys[p][kv + i]);
      }
      weight[p] = dot / std::sqrt(static_cast<double>(d));
      most = std::max(most, weight[p]);
    }
    double sum = 0;
    for (double& w : weight) sum += w = std::exp(w - most);
    for (size_t i = 0; i < d; ++i) {
      double mean = 0;
      for (size_t p = 0; p < keys.size(); ++p) {
        mean += weight[p] / sum * static_cast<double>(values[p][kv + i]);
      }
      out[head * d + i] = static_cast<float>(mean);
    }
  }
  return out;
}

void ReferenceDecoder::RunLayer(const Layer& layer, std::vector<Vector>& x) const {
  std::vector<Vector> keys, values;
  for (size_t t = 0; t < x.size(); ++t) {
    const Vector h = Normed(x[t], layer.attention_norm);
    Vector q = layer.q.Times(h), k = layer.k.Times(h), v = layer.v.Times(h);
    AddTo(q, layer.q_bias);
    AddTo(k, layer.k_bias);
    AddTo(v, layer.v_bias);
    Rotate(t, q);
    Rotate(t, k);
    if (half_kv_) {
      RoundRow(WeightType::kF16, k);
      RoundRow(WeightType::kF16, v);
    }
    keys.push_back(k);
    values.push_back(v);
    AddTo(x[t], layer.o.Times(Attend(q, keys, values)));

    const Vector f = Normed(x[t], layer.ffn_norm);
    const Vector gate = layer.gate.Times(f), up = layer.up.Times(f);
    Vector inner(gate.size());
    for (size_t i = 0; i < gate.size(); ++i) {
      const float a = Activate(gate[i]);
      n_zero_ += a == 0.0f;
      inner[i] = a * up[i];
    }
    n_neurons_ += static_cast<double>(gate.size());
    AddTo(x[t], layer.down.Times(inner));
  }
}

std::vector<std::vector<float>> ReferenceDecoder::Logits(std::span<const int32_t> tokens) const {
  n_zero_ = n_neurons_ = 0;
  std::vector<Vector> x;
  for (const int32_t t : tokens) {
    const auto row = embedding_.w.begin() + t * static_cast<ptrdiff_t>(config_.d_model);
    x.emplace_back(row, row + config_.d_model);
  }
  for (const Layer& layer : layers_) RunLayer(layer, x);
  std::vector<Vector> logits;
  for (const Vector& v : x) logits.push_back(head_.Times(Normed(v, output_norm_)));
  return logits;
}

}  // namespace sluice
