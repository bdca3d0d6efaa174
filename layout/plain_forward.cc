#include "layout/plain_forward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <string>

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/parallel_rows.h"

namespace sluice {
namespace {

// Rows in shape {positions, width}, one after the other.
using Matrix = std::vector<float>;

float Dot(const float* a, const float* b, size_t n) {
  constexpr size_t kLanes = 16;  // independent sums, so that the compiler may use vector registers
  float sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  float sum = 0.0f;
  for (; i < n; ++i) sum += a[i] * b[i];
  for (const float s : sums) sum += s;
  return sum;
}

class Forward {
 public:
  Forward(const GgufFile& file, const ModelConfig& config, std::span<const uint32_t> tokens,
          const ForwardOptions& options)
      : file_(file), config_(config), tokens_(tokens), options_(options) {}

  absl::StatusOr<ForwardResult> Run() {
    SLUICE_RETURN_IF_ERROR(Embed());
    for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
      SLUICE_RETURN_IF_ERROR(Attention(layer));
      SLUICE_RETURN_IF_ERROR(FeedForward(layer));
    }
    return Head();
  }

 private:
  absl::StatusOr<const GgufTensor*> Find(const std::string& name, uint64_t rows,
                                         uint64_t columns) const;
  absl::Status ReadRow(const GgufTensor& tensor, uint64_t row, std::vector<std::byte>& bytes,
                       std::span<float> values) const;
  absl::Status Embed();
  // The residual, RMS-normalised.
  absl::StatusOr<Matrix> Normalize(const std::string& norm) const;
  // x {positions, columns} times the matrix `name` {rows, columns} transposed.
  absl::StatusOr<Matrix> Multiply(const std::string& name, const Matrix& x, uint32_t columns,
                                  uint32_t rows) const;
  void Rotate(Matrix& x, uint32_t n_heads) const;
  Matrix Attend(const Matrix& q, const Matrix& k, const Matrix& v) const;
  absl::Status Attention(uint32_t layer);
  absl::Status FeedForward(uint32_t layer);
  absl::StatusOr<ForwardResult> Head() const;
  void AddToResidual(const Matrix& x) {
    for (size_t i = 0; i < residual_.size(); ++i) residual_[i] += x[i];
  }

  const GgufFile& file_;
  const ModelConfig& config_;
  const std::span<const uint32_t> tokens_;
  const ForwardOptions& options_;
  Matrix residual_;
};

absl::StatusOr<const GgufTensor*> Forward::Find(const std::string& name, uint64_t rows,
                                                uint64_t columns) const {
  const GgufTensor* tensor = file_.FindTensor(name);
  if (tensor == nullptr) {
    return absl::NotFoundError(
        absl::StrFormat("%s: there is no tensor \"%s\"", file_.path(), name));
  }
  const std::vector<uint64_t> vector = {columns}, matrix = {rows, columns};
  if (tensor->shape != matrix && !(rows == 1 && tensor->shape == vector)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: tensor \"%s\" does not have the shape %d x %d that the model needs",
                        file_.path(), name, rows, columns));
  }
  return tensor;
}

absl::Status Forward::ReadRow(const GgufTensor& tensor, uint64_t row, std::vector<std::byte>& bytes,
                              std::span<float> values) const {
  bytes.resize(values.size() / BlockElements(tensor.type) * BlockBytes(tensor.type));
  SLUICE_RETURN_IF_ERROR(file_.ReadTensor(tensor, row * bytes.size(), bytes));
  DecodeSource(tensor.type, bytes, values);
  return absl::OkStatus();
}

absl::Status Forward::Embed() {
  const uint32_t d = config_.d_model;
  SLUICE_ASSIGN_OR_RETURN(const GgufTensor* table,
                          Find("token_embd.weight", config_.vocab_size, d));
  residual_.resize(tokens_.size() * d);
  std::vector<std::byte> bytes;
  for (size_t t = 0; t < tokens_.size(); ++t) {
    if (tokens_[t] >= config_.vocab_size) {
      return absl::InvalidArgumentError(absl::StrFormat("token %d is not in the vocabulary of %d",
                                                        tokens_[t], config_.vocab_size));
    }
    SLUICE_RETURN_IF_ERROR(
        ReadRow(*table, tokens_[t], bytes, std::span(residual_).subspan(t * d, d)));
  }
  return absl::OkStatus();
}

absl::StatusOr<Matrix> Forward::Normalize(const std::string& norm) const {
  const uint32_t d = config_.d_model;
  SLUICE_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(norm, 1, d));
  std::vector<std::byte> bytes;
  std::vector<float> weight(d);
  SLUICE_RETURN_IF_ERROR(ReadRow(*tensor, 0, bytes, weight));
  Matrix y = residual_;
  for (size_t t = 0; t < tokens_.size(); ++t) {
    float* row = y.data() + t * d;
    const float scale =
        1.0f / std::sqrt(Dot(row, row, d) / static_cast<float>(d) + config_.norm_epsilon);
    for (uint32_t i = 0; i < d; ++i) row[i] *= scale * weight[i];
  }
  return y;
}

absl::StatusOr<Matrix> Forward::Multiply(const std::string& name, const Matrix& x, uint32_t columns,
                                         uint32_t rows) const {
  SLUICE_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name, rows, columns));
  Matrix y(tokens_.size() * rows);
  absl::Status status;
  std::mutex mutex;  // guards status
  ParallelRows(options_.n_threads, rows, [&](size_t begin, size_t end) {
    std::vector<std::byte> bytes;
    std::vector<float> row(columns);
    for (size_t r = begin; r < end; ++r) {
      const absl::Status read = ReadRow(*tensor, r, bytes, row);
      if (!read.ok()) {
        const std::lock_guard<std::mutex> lock(mutex);
        status.Update(read);
        return;
      }
      for (size_t t = 0; t < tokens_.size(); ++t) {
        y[t * rows + r] = Dot(row.data(), x.data() + t * columns, columns);
      }
    }
  });
  SLUICE_RETURN_IF_ERROR(status);
  return y;
}

