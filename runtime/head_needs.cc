#include "runtime/head_needs.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "io/status.h"
#include "io/storage_file.h"
#include "layout/matrix_rows.h"
#include "layout/weight_type.h"

namespace sluice {
namespace {

// grams [heads x d x d] += the outer products of the parts of a row of O that belong to each head.
void AddOuterProducts(std::span<const float> row, uint32_t d, std::span<float> grams) {
  for (size_t first = 0; first < row.size(); first += d) {
    float* gram = &grams[first * d];
    for (uint32_t i = 0; i < d; ++i) {
      for (uint32_t k = 0; k < d; ++k) gram[i * d + k] += row[first + i] * row[first + k];
    }
  }
}

}  // namespace

HeadNeeds::HeadNeeds(const ModelConfig& config, uint32_t first_layer, double share)
    : config_(&config),
      first_layer_(first_layer),
      share_(share),
      squares_(config.n_heads),
      heads_(config.n_heads) {}

absl::StatusOr<HeadNeeds> HeadNeeds::Create(const SluiceFile& file, uint32_t first_layer,
                                            uint32_t n_layers, double share) {
  const ModelConfig& c = file.config();
  HeadNeeds needs(c, first_layer, share);
  SLUICE_ASSIGN_OR_RETURN(const auto storage,
                          StorageFile::Open(file.path(), DirectMode::kOff, file.bundles().block));
  std::vector<std::byte> rows;
  std::vector<float> row(c.q_dim());
  for (uint32_t l = first_layer; l < first_layer + n_layers; ++l) {
    const uint32_t o = file.MatrixIndex(MatrixRole::kO, l);
    const MatrixEntry& m = file.matrix(o);
    SLUICE_RETURN_IF_ERROR(ReadMatrixRows(file, *storage, o, rows));
    auto& grams = needs.grams_.emplace_back(size_t{c.q_dim()} * c.head_dim);
    for (uint32_t r = 0; r < m.rows; ++r) {
      DecodeRow(m.type, std::span(rows).subspan(r * m.row_bytes(), m.row_bytes()), row);
      AddOuterProducts(row, c.head_dim, grams);
    }
  }
  return needs;
}

std::span<const float> HeadNeeds::SquaredNorms(uint32_t layer, std::span<const float> attended) {
  const uint32_t d = config_->head_dim;
  const auto& grams = grams_[layer - first_layer_];
  for (uint32_t h = 0; h < config_->n_heads; ++h) {
    const float* a = &attended[size_t{h} * d];
    const float* gram = &grams[size_t{h} * d * d];
    float sum = 0;
    for (uint32_t i = 0; i < d; ++i) {
      float dot = 0;
      for (uint32_t k = 0; k < d; ++k) dot += gram[i * d + k] * a[k];
      sum += a[i] * dot;
    }
    squares_[h] = std::max(sum, 0.0f);  // rounding may leave a little less than nothing
  }
  return squares_;
}

std::span<const uint32_t> HeadNeeds::Select(uint32_t layer, std::span<const float> attended) {
  const uint32_t n = FewestForShare(SquaredNorms(layer, attended), share_, heads_);
  return std::span(heads_).first(n);
}

uint32_t FewestForShare(std::span<const float> squares, double share, std::span<uint32_t> places) {
  double all = 0;
  for (const float s : squares) all += static_cast<double>(s);
  std::iota(places.begin(), places.end(), 0u);
  if (!std::isfinite(all)) return static_cast<uint32_t>(places.size());  // NaNs have no order
  std::sort(places.begin(), places.end(), [&](uint32_t a, uint32_t b) {
    return squares[a] != squares[b] ? squares[a] > squares[b] : a < b;
  });
  double sum = 0;
  uint32_t n = 0;
  while (n < places.size() && squares[places[n]] > 0 && sum < share * all) {
    sum += static_cast<double>(squares[places[n++]]);
  }
  std::sort(places.begin(), places.begin() + n);
  return n;
}

}  // namespace sluice
