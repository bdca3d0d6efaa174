#include "layout/repack.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "io/atomic_file.h"
#include "io/status.h"
#include "layout/sluice_writer.h"

namespace sluice {
namespace {

// Floats of the transposed slab of down columns that is held at once.
constexpr size_t kSlabFloats = 12 << 20;
// One row in this many is decoded again to measure the error of packing.
constexpr uint32_t kErrorSample = 16;

WeightType ResidentTypeFor(SourceType source) {
  switch (source) {
    case SourceType::kF32:
      return WeightType::kF32;
    case SourceType::kF16:
    case SourceType::kBF16:
      return WeightType::kF16;
    case SourceType::kQ4_0:
      return WeightType::kQ4;
    default:
      return WeightType::kQ8;
  }
}

// FFN weights are most of a model: every 4-bit source stays at 4 bits.
WeightType BundleTypeFor(SourceType source) {
  const bool four_bits =
      source == SourceType::kQ4_0 || source == SourceType::kQ4_1 || source == SourceType::kQ4_K;
  return four_bits ? WeightType::kQ4 : ResidentTypeFor(source);
}

std::string TensorName(const ModelConfig& config, MatrixRole role, uint32_t layer) {
  switch (role) {
    case MatrixRole::kEmbedding:
      return "token_embd.weight";
    case MatrixRole::kHead:
      return "output.weight";
    case MatrixRole::kQ:
      return absl::StrFormat("blk.%u.attn_q.weight", layer);
    case MatrixRole::kK:
      return absl::StrFormat("blk.%u.attn_k.weight", layer);
    case MatrixRole::kV:
      return absl::StrFormat("blk.%u.attn_v.weight", layer);
    case MatrixRole::kO:
      return absl::StrFormat("blk.%u.attn_output.weight", layer);
    case MatrixRole::kGate:
      return absl::StrFormat("blk.%u.%s.weight", layer, config.gated ? "ffn_gate" : "ffn_up");
    case MatrixRole::kPredictor1:
      return absl::StrFormat("blk.%u.fc1.weight", layer);
    case MatrixRole::kPredictor2:
      return absl::StrFormat("blk.%u.fc2.weight", layer);
    case MatrixRole::kHeadPredictor1:  // no source has them
    case MatrixRole::kHeadPredictor2:
      break;
  }
  return "";
}

std::string TensorName(LayerVector vector, uint32_t layer) {
  constexpr std::string_view kNames[kLayerVectors] = {
      "attn_norm.weight", "ffn_norm.weight", "attn_q.bias",      "attn_k.bias", "attn_v.bias",
      "attn_norm.bias",   "ffn_norm.bias",   "attn_output.bias", "ffn_up.bias", "ffn_down.bias"};
  return absl::StrFormat("blk.%u.%s", layer, kNames[static_cast<size_t>(vector)]);
}

bool IsTurned(const SourceTensor& down) { return down.name.ends_with("ffn_down_t.weight"); }
std::string DownName(const ModelSource& source, uint32_t layer) {
  std::string turned = absl::StrFormat("blk.%u.ffn_down_t.weight", layer);
  if (source.Find(turned) != nullptr) return turned;
  return absl::StrFormat("blk.%u.ffn_down.weight", layer);
}

bool IsWider(WeightType a, WeightType b) { return a < b; }  // they are numbered from wide to narrow

// The widest of the types that a matrix's tensors, one a layer, ask for: files keep some layers at
// more bits. Roles that the model has not, as the head of a tied one, get the narrowest.
WeightType WidestType(const ModelSource& source, const std::function<std::string(uint32_t)>& name,
                      WeightType (*type_for)(SourceType)) {
  WeightType widest = WeightType::kQ4;
  for (uint32_t l = 0; l < source.config().n_layers; ++l) {
    const SourceTensor* t = source.Find(name(l));
    if (t != nullptr && IsWider(type_for(t->type), widest)) widest = type_for(t->type);
  }
  return widest;
}

// Relative root-mean-square error over the sampled rows.
class ErrorMeter {
 public:
  void Add(WeightType type, std::span<const float> exact, std::span<const std::byte> packed) {
    decoded_.resize(exact.size());
    DecodeRow(type, packed, decoded_);
    for (size_t i = 0; i < exact.size(); ++i) {
      const double e = static_cast<double>(decoded_[i]) - exact[i];
      error_ += e * e;
      norm_ += static_cast<double>(exact[i]) * exact[i];
    }
  }
  float Relative() const { return norm_ > 0 ? static_cast<float>(std::sqrt(error_ / norm_)) : 0; }