void Forward::Rotate(Matrix& x, uint32_t n_heads) const {
  const uint32_t head_dim = config_.head_dim;
  for (size_t t = 0; t < tokens_.size(); ++t) {
    for (uint32_t i = 0; i < head_dim; i += 2) {
      const double angle =
          static_cast<double>(t) * std::pow(config_.rope_base, -static_cast<double>(i) / head_dim);
      const auto c = static_cast<float>(std::cos(angle));
      const auto s = static_cast<float>(std::sin(angle));
      for (uint32_t head = 0; head < n_heads; ++head) {
        float* pair = x.data() + (t * n_heads + head) * head_dim + i;
        const float a = pair[0], b = pair[1];
        pair[0] = a * c - b * s;
        pair[1] = a * s + b * c;
      }
    }
  }
}

Matrix Forward::Attend(const Matrix& q, const Matrix& k, const Matrix& v) const {
  const uint32_t head_dim = config_.head_dim, kv_dim = config_.kv_dim(), q_dim = config_.q_dim();
  const uint32_t sharing = config_.n_heads / config_.n_kv_heads;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  Matrix out(q.size());
  std::vector<float> weights(tokens_.size());
  for (size_t t = 0; t < tokens_.size(); ++t) {
    for (uint32_t head = 0; head < config_.n_heads; ++head) {
      const size_t kv = size_t{head / sharing} * head_dim;
      const float* query = q.data() + t * q_dim + size_t{head} * head_dim;
      float largest = -std::numeric_limits<float>::infinity();
      for (size_t past = 0; past <= t; ++past) {
        weights[past] = scale * Dot(query, k.data() + past * kv_dim + kv, head_dim);
        largest = std::max(largest, weights[past]);
      }
      float sum = 0.0f;
      for (size_t past = 0; past <= t; ++past)
        sum += weights[past] = std::exp(weights[past] - largest);
      float* y = out.data() + t * q_dim + size_t{head} * head_dim;
      for (size_t past = 0; past <= t; ++past) {
        const float w = weights[past] / sum;
        const float* value = v.data() + past * kv_dim + kv;
        for (uint32_t i = 0; i < head_dim; ++i) y[i] += w * value[i];
      }
    }
  }
  return out;
}

absl::Status Forward::Attention(uint32_t layer) {
  const uint32_t d = config_.d_model, kv_dim = config_.kv_dim(), q_dim = config_.q_dim();
  const std::string block = absl::StrFormat("blk.%d.", layer);
  SLUICE_ASSIGN_OR_RETURN(const Matrix x, Normalize(block + "attn_norm.weight"));
  SLUICE_ASSIGN_OR_RETURN(Matrix q, Multiply(block + "attn_q.weight", x, d, q_dim));
  SLUICE_ASSIGN_OR_RETURN(Matrix k, Multiply(block + "attn_k.weight", x, d, kv_dim));
  SLUICE_ASSIGN_OR_RETURN(const Matrix v, Multiply(block + "attn_v.weight", x, d, kv_dim));
  Rotate(q, config_.n_heads);
  Rotate(k, config_.n_kv_heads);
  SLUICE_ASSIGN_OR_RETURN(const Matrix y,
                          Multiply(block + "attn_output.weight", Attend(q, k, v), q_dim, d));
  AddToResidual(y);
  return absl::OkStatus();
}

absl::Status Forward::FeedForward(uint32_t layer) {
  const uint32_t d = config_.d_model, d_ff = config_.d_ff;
  const std::string block = absl::StrFormat("blk.%d.", layer);
  SLUICE_ASSIGN_OR_RETURN(const Matrix x, Normalize(block + "ffn_norm.weight"));
  SLUICE_ASSIGN_OR_RETURN(Matrix h, Multiply(block + "ffn_gate.weight", x, d, d_ff));
  if (options_.on_gates) options_.on_gates(layer, h);
  SLUICE_ASSIGN_OR_RETURN(const Matrix up, Multiply(block + "ffn_up.weight", x, d, d_ff));
  for (size_t i = 0; i < h.size(); ++i) h[i] = std::max(h[i], 0.0f) * up[i];
  SLUICE_ASSIGN_OR_RETURN(const Matrix y, Multiply(block + "ffn_down.weight", h, d_ff, d));
  AddToResidual(y);
  return absl::OkStatus();
}

absl::StatusOr<ForwardResult> Forward::Head() const {
  SLUICE_ASSIGN_OR_RETURN(const Matrix x, Normalize("output_norm.weight"));
  const uint32_t n = config_.vocab_size;
  SLUICE_ASSIGN_OR_RETURN(const Matrix logits, Multiply("output.weight", x, config_.d_model, n));
  ForwardResult result;
  for (size_t t = 0; t < tokens_.size(); ++t) {
    const auto row = std::span(logits).subspan(t * n, n);
    const auto best = std::ranges::max_element(row);
    float second = -std::numeric_limits<float>::infinity();
    for (auto it = row.begin(); it != row.end(); ++it) {
      if (it != best) second = std::max(second, *it);
    }
    result.best_token.push_back(static_cast<uint32_t>(best - row.begin()));
    result.margin.push_back(*best - second);
  }
  return result;
}

}  // namespace

absl::StatusOr<ForwardResult> RunPlainForward(const GgufFile& file, const ModelConfig& config,
                                              std::span<const uint32_t> tokens,
                                              const ForwardOptions& options) {
  return Forward(file, config, tokens, options).Run();
}

}  // namespace sluice
