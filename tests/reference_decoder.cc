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
  // Of those that some models have.
  const auto optional = [&](const std::string& name, Vector& v) -> absl::Status {
    if (source.Find(name) == nullptr) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(v, ReadFloats(source, name));
    return absl::OkStatus();
  };
  const auto norm = [&](const std::string& name, Norm& n) -> absl::Status {
    SLUICE_ASSIGN_OR_RETURN(n.weight, ReadFloats(source, name + ".weight"));
    return optional(name + ".bias", n.bias);
  };
  SLUICE_RETURN_IF_ERROR(matrix("token_embd", d.embedding_));
  if (source.Find("position_embd.weight") != nullptr) {
    SLUICE_RETURN_IF_ERROR(matrix("position_embd", d.positions_));
  }
  d.head_ = d.embedding_;
  if (!d.config_.tied_head) SLUICE_RETURN_IF_ERROR(matrix("output", d.head_));
  for (uint32_t l = 0; l < d.config_.n_layers; ++l) {
    const std::string blk = absl::StrCat("blk.", l, ".");
    Layer& layer = d.layers_.emplace_back();
    SLUICE_RETURN_IF_ERROR(norm(blk + "attn_norm", layer.attention_norm));
    SLUICE_RETURN_IF_ERROR(norm(blk + "ffn_norm", layer.ffn_norm));
    SLUICE_RETURN_IF_ERROR(matrix(blk + "attn_q", layer.q));
    SLUICE_RETURN_IF_ERROR(matrix(blk + "attn_k", layer.k));
    SLUICE_RETURN_IF_ERROR(matrix(blk + "attn_v", layer.v));
    SLUICE_RETURN_IF_ERROR(matrix(blk + "attn_output", layer.o));
    if (source.Find(blk + "ffn_gate.weight") != nullptr) {
      SLUICE_RETURN_IF_ERROR(matrix(blk + "ffn_gate", layer.gate));
    }
    SLUICE_RETURN_IF_ERROR(matrix(blk + "ffn_up", layer.up));
    SLUICE_RETURN_IF_ERROR(matrix(blk + "ffn_down", layer.down));
    SLUICE_RETURN_IF_ERROR(optional(blk + "attn_q.bias", layer.q_bias));
    SLUICE_RETURN_IF_ERROR(optional(blk + "attn_k.bias", layer.k_bias));
    SLUICE_RETURN_IF_ERROR(optional(blk + "attn_v.bias", layer.v_bias));
    SLUICE_RETURN_IF_ERROR(optional(blk + "attn_output.bias", layer.o_bias));
    SLUICE_RETURN_IF_ERROR(optional(blk + "ffn_up.bias", layer.up_bias));
    SLUICE_RETURN_IF_ERROR(optional(blk + "ffn_down.bias", layer.down_bias));
  }
  SLUICE_RETURN_IF_ERROR(norm("output_norm", d.output_norm_));
  d.rope_divisors_.assign((d.config_.head_dim - d.config_.unrotated) / 2, 1.0f);
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

// x / sqrt(mean(x^2) + epsilon) * weight, or, with a bias,
// (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * weight + bias.
ReferenceDecoder::Vector ReferenceDecoder::Normed(const Vector& x, const Norm& norm) const {
  const auto n = static_cast<double>(x.size());
  double mean = 0;
  if (!norm.bias.empty()) {
    for (const float v : x) mean += static_cast<double>(v) / n;
  }
  double squares = 0;
  for (const float v : x) squares += std::pow(static_cast<double>(v) - mean, 2);
  const double root = std::sqrt(squares / n + static_cast<double>(config_.norm_epsilon));
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double normed = (static_cast<double>(x[i]) - mean) / root;
    y[i] = static_cast<float>(normed * static_cast<double>(norm.weight[i]));
  }
  AddTo(y, norm.bias);
  return y;
}

// Of the first n elements of every head pair i turns by position * base^(-2i / n) / divisor[i].
void ReferenceDecoder::Rotate(size_t position, Vector& heads) const {
  const size_t n = config_.head_dim - config_.unrotated;
  for (size_t head = 0; head < heads.size(); head += config_.head_dim) {
    for (size_t i = 0; i < n / 2; ++i) {
      const double frequency =
          1.0 / std::pow(static_cast<double>(config_.rope_base),
                         2.0 * static_cast<double>(i) / static_cast<double>(n));
      const double angle =
          static_cast<double>(position) * frequency / static_cast<double>(rope_divisors_[i]);
      const bool interleaved = config_.rope_style == RopeStyle::kInterleaved;
      float& a = heads[head + (interleaved ? 2 * i : i)];
      float& b = heads[head + (interleaved ? 2 * i + 1 : i + n / 2)];
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
    case Activation::kDRelu:
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

// down(activation(gate(x)) * up(x)), or without a gate down(activation(up(x) + bias)) + bias.
ReferenceDecoder::Vector ReferenceDecoder::Ffn(const Layer& layer, const Vector& x) const {
  const bool gated = layer.gate.rows > 0;
  Vector up = layer.up.Times(x);
  AddTo(up, layer.up_bias);
  const Vector gate = gated ? layer.gate.Times(x) : up;
  Vector inner(gate.size());
  for (size_t i = 0; i < gate.size(); ++i) {
    float a = Activate(gate[i]);
    if (std::fabs(a) < layer.threshold) a = 0.0f;
    n_zero_ += a == 0.0f;
    const bool rectified = config_.activation == Activation::kDRelu && up[i] < 0;
    inner[i] = gated ? a * (rectified ? 0.0f : up[i]) : a;
  }
  n_neurons_ += static_cast<double>(gate.size());
  Vector y = layer.down.Times(inner);
  AddTo(y, layer.down_bias);
  return y;
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
    AddTo(x[t], layer.o_bias);
    AddTo(x[t], Ffn(layer, Normed(x[t], layer.ffn_norm)));
  }
}

std::vector<std::vector<float>> ReferenceDecoder::Logits(std::span<const int32_t> tokens) const {
  n_zero_ = n_neurons_ = 0;
  std::vector<Vector> x;
  for (const int32_t t : tokens) {
    const auto row = embedding_.w.begin() + t * static_cast<ptrdiff_t>(config_.d_model);
    Vector& last = x.emplace_back(row, row + config_.d_model);
    if (positions_.rows == 0) continue;
    const size_t position = (x.size() - 1) * config_.d_model;
    for (size_t i = 0; i < last.size(); ++i) last[i] += positions_.w[position + i];
  }
  for (const Layer& layer : layers_) RunLayer(layer, x);
  std::vector<Vector> logits;
  for (const Vector& v : x) logits.push_back(head_.Times(Normed(v, output_norm_)));
  return logits;
}

}  // namespace sluice
