#include "runtime/kept_inputs.h"

#include <cstring>

#include "io/status.h"
#include "layout/weight_type.h"

namespace sluice {
namespace {

// Whether no K or V rows are multiplied with floats.
bool IsQuantised(const SluiceFile& file) {
  for (const MatrixEntry& m : file.directory().matrices) {
    const bool is_kv = m.role == MatrixRole::kK || m.role == MatrixRole::kV;
    if (is_kv && m.type != WeightType::kQ8 && m.type != WeightType::kQ4) return false;
  }
  return true;
}

// A quantised one: quants, then scales, then sums of the blocks.
size_t Stride(const SluiceFile& file) {
  const size_t d = file.config().d_model;
  if (!IsQuantised(file)) return d * sizeof(float);
  return d + d / kQuantBlock * (sizeof(float) + sizeof(int32_t));
}

}  // namespace

KeptInputs::KeptInputs(const SluiceFile& file, uint32_t context)
    : d_model_(file.config().d_model),
      context_(context),
      is_quantised_(IsQuantised(file)),
      stride_(Stride(file)) {}

size_t KeptInputs::Bytes(const SluiceFile& file, uint32_t context) {
  return size_t{file.config().n_layers} * context * Stride(file);
}

absl::StatusOr<KeptInputs> KeptInputs::Create(const SluiceFile& file, uint32_t context) {
  KeptInputs kept(file, context);
  SLUICE_ASSIGN_OR_RETURN(kept.memory_, AlignedBuffer::Allocate(Bytes(file, context)));
  return kept;
}

void KeptInputs::Keep(uint32_t layer, uint32_t position, const VectorView& x) {
  std::byte* to = at(layer, position);
  if (!is_quantised_) {
    std::memcpy(to, x.f, d_model_ * sizeof(float));
    return;
  }
  const size_t blocks = d_model_ / kQuantBlock;
  std::memcpy(to, x.q, d_model_);
  std::memcpy(to + d_model_, x.scale, blocks * sizeof(float));
  std::memcpy(to + d_model_ + blocks * sizeof(float), x.block_sums, blocks * sizeof(int32_t));
}

VectorView KeptInputs::View(uint32_t layer, uint32_t position) const {
  const std::byte* from = at(layer, position);
  VectorView view;
  if (!is_quantised_) {
    view.f = reinterpret_cast<const float*>(from);
    return view;
  }
  const size_t blocks = d_model_ / kQuantBlock;
  view.q = reinterpret_cast<const int8_t*>(from);
  view.scale = reinterpret_cast<const float*>(from + d_model_);
  view.block_sums = reinterpret_cast<const int32_t*>(from + d_model_ + blocks * sizeof(float));
  return view;
}

}  // namespace sluice
