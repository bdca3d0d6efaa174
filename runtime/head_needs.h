// Which attention heads a token needs: what predictors of heads are trained on, and judged by.
//
// A head's weight for a token is the norm of what it adds to the residual, the product of its
// output and its columns of O, and not the norm of the output alone: a model whose V rows of a head
// are doubled and whose O columns are halved is the same model. A token needs the fewest heads
// whose squared norms make up a share of the sum over all heads.
#ifndef SLUICE_RUNTIME_HEAD_NEEDS_H_
#define SLUICE_RUNTIME_HEAD_NEEDS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/sluice_file.h"

namespace sluice {

// Confined to one thread. Holds for each head of its layers a matrix [head_dim x head_dim].
class HeadNeeds {
 public:
  // Of the layers [first, first + n); reads their O matrices. `share`: above 0, at most 1.
  static absl::StatusOr<HeadNeeds> Create(const SluiceFile& file, uint32_t first_layer,
                                          uint32_t n_layers, double share);

  uint32_t n_heads() const { return config_->n_heads; }
  // The heads that are needed, in rising order, of the outputs [heads * head_dim] of all heads of
  // one token; valid until the next call.
  std::span<const uint32_t> Select(uint32_t layer, std::span<const float> attended);
  // The squared norm of what each head adds; valid until the next call.
  std::span<const float> SquaredNorms(uint32_t layer, std::span<const float> attended);

 private:
  HeadNeeds(const ModelConfig& config, uint32_t first_layer, double share);

  const ModelConfig* config_;
  uint32_t first_layer_;
  double share_;
  // By layer and head O_h^T O_h, so that |O_h a|^2 = a^T (O_h^T O_h) a: cheap, whatever d_model is.
  std::vector<std::vector<float>> grams_;
  std::vector<float> squares_;
  std::vector<uint32_t> heads_;
};

// The fewest numbers that make up at least this share of the sum of all, largest first, of equal
// ones the first; their places in rising order. `squares` are not negative. Fills the beginning of
// `places`, which is as long, and returns how many; none if all are 0.
uint32_t FewestForShare(std::span<const float> squares, double share, std::span<uint32_t> places);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_HEAD_NEEDS_H_
