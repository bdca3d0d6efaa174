#include "predictor/predictor_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "absl/strings/str_format.h"
#include "io/atomic_file.h"
#include "io/status.h"
#include "layout/byte_io.h"
#include "layout/sluice_format.h"

namespace sluice {
namespace {

constexpr std::string_view kMagic = "SLUICELP";
constexpr uint32_t kVersion = 1;
constexpr size_t kFixedBytes = 8 + 4 + 8 + 4 * 4 + 4 + 4 + 4 + 4 * 8;
constexpr size_t kChecksumBytes = 8;

bool IsFinite(const std::vector<float>& weights) {
  return std::all_of(weights.begin(), weights.end(), [](float w) { return std::isfinite(w); });
}

}  // namespace

std::vector<std::byte> PredictorCheckpoint::Serialize() const {
  const PackedPredictor packed(predictor);
  ByteWriter out;
  out.PutBytes(kMagic.data(), kMagic.size());
  out.Put<uint32_t>(kVersion);
  out.Put<uint64_t>(run);
  out.Put<uint32_t>(layer);
  out.Put<uint32_t>(packed.d_model());
  out.Put<uint32_t>(packed.d_ff());
  out.Put<uint32_t>(predictor.rank);
  out.Put<float>(predictor.threshold);
  out.Put<uint32_t>(top_k);
  out.Put<uint32_t>(meets_targets);
  for (const uint64_t n :
       {quality.n_neurons, quality.n_active, quality.n_predicted, quality.n_hits}) {
    out.Put<uint64_t>(n);
  }
  for (const auto rows : {packed.fc1_rows(), packed.fc2_rows()}) {
    out.PutBytes(rows.data(), rows.size());
  }
  out.Put<uint64_t>(Checksum64(out.bytes()));
  return out.bytes();
}

absl::StatusOr<PredictorCheckpoint> PredictorCheckpoint::Parse(std::span<const std::byte> bytes,
                                                               const std::string& source,
                                                               uint32_t d_model, uint32_t d_ff) {
  const auto damaged = [&](const std::string& what) {
    return absl::DataLossError(absl::StrFormat(
        "%s: predictor checkpoint: %s; remove it, and the layer is trained again", source, what));
  };
  ByteReader in(bytes);
  const auto magic = in.GetBytes(kMagic.size());
  if (!in.ok() || std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0) {
    return damaged("this is another kind of file");
  }
  const auto version = in.Get<uint32_t>();
  PredictorCheckpoint c;
  c.run = in.Get<uint64_t>();
  c.layer = in.Get<uint32_t>();
  const auto file_d_model = in.Get<uint32_t>(), file_d_ff = in.Get<uint32_t>();
  const auto rank = in.Get<uint32_t>();
  const auto threshold = in.Get<float>();
  c.top_k = in.Get<uint32_t>();
  c.meets_targets = in.Get<uint32_t>() != 0;
  for (uint64_t* n :
       {&c.quality.n_neurons, &c.quality.n_active, &c.quality.n_predicted, &c.quality.n_hits}) {
    *n = in.Get<uint64_t>();
  }
  if (!in.ok()) return damaged("the header is truncated");
  if (version != kVersion) return damaged(absl::StrFormat("its version is %u, not 1", version));
  if (file_d_model != d_model || file_d_ff != d_ff) {
    return damaged(absl::StrFormat("it is for %u inputs and %u neurons, not %u and %u",
                                   file_d_model, file_d_ff, d_model, d_ff));
  }
  if (rank == 0 || rank % kRankStep != 0 || rank > kMaxRank) {
    return damaged(absl::StrFormat("a rank of %u", rank));
  }
  const size_t n_rows = PackedPredictor::BytesFor(d_model, rank, d_ff);
  if (in.remaining() != n_rows + kChecksumBytes) return damaged("its size does not fit its rank");
  const auto fc1 = in.GetBytes(PackedPredictor::BytesFor(d_model, rank, 0));
  const auto fc2 = in.GetBytes(n_rows - fc1.size());
  if (in.Get<uint64_t>() != Checksum64(bytes.first(bytes.size() - kChecksumBytes))) {
    return damaged("it does not match its checksum");
  }
  c.predictor = PackedPredictor(d_model, rank, d_ff, fc1, fc2).Unpack(threshold);
  if (!std::isfinite(threshold) || !IsFinite(c.predictor.fc1) || !IsFinite(c.predictor.fc2)) {
    return damaged("a weight is not a finite number");
  }
  return c;
}

absl::StatusOr<PredictorCheckpoint> PredictorCheckpoint::Load(const std::string& path,
                                                              uint32_t d_model, uint32_t d_ff) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  if (type == std::filesystem::file_type::not_found) {
    return absl::NotFoundError(path + ": there is no such file");
  }
  std::ifstream in;  // looked at before it is opened: a FIFO would wait for a writer
  if (type == std::filesystem::file_type::regular) in.open(path, std::ios::binary | std::ios::ate);
  if (!in.is_open()) return absl::PermissionDeniedError(path + ": cannot be opened");
  const auto size = static_cast<uint64_t>(in.tellg());
  const uint64_t most =
      kFixedBytes + PackedPredictor::BytesFor(d_model, kMaxRank, d_ff) + kChecksumBytes;
  std::vector<std::byte> bytes(std::min(size, most + 1));  // one more: it is refused as too long
  in.seekg(0);
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (static_cast<size_t>(in.gcount()) != bytes.size()) {
    return absl::DataLossError(path + ": cannot be read to its end");
  }
  return Parse(bytes, path, d_model, d_ff);
}

absl::Status PredictorCheckpoint::Save(const std::string& path) const {
  const std::vector<std::byte> bytes = Serialize();
  SLUICE_ASSIGN_OR_RETURN(
      const auto out,
      AtomicFile::Create(path, {.overwrite = true, .expected_bytes = bytes.size()}));
  SLUICE_RETURN_IF_ERROR(out->WriteAt(0, bytes));
  return out->Commit();
}

}  // namespace sluice
