#include "layout/relayout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "io/atomic_file.h"
#include "io/status.h"
#include "io/storage_file.h"
#include "layout/matrix_rows.h"
#include "layout/sluice_writer.h"

namespace sluice {
namespace {

absl::Status CheckOrder(const SluiceFile& in, const RelayoutOptions& options) {
  const ModelConfig& c = in.config();
  if (options.order.empty()) return absl::OkStatus();
  if (options.order.size() != c.n_layers) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: an order of %u layers for %u layers",
                                                      in.path(), options.order.size(), c.n_layers));
  }
  std::vector<bool> seen;
  for (uint32_t l = 0; l < c.n_layers; ++l) {
    seen.assign(c.d_ff, false);
    bool is_permutation = options.order[l].size() == c.d_ff;
    for (const uint32_t neuron : options.order[l]) {
      is_permutation = is_permutation && neuron < c.d_ff && !seen[neuron];
      if (!is_permutation) break;
      seen[neuron] = true;
    }
    if (is_permutation) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: the order of layer %u is not one of its %u neurons", in.path(), l, c.d_ff));
  }
  return absl::OkStatus();
}

// Predictors of `n_outputs` neurons or heads, which `what` says.
absl::Status CheckPredictors(const SluiceFile& in, std::span<const PredictorWeights> predictors,
                             const PredictorRecord& record, uint32_t n_outputs, const char* what) {
  const ModelConfig& c = in.config();
  if (predictors.empty()) return absl::OkStatus();
  const auto unfit = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s", in.path(), why));
  };
  if (predictors.size() != c.n_layers || record.thresholds.size() != c.n_layers) {
    return unfit(absl::StrFormat("%ss of %u layers, with %u thresholds, for %u layers", what,
                                 predictors.size(), record.thresholds.size(), c.n_layers));
  }
  for (uint32_t l = 0; l < c.n_layers; ++l) {
    const PredictorWeights& p = predictors[l];
    if (p.rank == 0 || p.rank > kMaxRank || p.rank % kQuantBlock != 0 ||
        p.fc1.size() != size_t{p.rank} * c.d_model || p.fc2.size() != size_t{n_outputs} * p.rank) {
      return unfit(
          absl::StrFormat("the %s of layer %u has %u and %u weights; rank %u needs %u and "
                          "%u",
                          what, l, p.fc1.size(), p.fc2.size(), p.rank, size_t{p.rank} * c.d_model,
                          size_t{n_outputs} * p.rank));
    }
    const float limit = LargestWeight(WeightType::kQ8);
    for (const auto weights : {p.fc1, p.fc2}) {
      if (std::all_of(weights.begin(), weights.end(),
                      [&](float w) { return std::fabs(w) <= limit; })) {
        continue;
      }
      return unfit(absl::StrFormat("the %s of layer %u has a weight that is no number", what, l));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAllPredictors(const SluiceFile& in, const RelayoutOptions& options) {
  const ModelConfig& c = in.config();
  SLUICE_RETURN_IF_ERROR(
      CheckPredictors(in, options.predictors, options.predictor_record, c.d_ff, "predictor"));
  SLUICE_RETURN_IF_ERROR(CheckPredictors(
      in, options.head_predictors, options.head_predictor_record.use, c.n_heads, "head predictor"));
  const bool has_any = !options.predictors.empty() || in.predictor() != nullptr;
  if (options.head_predictors.empty() || has_any) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: has no predictors of neurons, without which those of heads are of no use", in.path()));
}

// By layer: those that are given, else those of the file, of which `fc1` is the role.
std::vector<uint32_t> Ranks(const SluiceFile& in, std::span<const PredictorWeights> given,
                            MatrixRole fc1) {
  if (given.empty()) return in.directory().ranks(fc1);
  std::vector<uint32_t> ranks;
  for (const PredictorWeights& p : given) ranks.push_back(p.rank);
  return ranks;
}

// The directory of the new file: the types of the old one.
Directory NewDirectory(const SluiceFile& in, const RelayoutOptions& options) {
  DirectoryShape shape;
  for (const MatrixEntry& m : in.directory().matrices) {
    const auto role = static_cast<size_t>(m.role);
    if (role < shape.matrix_types.size()) shape.matrix_types[role] = m.type;
  }
  shape.bundle_type = in.bundles().type;
  shape.predictor_ranks = Ranks(in, options.predictors, MatrixRole::kPredictor1);
  shape.head_predictor_ranks = Ranks(in, options.head_predictors, MatrixRole::kHeadPredictor1);
  shape.gate_in_bundles = !shape.predictor_ranks.empty();
  return MakeDirectory(in.config(), shape);
}

class Relayouter {
 public:
  Relayouter(const SluiceFile& in, const StorageFile& storage, const RelayoutOptions& options,
             SluiceWriter& writer)
      : in_(in),
        storage_(storage),
        options_(options),
        config_(in.config()),
        from_(in.bundles()),
        to_(writer.directory().bundles),
        writer_(writer) {
    for (const MatrixEntry& m : writer.directory().matrices) total_ += m.n_bytes();
    total_ += config_.n_layers * to_.layer_bytes();
  }

  absl::Status Run() {
    const auto& matrices = writer_.directory().matrices;
    for (uint32_t i = 0; i < matrices.size(); ++i) {
      const MatrixEntry& m = matrices[i];
      if (m.role == MatrixRole::kGate) {
        SLUICE_RETURN_IF_ERROR(WriteLayer(i));
      } else if (IsPredictor(m.role)) {
        SLUICE_RETURN_IF_ERROR(WritePredictor(i));
      } else {
        SLUICE_RETURN_IF_ERROR(ReadRows(i));
        SLUICE_RETURN_IF_ERROR(WriteRows(i, {}));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ReadRows(uint32_t matrix) { return ReadMatrixRows(in_, storage_, matrix, rows_); }

  // Writes rows_; row r of the output is row source[r], or r where that is empty.
  absl::Status WriteRows(uint32_t matrix, std::span<const uint32_t> source) {
    const MatrixEntry& m = writer_.directory().matrices[matrix];
    const size_t row = m.row_bytes();
    for (uint32_t t = 0; t < m.n_tiles(); ++t) {
      const size_t first = size_t{t} * m.rows_per_tile, count = m.rows_in_tile(t);
      auto tile = std::span<const std::byte>(rows_).subspan(first * row, count * row);
      if (!source.empty()) {
        tile_.resize(count * row);
        for (size_t r = 0; r < count; ++r) {
          std::memcpy(&tile_[r * row], &rows_[source[first + r] * row], row);
        }
        tile = tile_;
      }
      SLUICE_RETURN_IF_ERROR(writer_.WriteTile(matrix, t, tile));
      SLUICE_RETURN_IF_ERROR(Progress(m.tile_stride));
    }
    return absl::OkStatus();
  }

  // The position in the input of what the output has at each position of a layer.
  std::vector<uint32_t> SourcePositions(uint32_t layer) const {
    std::vector<uint32_t> source(config_.d_ff);
    std::iota(source.begin(), source.end(), 0);
    if (options_.order.empty()) return source;
    std::vector<uint32_t> position_of(config_.d_ff);
    for (uint32_t p = 0; p < config_.d_ff; ++p) position_of[in_.NeuronAt(layer, p)] = p;
    for (uint32_t p = 0; p < config_.d_ff; ++p) source[p] = position_of[options_.order[layer][p]];
    return source;
  }

  absl::Status WriteLayer(uint32_t gate_matrix) {
    const uint32_t layer = writer_.directory().matrices[gate_matrix].layer;
    const std::vector<uint32_t> source = SourcePositions(layer);
    SLUICE_RETURN_IF_ERROR(ReadRows(gate_matrix));
    SLUICE_RETURN_IF_ERROR(WriteRows(gate_matrix, source));
    // Up to the end of the last bundle, which need not be followed by its padding.
    const uint64_t begin = from_.layer_offsets[layer];
    bundles_.resize(from_.BundleOffset(layer, from_.d_ff - 1) - begin + from_.payload_bytes());
    SLUICE_RETURN_IF_ERROR(storage_.ReadExactly(begin, bundles_));
    std::vector<std::byte> payload(to_.payload_bytes());
    const size_t row = to_.row_bytes();
    for (uint32_t p = 0; p < to_.d_ff; ++p) {
      const std::byte* bundle = &bundles_[from_.BundleOffset(layer, source[p]) - begin];
      const uint32_t neuron = in_.NeuronAt(layer, source[p]);
      if (!in_.BundleIsIntact(layer, source[p], {bundle, from_.payload_bytes()})) {
        return DamagedPart(in_, absl::StrFormat("bundle of layer %u, neuron %u", layer, neuron));
      }
      if (to_.has_gate) std::memcpy(payload.data(), &rows_[source[p] * row], row);
      std::memcpy(&payload[to_.up_offset()], bundle + from_.up_offset(),
                  to_.payload_bytes() - to_.up_offset());
      SLUICE_RETURN_IF_ERROR(writer_.WriteBundle(layer, p, neuron, payload));
      SLUICE_RETURN_IF_ERROR(Progress(to_.stride));
    }
    return absl::OkStatus();
  }

  absl::Status WritePredictor(uint32_t matrix) {
    const MatrixEntry& m = writer_.directory().matrices[matrix];
    const bool by_neuron = m.role == MatrixRole::kPredictor2;
    const bool of_heads = IsHeadPredictor(m.role);
    const auto given = of_heads ? options_.head_predictors : options_.predictors;
    std::vector<uint32_t> source = SourcePositions(m.layer);
    if (given.empty()) {
      SLUICE_RETURN_IF_ERROR(ReadRows(in_.MatrixIndex(m.role, m.layer)));
    } else {
      const PredictorWeights& p = given[m.layer];
      const bool is_fc2 = by_neuron || m.role == MatrixRole::kHeadPredictor2;
      rows_.resize(m.rows * m.row_bytes());
      for (size_t r = 0; r < m.rows; ++r) {
        EncodeRow(m.type, (is_fc2 ? p.fc2 : p.fc1).subspan(r * m.columns, m.columns),
                  std::span(rows_).subspan(r * m.row_bytes(), m.row_bytes()));
      }
      for (uint32_t& s : source) s = in_.NeuronAt(m.layer, s);
    }
    return WriteRows(matrix, by_neuron ? source : std::vector<uint32_t>());
  }

  absl::Status Progress(uint64_t bytes) {
    constexpr uint64_t kStep = 8 << 20;
    done_ += bytes;
    if (done_ / kStep == (done_ - bytes) / kStep) return absl::OkStatus();
    writer_.FlushBehind();
    if (!options_.progress || options_.progress(done_, total_)) return absl::OkStatus();
    return absl::CancelledError("stopped on request");
  }

  const SluiceFile& in_;
  const StorageFile& storage_;
  const RelayoutOptions& options_;
  const ModelConfig& config_;
  const BundleLayout& from_;
  const BundleLayout& to_;
  SluiceWriter& writer_;
  std::vector<std::byte> rows_, tile_, bundles_;
  uint64_t done_ = 0, total_ = 0;
};

}  // namespace

absl::StatusOr<uint64_t> Relayout(const SluiceFile& in, const std::string& out,
                                  const RelayoutOptions& options) {
  if (SameFile(in.path(), out)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: is the input; choose another name for the output", out));
  }
  SLUICE_RETURN_IF_ERROR(CheckOrder(in, options));
  SLUICE_RETURN_IF_ERROR(CheckAllPredictors(in, options));
  if (!options.thresholds.empty()) {
    SLUICE_RETURN_IF_ERROR(Annotate(CheckThresholds(options.thresholds, in.config()), in.path()));
  }
  SLUICE_ASSIGN_OR_RETURN(const TokenizerData tokenizer, in.LoadTokenizer());
  SLUICE_ASSIGN_OR_RETURN(const auto storage,
                          StorageFile::Open(in.path(), DirectMode::kOff, in.bundles().block));
  SLUICE_ASSIGN_OR_RETURN(auto writer, SluiceWriter::Create(out, options.overwrite, in.config(),
                                                            NewDirectory(in, options)));
  SLUICE_RETURN_IF_ERROR(Relayouter(in, *storage, options, *writer).Run());
  SluiceWriter::Records records = {in.vectors(), tokenizer, in.provenance()};
  records.predictor = options.predictors.empty() ? in.predictor() : &options.predictor_record;
  records.head_predictor =
      options.head_predictors.empty() ? in.head_predictor() : &options.head_predictor_record;
  records.activity = options.activity;
  if (options.activity == nullptr && options.order.empty()) records.activity = in.activity();
  records.thresholds = options.thresholds.empty() ? in.thresholds() : options.thresholds;
  return writer->Finish(records);
}

}  // namespace sluice
