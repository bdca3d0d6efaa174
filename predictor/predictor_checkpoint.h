// The predictor of one layer on disk, so that a training that is interrupted goes on where it was.
#ifndef SLUICE_PREDICTOR_PREDICTOR_CHECKPOINT_H_
#define SLUICE_PREDICTOR_PREDICTOR_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "predictor/layer_predictor.h"
#include "predictor/packed_predictor.h"

namespace sluice {

// The file: "SLUICELP", u32 version 1, u64 run, u32 layer, u32 d_model, u32 d_ff, u32 rank, f32
// threshold, u32 k, u32 1 if the targets are met, u64 neurons, u64 active, u64 predicted, u64 hits
// of the quality, then the q8 rows of fc1 and of fc2 (by neuron id), then u64 XXH64 of all of it;
// little-endian.
struct PredictorCheckpoint {
  // Of the model, the text and the options that this comes from: another run's is not for this one.
  uint64_t run = 0;
  uint32_t layer = 0;
  LayerPredictor predictor;
  PredictorQuality quality;  // on held-out text
  uint32_t top_k = 0;        // see PackedPredictor::TopKFor, on the same text as the threshold
  bool meets_targets = false;

  // NotFound if there is no such file; DataLoss if it is truncated, damaged or not a checkpoint of
  // this shape. Takes no more memory than the largest predictor of the shape.
  static absl::StatusOr<PredictorCheckpoint> Load(const std::string& path, uint32_t d_model,
                                                  uint32_t d_ff);
  static absl::StatusOr<PredictorCheckpoint> Parse(std::span<const std::byte> bytes,
                                                   const std::string& source, uint32_t d_model,
                                                   uint32_t d_ff);
  std::vector<std::byte> Serialize() const;
  // Complete under its name or not there; replaces what was there.
  absl::Status Save(const std::string& path) const;
};

}  // namespace sluice

#endif  // SLUICE_PREDICTOR_PREDICTOR_CHECKPOINT_H_
