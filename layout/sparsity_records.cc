#include "layout/sparsity_records.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_format.h"
#include "io/status.h"

namespace sluice {
namespace {

constexpr uint32_t kPredictorVersion = 1;
constexpr uint32_t kActivityVersion = 1;
constexpr uint32_t kThresholdsVersion = 1;

absl::Status OtherVersion(const char* record, uint32_t version) {
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s record has version %u; this program reads 1: update sluice", record, version));
}

// `name` is of the record, for messages.
absl::StatusOr<PredictorRecord> ReadUse(ByteReader& in, const ModelConfig& config,
                                        const char* name) {
  const auto version = in.Get<uint32_t>();
  if (version != kPredictorVersion) return OtherVersion(name, version);
  const auto input = in.Get<uint8_t>();
  if (input > static_cast<uint8_t>(PredictorInput::kPrevious)) {
    return absl::DataLossError(absl::StrFormat("%s record: unknown input %u", name, input));
  }
  PredictorRecord record;
  record.input = static_cast<PredictorInput>(input);
  const auto n_layers = in.Get<uint32_t>();
  if (n_layers != config.n_layers) {
    return absl::DataLossError(absl::StrFormat("%s record is of %u layers; the config has %u", name,
                                               n_layers, config.n_layers));
  }
  for (uint32_t l = 0; l < n_layers; ++l) {
    const auto t = in.Get<float>();
    if (!std::isfinite(t)) {
      return absl::DataLossError(
          absl::StrFormat("%s record: the threshold of layer %u is no number", name, l));
    }
    record.thresholds.push_back(t);
  }
  if (!in.ok()) return absl::DataLossError(absl::StrFormat("%s record is cut short", name));
  return record;
}

}  // namespace

void WritePredictorRecord(const PredictorRecord& record, ByteWriter& out) {
  out.Put<uint32_t>(kPredictorVersion);
  out.Put<uint8_t>(static_cast<uint8_t>(record.input));
  out.Put<uint32_t>(static_cast<uint32_t>(record.thresholds.size()));
  for (const float t : record.thresholds) out.Put<float>(t);
}

absl::StatusOr<PredictorRecord> ReadPredictorRecord(ByteReader& in, const ModelConfig& config) {
  return ReadUse(in, config, "predictor");
}

void WriteHeadPredictorRecord(const HeadPredictorRecord& record, ByteWriter& out) {
  WritePredictorRecord(record.use, out);
  out.Put<float>(record.label_share);
}

absl::StatusOr<HeadPredictorRecord> ReadHeadPredictorRecord(ByteReader& in,
                                                            const ModelConfig& config) {
  HeadPredictorRecord record;
  SLUICE_ASSIGN_OR_RETURN(record.use, ReadUse(in, config, "head predictor"));
  record.label_share = in.Get<float>();
  if (!in.ok()) return absl::DataLossError("head predictor record is cut short");
  if (!(record.label_share > 0 && record.label_share <= 1)) {
    return absl::DataLossError(
        absl::StrFormat("head predictor record: a label share of %g", record.label_share));
  }
  return record;
}

void WriteActivityRecord(const ActivityRecord& record, ByteWriter& out) {
  out.Put<uint32_t>(kActivityVersion);
  out.Put<uint64_t>(record.n_tokens);
  for (const uint32_t n : record.n_hot) out.Put<uint32_t>(n);
  for (const uint16_t f : record.frequency) out.Put<uint16_t>(f);
  out.Put<uint32_t>(static_cast<uint32_t>(record.placements.size()));
  for (const auto& placement : record.placements) {
    for (const uint32_t n : placement) out.Put<uint32_t>(n);
  }
}

uint64_t ActivityRecordBytes(const ModelConfig& config) {
  return 16 + config.n_layers * (4 + 2 * uint64_t{config.d_ff} + 4 * kMaxPlacements);
}

absl::StatusOr<ActivityRecord> ReadActivityRecord(ByteReader& in, const ModelConfig& config) {
  const auto version = in.Get<uint32_t>();
  if (version != kActivityVersion) return OtherVersion("activity", version);
  ActivityRecord record;
  record.n_tokens = in.Get<uint64_t>();
  for (uint32_t l = 0; l < config.n_layers; ++l) {
    record.n_hot.push_back(in.Get<uint32_t>());
    if (record.n_hot.back() > config.d_ff) {
      return absl::DataLossError(
          absl::StrFormat("activity record: layer %u has %u hot neurons of %u", l,
                          record.n_hot.back(), config.d_ff));
    }
  }
  const size_t n = size_t{config.n_layers} * config.d_ff;
  const auto bytes = in.GetBytes(n * sizeof(uint16_t));
  if (!in.ok()) return absl::DataLossError("activity record is cut short");
  record.frequency.resize(n);
  std::memcpy(record.frequency.data(), bytes.data(), bytes.size());
  const auto n_placements = in.Get<uint32_t>();
  if (n_placements > kMaxPlacements) {
    return absl::DataLossError(absl::StrFormat("activity record has %u placements; at most %u",
                                               n_placements, kMaxPlacements));
  }
  for (uint32_t i = 0; i < n_placements; ++i) {
    auto& placement = record.placements.emplace_back();
    for (uint32_t l = 0; l < config.n_layers; ++l) {
      placement.push_back(in.Get<uint32_t>());
      if (placement.back() > config.d_ff) {
        return absl::DataLossError(
            absl::StrFormat("activity record: placement %u keeps %u neurons of %u of layer %u", i,
                            placement.back(), config.d_ff, l));
      }
    }
  }
  if (!in.ok()) return absl::DataLossError("activity record is cut short");
  return record;
}

absl::Status CheckThresholds(std::span<const float> thresholds, const ModelConfig& config) {
  if (config.sparse()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("activation thresholds, but the activation, %s, gives exact zeros",
                        ActivationName(config.activation)));
  }
  if (thresholds.size() != config.n_layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("activation thresholds of %u layers; the config has %u", thresholds.size(),
                        config.n_layers));
  }
  for (uint32_t l = 0; l < config.n_layers; ++l) {
    if (!std::isfinite(thresholds[l]) || thresholds[l] < 0.0f) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the activation threshold of layer %u is %g", l, thresholds[l]));
    }
  }
  return absl::OkStatus();
}

void WriteThresholds(std::span<const float> thresholds, ByteWriter& out) {
  out.Put<uint32_t>(kThresholdsVersion);
  out.Put<uint32_t>(static_cast<uint32_t>(thresholds.size()));
  for (const float t : thresholds) out.Put<float>(t);
}

absl::StatusOr<std::vector<float>> ReadThresholds(ByteReader& in, const ModelConfig& config) {
  const auto version = in.Get<uint32_t>();
  if (in.ok() && version != kThresholdsVersion) return OtherVersion("thresholds", version);
  const auto n_layers = in.Get<uint32_t>();
  if (n_layers > in.remaining() / sizeof(float)) {
    return absl::DataLossError("thresholds record is cut short");
  }
  std::vector<float> thresholds(n_layers);
  for (float& t : thresholds) t = in.Get<float>();
  if (!in.ok()) return absl::DataLossError("thresholds record is cut short");
  const absl::Status status = CheckThresholds(thresholds, config);
  if (!status.ok()) {
    return absl::DataLossError(absl::StrFormat("thresholds record: %s", status.message()));
  }
  return thresholds;
}

}  // namespace sluice
