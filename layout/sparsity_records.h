// What a `.sluice` file may know about which neurons fire: how its predictors are asked, how often
// each neuron fired in the text that it was profiled with, and from which magnitude on an
// activation without exact zeros counts. All are optional sections; the records are described in
// layout/sluice_format.h.
#ifndef SLUICE_LAYOUT_SPARSITY_RECORDS_H_
#define SLUICE_LAYOUT_SPARSITY_RECORDS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "layout/byte_io.h"
#include "layout/model_config.h"

namespace sluice {

// What a layer's predictor looks at. Values are stored in files.
enum class PredictorInput : uint8_t {
  kNormed = 0,    // what the layer's FFN matrices are applied to
  kResidual = 1,  // the same before the norm (PowerInfer)
  kPrevious = 2,  // the residual before the FFN of the layer before, so that reads can begin a
                  // layer ahead; the first layer looks at its own residual
};

// How the predictor matrices of a file are used: a neuron is predicted to fire if
// fc2(relu(fc1(input))) is at least the layer's threshold (PowerInfer thresholds the raw logit).
struct PredictorRecord {
  PredictorInput input = PredictorInput::kResidual;
  std::vector<float> thresholds;  // by layer
};

// The same for attention heads (Deja Vu, arXiv 2310.17157), where inputs are those of the
// attention: for "FFN" above read Q, K and V, or the attention.
struct HeadPredictorRecord {
  PredictorRecord use;
  // What the predictor was trained to find: for each token the fewest heads whose squared norms
  // make up this share of all heads'.
  float label_share = 0;
};

constexpr uint32_t kMaxPlacements = 64;

// How often neurons fired, of `n_tokens` tokens. In each layer the neurons at positions
// [0, n_hot) are those that fire most, by falling frequency.
struct ActivityRecord {
  uint64_t n_tokens = 0;
  std::vector<uint32_t> n_hot;      // by layer
  std::vector<uint16_t> frequency;  // [layer x position], in 65535ths of the tokens
  // Placement plans for DRAM of several sizes: by layer, of how many of its neurons, the most
  // frequent ones, the bundles are kept (layout/placement.h).
  std::vector<std::vector<uint32_t>> placements;

  std::span<const uint16_t> of_layer(uint32_t layer, uint32_t d_ff) const {
    return std::span(frequency).subspan(size_t{layer} * d_ff, d_ff);
  }
};

void WritePredictorRecord(const PredictorRecord& record, ByteWriter& out);
void WriteHeadPredictorRecord(const HeadPredictorRecord& record, ByteWriter& out);
void WriteActivityRecord(const ActivityRecord& record, ByteWriter& out);
void WriteThresholds(std::span<const float> thresholds, ByteWriter& out);
// DataLoss naming the field if anything does not fit the config.
absl::StatusOr<PredictorRecord> ReadPredictorRecord(ByteReader& in, const ModelConfig& config);
absl::StatusOr<HeadPredictorRecord> ReadHeadPredictorRecord(ByteReader& in,
                                                            const ModelConfig& config);
absl::StatusOr<ActivityRecord> ReadActivityRecord(ByteReader& in, const ModelConfig& config);
absl::StatusOr<std::vector<float>> ReadThresholds(ByteReader& in, const ModelConfig& config);
// Raw bytes that a record of this model takes at most.
uint64_t ActivityRecordBytes(const ModelConfig& config);

// InvalidArgument unless a model of this config may have these activation thresholds: one a layer,
// finite and not negative, and an activation without exact zeros.
absl::Status CheckThresholds(std::span<const float> thresholds, const ModelConfig& config);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_SPARSITY_RECORDS_H_