 private:
  std::vector<float> decoded_;
  double error_ = 0, norm_ = 0;
};

// Rows of a source tensor as floats. A value that `target` cannot hold, or that is no number, is an
// error: it would make every text that its neuron takes part in worthless.
class RowReader {
 public:
  RowReader(const ModelSource& source, const SourceTensor& tensor, WeightType target)
      : source_(source), tensor_(tensor), target_(target) {}

  // Elements [begin, end) of `row`; both are rounded outwards to whole blocks by the caller.
  absl::Status Read(uint64_t row, uint64_t begin, uint64_t end, std::span<float> dst) {
    const uint64_t block = BlockElements(tensor_.type);
    const uint64_t first = (row * tensor_.shape.back() + begin) / block * BlockBytes(tensor_.type);
    raw_.resize((end - begin) / block * BlockBytes(tensor_.type));
    SLUICE_RETURN_IF_ERROR(source_.ReadTensor(tensor_, first, raw_));
    DecodeSource(tensor_.type, raw_, dst);
    const float limit = LargestWeight(target_);
    bool holds = true;
    for (const float x : dst) holds &= std::fabs(x) <= limit;  // false for NaN too
    return holds ? absl::OkStatus() : Refuse(row, begin, limit, dst);
  }
  // Whole rows, consecutive.
  absl::Status ReadRows(uint64_t row, uint64_t count, std::span<float> dst) {
    return Read(row, 0, count * tensor_.shape.back(), dst);
  }
  // The same of a matrix that is to have `columns`, filled up with zeros on the right and below:
  // the ranks of predictors are rounded up.
  absl::Status ReadPadded(uint64_t row, size_t columns, std::span<float> dst) {
    const size_t width = tensor_.shape.back();
    const uint64_t n_rows = tensor_.shape.size() == 2 ? tensor_.shape[0] : 1;
    const uint64_t left = n_rows - std::min(row, n_rows);
    const size_t count = std::min<uint64_t>(dst.size() / columns, left);
    if (count > 0) SLUICE_RETURN_IF_ERROR(ReadRows(row, count, dst.first(count * width)));
    std::fill(dst.begin() + static_cast<ptrdiff_t>(count * width), dst.end(), 0.0f);
    if (width == columns) return absl::OkStatus();
    for (size_t r = count; r-- > 0;) {  // from behind, since rows move backwards
      std::copy_backward(&dst[r * width], &dst[r * width] + width, &dst[r * columns] + width);
      std::fill_n(&dst[r * columns] + width, columns - width, 0.0f);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Refuse(uint64_t row, uint64_t begin, float limit, std::span<const float> values) {
    const auto bad = std::find_if(values.begin(), values.end(),
                                  [&](float x) { return !(std::fabs(x) <= limit); });
    const uint64_t width = tensor_.shape.back();
    const uint64_t at = row * width + begin + static_cast<uint64_t>(bad - values.begin());
    return absl::DataLossError(absl::StrFormat(
        "%s: tensor %s holds %g at row %u, column %u; %s needs a number of at most %g in "
        "magnitude: "
        "get the model again%s",
        source_.path(), tensor_.name, *bad, at / width, at % width, WeightTypeName(target_), limit,
        std::isfinite(*bad) ? " or choose another type" : ""));
  }

  const ModelSource& source_;
  const SourceTensor& tensor_;
  const WeightType target_;
  std::vector<std::byte> raw_;
};

class Repacker {
 public:
  Repacker(const ModelSource& source, const RepackOptions& options, SluiceWriter& writer)
      : source_(source), options_(options), config_(source.config()), writer_(writer) {
    for (const MatrixEntry& m : writer.directory().matrices) total_ += m.n_bytes();
    total_ += uint64_t{config_.n_layers} * config_.d_ff * writer.directory().bundles.stride;
  }

  absl::Status WriteMatrices() {
    const auto& matrices = writer_.directory().matrices;
    for (uint32_t i = 0; i < matrices.size(); ++i) {
      SLUICE_RETURN_IF_ERROR(WriteMatrix(i));
      if (matrices[i].role == MatrixRole::kGate) {
        SLUICE_RETURN_IF_ERROR(WriteBundles(matrices[i].layer));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<float>> ReadVectors() {
    std::vector<float> out;
    out.reserve(VectorCount(config_));
    for (uint32_t l = 0; l < config_.n_layers; ++l) {
      for (size_t i = 0; i < kLayerVectors; ++i) {
        const auto vector = static_cast<LayerVector>(i);
        if (VectorSize(vector, config_) == 0) continue;
        SLUICE_RETURN_IF_ERROR(AppendVector(TensorName(vector, l), out));
      }
    }
    SLUICE_RETURN_IF_ERROR(AppendVector("output_norm.weight", out));
    if (config_.norm == NormKind::kLayer) {
      SLUICE_RETURN_IF_ERROR(AppendVector("output_norm.bias", out));
    }
    if (source_.Find("rope_freqs.weight") != nullptr) {
      SLUICE_RETURN_IF_ERROR(AppendVector("rope_freqs.weight", out));
    } else {
      out.resize(out.size() + config_.rope_dim() / 2, 1.0f);
    }
    if (config_.learned_positions) {
      SLUICE_RETURN_IF_ERROR(AppendVector("position_embd.weight", out));
    }
    if (out.size() != VectorCount(config_)) {
      return absl::InternalError("norms and biases do not have the sizes of the config");
    }
    return out;
  }

  void FillErrors(Provenance& p) const {
    p.resident_error = resident_error_.Relative();
    p.gate_error = gate_error_.Relative();
    p.up_error = up_error_.Relative();
    p.down_error = down_error_.Relative();
  }

 private:
  absl::Status AppendVector(const std::string& name, std::vector<float>& out) {
    const SourceTensor* tensor = source_.Find(name);
    if (tensor == nullptr) return absl::InternalError(name + " is missing");
    const uint64_t rows = tensor->shape.size() == 2 ? tensor->shape[0] : 1;
    const size_t at = out.size();
    out.resize(at + rows * tensor->shape.back());
    return RowReader(source_, *tensor, WeightType::kF32)
        .ReadRows(0, rows, std::span(out).subspan(at));
  }

  absl::StatusOr<const SourceTensor*> FindMatrix(const std::string& name) {
    const SourceTensor* tensor = source_.Find(name);
    if (tensor == nullptr) {
      return absl::NotFoundError(absl::StrFormat("%s: tensor %s is missing", source_.path(), name));
    }
    return tensor;
  }

  absl::Status WriteMatrix(uint32_t index) {
    const MatrixEntry& m = writer_.directory().matrices[index];
    SLUICE_ASSIGN_OR_RETURN(const SourceTensor* tensor,
                            FindMatrix(TensorName(config_, m.role, m.layer)));
    RowReader reader(source_, *tensor, m.type);
    ErrorMeter* error = MeterOf(m.role);
    std::vector<float> rows(size_t{m.rows_per_tile} * m.columns);
    std::vector<std::byte> packed(m.rows_per_tile * m.row_bytes());
    for (uint32_t t = 0; t < m.n_tiles(); ++t) {
      const uint32_t count = m.rows_in_tile(t);
      SLUICE_RETURN_IF_ERROR(reader.ReadPadded(uint64_t{t} * m.rows_per_tile, m.columns,
                                               std::span(rows).first(size_t{count} * m.columns)));
      for (uint32_t r = 0; r < count; ++r) {
        const auto row = std::span(rows).subspan(size_t{r} * m.columns, m.columns);
        const auto dst = std::span(packed).subspan(r * m.row_bytes(), m.row_bytes());
        EncodeRow(m.type, row, dst);
        if (error != nullptr && r % kErrorSample == 0) error->Add(m.type, row, dst);
      }
      SLUICE_RETURN_IF_ERROR(
          writer_.WriteTile(index, t, std::span(packed).first(count * m.row_bytes())));
      SLUICE_RETURN_IF_ERROR(Progress(m.tile_stride));
    }
    return absl::OkStatus();
  }

  // Null: not measured.
  ErrorMeter* MeterOf(MatrixRole role) {
    if (IsPredictor(role)) return nullptr;
    if (role != MatrixRole::kGate) return &resident_error_;
    return config_.gated ? &gate_error_ : &up_error_;
  }

  // Slab by slab: the down columns of a run of neurons are transposed in memory, then each neuron's
  // other rows are read and its bundle written.
  absl::Status WriteBundles(uint32_t layer) {
    SLUICE_ASSIGN_OR_RETURN(const SourceTensor* gate,
                            FindMatrix(TensorName(config_, MatrixRole::kGate, layer)));
    SLUICE_ASSIGN_OR_RETURN(const SourceTensor* up,
                            FindMatrix(absl::StrFormat("blk.%u.ffn_up.weight", layer)));
    SLUICE_ASSIGN_OR_RETURN(const SourceTensor* down, FindMatrix(DownName(source_, layer)));
    const BundleLayout& b = writer_.directory().bundles;
    RowReader gate_reader(source_, *gate, b.type), up_reader(source_, *up, b.type);
    const uint32_t block = BlockElements(down->type);
    const auto per_slab =
        static_cast<uint32_t>(std::max<size_t>(kSlabFloats / b.d_model / block, 1) * block);
    std::vector<float> row(b.d_model);
    std::vector<std::byte> payload(b.payload_bytes());
    const auto gate_dst = std::span(payload).first(b.up_offset());
    const auto up_dst = std::span(payload).subspan(b.up_offset(), b.down_offset() - b.up_offset());
    const auto down_dst = std::span(payload).subspan(b.down_offset());
    for (uint32_t first = 0; first < b.d_ff; first += per_slab) {
      const uint32_t count = std::min(per_slab, b.d_ff - first);
      SLUICE_RETURN_IF_ERROR(ReadDownColumns(*down, first, count));
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t neuron = first + i;
        const auto column = std::span<const float>(slab_).subspan(size_t{i} * b.d_model, b.d_model);
        const bool is_sample = neuron % kErrorSample == 0;
        if (b.has_gate) {
          SLUICE_RETURN_IF_ERROR(gate_reader.ReadRows(neuron, 1, row));
          EncodeRow(b.type, row, gate_dst);
        }
        if (b.has_up) {
          SLUICE_RETURN_IF_ERROR(up_reader.ReadRows(neuron, 1, row));
          EncodeRow(b.type, row, up_dst);
          if (is_sample) up_error_.Add(b.type, row, up_dst);
        }
        EncodeRow(b.type, column, down_dst);
        if (is_sample) down_error_.Add(b.type, column, down_dst);
        SLUICE_RETURN_IF_ERROR(writer_.WriteBundle(layer, neuron, neuron, payload));
        SLUICE_RETURN_IF_ERROR(Progress(b.stride));
      }
    }
    return absl::OkStatus();
  }

  // slab_[i][j] = down[j][first + i], or of a matrix that is turned already down[first + i][j].
  absl::Status ReadDownColumns(const SourceTensor& down, uint32_t first, uint32_t count) {
    constexpr uint32_t kRows = 16;  // rows turned together, so that a cache line is filled at once
    const uint32_t d = config_.d_model;
    slab_.resize(size_t{count} * d);
    std::vector<float> rows(size_t{kRows} * count);
    RowReader reader(source_, down, writer_.directory().bundles.type);
    if (IsTurned(down)) return reader.ReadRows(first, count, slab_);
    for (uint32_t j = 0; j < d; j += kRows) {  // d_model is a multiple of 32
      for (uint32_t r = 0; r < kRows; ++r) {
        SLUICE_RETURN_IF_ERROR(reader.Read(j + r, first, first + count,
                                           std::span(rows).subspan(size_t{r} * count, count)));
      }
      for (uint32_t i = 0; i < count; ++i) {
        for (uint32_t r = 0; r < kRows; ++r) slab_[size_t{i} * d + j + r] = rows[r * count + i];
      }
    }
    return absl::OkStatus();
  }

  absl::Status Progress(uint64_t bytes) {
    constexpr uint64_t kStep = 8 << 20;
    done_ += bytes;
    if (done_ / kStep == (done_ - bytes) / kStep && done_ != total_) return absl::OkStatus();
    writer_.FlushBehind();
    if (!options_.progress || options_.progress(done_, total_)) return absl::OkStatus();
    return absl::CancelledError("stopped on request");
  }

  const ModelSource& source_;
  const RepackOptions& options_;
  const ModelConfig& config_;
  SluiceWriter& writer_;
  std::vector<float> slab_;
  ErrorMeter resident_error_, gate_error_, up_error_, down_error_;
  uint64_t done_ = 0, total_ = 0;
};

// "model" for "models/model" and "models/model/".
std::string LastComponent(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path.substr(path.find_last_of('/') + 1);
}

std::string SourceTypes(const ModelSource& source) {
  std::set<std::string> names;
  for (const SourceTensor& t : source.tensors()) names.emplace(SourceTypeName(t.type));
  return absl::StrJoin(names, ", ");
}

}  // namespace

Directory PlanRepack(const ModelSource& source, const RepackOptions& options) {
  DirectoryShape shape;
  shape.block = options.block;
  auto& types = shape.matrix_types;
  for (size_t role = 0; role < types.size(); ++role) {
    const auto name = [&, role](uint32_t layer) {
      return TensorName(source.config(), static_cast<MatrixRole>(role), layer);
    };
    types[role] = options.resident_type.value_or(WidestType(source, name, ResidentTypeFor));
  }
  const auto gate = [&](uint32_t layer) {
    return TensorName(source.config(), MatrixRole::kGate, layer);
  };
  shape.bundle_type = options.type.value_or(WidestType(source, gate, BundleTypeFor));
  types[static_cast<size_t>(MatrixRole::kGate)] = shape.bundle_type;
  if (source.predictors() != nullptr) {
    for (const uint32_t rank : source.predictors()->ranks) {
      shape.predictor_ranks.push_back(PaddedRank(rank));
    }
    shape.gate_in_bundles = true;
  }
  return MakeDirectory(source.config(), shape);
}

std::vector<std::string> NarrowedTensors(const ModelSource& source, const Directory& directory) {
  std::vector<std::string> notes;
  const uint32_t n_layers = source.config().n_layers;
  for (const char* part : {"ffn_gate", "ffn_up", "ffn_down"}) {
    uint32_t n_wider = 0;
    std::set<std::string> types;
    for (uint32_t l = 0; l < n_layers; ++l) {
      const bool down = part == std::string_view("ffn_down");
      const SourceTensor* t =
          source.Find(down ? DownName(source, l) : absl::StrFormat("blk.%u.%s.weight", l, part));
      if (t == nullptr || !IsWider(BundleTypeFor(t->type), directory.bundles.type)) continue;
      ++n_wider;
      types.emplace(SourceTypeName(t->type));
    }
    if (n_wider == 0) continue;
    notes.push_back(absl::StrFormat("%s of %u of %u layers is %s, wider than the %s of the bundles",
                                    part, n_wider, n_layers, absl::StrJoin(types, " or "),
                                    WeightTypeName(directory.bundles.type)));
  }
  return notes;
}

absl::StatusOr<RepackReport> Repack(const ModelSource& source, const std::string& out,
                                    const RepackOptions& options) {
  for (const std::string& file : source.files()) {
    if (!SameFile(file, out)) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: is a file of the input; choose another name for the output", out));
  }
  SLUICE_ASSIGN_OR_RETURN(auto writer, SluiceWriter::Create(out, options.overwrite, source.config(),
                                                            PlanRepack(source, options)));
  Repacker repacker(source, options, *writer);
  SLUICE_RETURN_IF_ERROR(repacker.WriteMatrices());
  SLUICE_ASSIGN_OR_RETURN(const auto vectors, repacker.ReadVectors());
  RepackReport report;
  report.directory = writer->directory();
  Provenance& p = report.provenance;
  p.source_name = LastComponent(source.path());
  p.source_types = SourceTypes(source);
  p.writer = "sluice " SLUICE_VERSION;
  repacker.FillErrors(p);
  SluiceWriter::Records records = {vectors, source.tokenizer(), p};
  if (source.predictors() != nullptr) records.predictor = &source.predictors()->record;
  SLUICE_ASSIGN_OR_RETURN(report.file_bytes, writer->Finish(records));
  return report;
}

}  // namespace sluice
