// What K and V of tokens can be made from later: the normed inputs of a layer's attention, by layer
// and position, in the form in which its K and V rows are multiplied with it. So what is made later
// has the bits of what would have been made at once.
#ifndef SLUICE_RUNTIME_KEPT_INPUTS_H_
#define SLUICE_RUNTIME_KEPT_INPUTS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "io/aligned_buffer.h"
#include "layout/sluice_file.h"
#include "runtime/kernels/kernels.h"

namespace sluice {

// Thread-compatible. No allocation after Create.
class KeptInputs {
 public:
  static absl::StatusOr<KeptInputs> Create(const SluiceFile& file, uint32_t context);

  void Keep(uint32_t layer, uint32_t position, const VectorView& x);
  // What was kept last for this layer and position.
  VectorView View(uint32_t layer, uint32_t position) const;

  static size_t Bytes(const SluiceFile& file, uint32_t context);

 private:
  KeptInputs(const SluiceFile& file, uint32_t context);
  std::byte* at(uint32_t layer, uint32_t position) const {
    return memory_.data() + (size_t{layer} * context_ + position) * stride_;
  }

  uint32_t d_model_, context_;
  bool is_quantised_;  // else floats
  size_t stride_;
  AlignedBuffer memory_;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_KEPT_INPUTS_H_
