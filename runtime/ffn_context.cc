#include "runtime/ffn_context.h"

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "runtime/tensor_ops.h"
#include "runtime/weight_store.h"

namespace sluice {

float FfnContext::Act(float gate) const {
  const ModelConfig& c = file.config();
  return Activate(c.activation, c.activation_threshold, gate);
}

absl::Status FfnContext::Damaged(uint32_t layer, uint32_t position) const {
  return DamagedWeights(
      file,
      absl::StrFormat("bundle of layer %u, neuron %u,", layer, file.NeuronAt(layer, position)),
      bundles().BundleOffset(layer, position));
}

absl::Status FfnContext::Repair(uint32_t layer, uint32_t position, std::byte* bundle) const {
  const std::span<std::byte> bytes(bundle, bundles().payload_bytes());
  SLUICE_RETURN_IF_ERROR(io.file().ReadExactly(bundles().BundleOffset(layer, position), bytes));
  if (!file.BundleIsIntact(layer, position, bytes)) return Damaged(layer, position);
  return absl::OkStatus();
}

}  // namespace sluice
