#include "predictor/activation_trace.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/atomic_file.h"
#include "io/status.h"
#include "layout/byte_io.h"
#include "layout/sluice_format.h"
#include "predictor/packed_file.h"

namespace sluice {
namespace {

constexpr std::string_view kMagic = "SLUICEAT";
constexpr uint32_t kVersion = 1;
constexpr uint64_t kMostBytes = uint64_t{1} << 30;
constexpr uint32_t kMostLayers = 1 << 12, kMostNeurons = 1 << 20;
const char* const kKind = "activation trace";

// Reads LEB128 numbers of at most 32 bits; false at the end or on a number that is larger.
bool Take(const std::vector<uint8_t>& bytes, uint64_t* at, uint32_t* value) {
  uint64_t v = 0;
  for (int shift = 0; shift < 35 && *at < bytes.size(); shift += 7) {
    const uint8_t b = bytes[(*at)++];
    v |= uint64_t{b & 0x7fu} << shift;
    if ((b & 0x80) == 0) {
      *value = static_cast<uint32_t>(v);
      return v <= UINT32_MAX;
    }
  }
  return false;
}

}  // namespace

void ActivationTrace::Put(uint32_t value) {
  for (; value >= 0x80; value >>= 7) sets_.push_back(static_cast<uint8_t>(value | 0x80));
  sets_.push_back(static_cast<uint8_t>(value));
}

void ActivationTrace::Append(std::span<const uint32_t> active) {
  begins_.push_back(sets_.size());
  Put(static_cast<uint32_t>(active.size()));
  uint32_t before = 0;
  for (const uint32_t position : active) Put(position - std::exchange(before, position));
  n_active_ += active.size();
}

void ActivationTrace::Get(uint32_t token, uint32_t layer, std::vector<uint32_t>* active) const {
  uint64_t at = begins_[size_t{token} * n_layers_ + layer];
  uint32_t count = 0, position = 0, distance = 0;
  Take(sets_, &at, &count);
  active->resize(count);
  for (uint32_t& a : *active) {
    Take(sets_, &at, &distance);
    a = position += distance;
  }
}

absl::StatusOr<std::vector<std::byte>> ActivationTrace::Serialize() const {
  const size_t whole = size_t{n_tokens()} * n_layers_;
  const std::span<const uint8_t> sets =
      std::span(sets_).first(whole < begins_.size() ? begins_[whole] : sets_.size());
  ByteWriter header;
  header.PutBytes(kMagic.data(), kMagic.size());
  header.Put<uint32_t>(kVersion);
  header.Put<uint32_t>(n_layers_);
  header.Put<uint32_t>(n_neurons_);
  header.Put<uint32_t>(n_tokens());
  header.Put<uint64_t>(model_id_);
  header.Put<uint64_t>(sets.size());
  header.Put<uint64_t>(Checksum64(std::as_bytes(sets)));
  std::vector<std::byte> out = header.bytes();
  SLUICE_RETURN_IF_ERROR(AppendFrame(std::as_bytes(sets), &out));
  return out;
}

absl::Status ActivationTrace::Save(const std::string& path) const {
  AtomicFile::Options options;
  options.overwrite = true;
  SLUICE_ASSIGN_OR_RETURN(const auto out, AtomicFile::Create(path, options));
  return SaveTo(*out);
}

absl::Status ActivationTrace::SaveTo(AtomicFile& out) const {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, Serialize());
  SLUICE_RETURN_IF_ERROR(out.WriteAt(0, bytes));
  return out.Commit();
}

absl::StatusOr<ActivationTrace> ActivationTrace::Load(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes,
                          ReadPackedFile(path, kMagic, kMostBytes, kKind));
  return Parse(bytes, path);
}

absl::StatusOr<ActivationTrace> ActivationTrace::Parse(std::span<const std::byte> bytes,
                                                       const std::string& source) {
  ByteReader reader(bytes);
  const auto magic = reader.GetBytes(kMagic.size());
  if (!reader.ok() || std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0) {
    return NotOfKind(source, kKind);
  }
  const auto damaged = [&](const std::string& what) {
    return absl::DataLossError(absl::StrCat(source, ": activation trace: ", what));
  };
  const auto version = reader.Get<uint32_t>();
  const auto n_layers = reader.Get<uint32_t>(), n_neurons = reader.Get<uint32_t>();
  const auto n_tokens = reader.Get<uint32_t>();
  const auto model_id = reader.Get<uint64_t>(), n_bytes = reader.Get<uint64_t>();
  const auto checksum = reader.Get<uint64_t>();
  if (!reader.ok()) return damaged("the header is truncated");
  if (version != kVersion) return damaged(absl::StrFormat("its version is %u, not 1", version));
  if (n_layers == 0 || n_layers > kMostLayers) return damaged(absl::StrCat(n_layers, " layers"));
  if (n_neurons == 0 || n_neurons > kMostNeurons) {
    return damaged(absl::StrCat(n_neurons, " neurons in a layer"));
  }
  const auto frame = reader.GetBytes(reader.remaining());
  if (!FrameHolds(frame, n_bytes)) return damaged("its size does not match its content");
  // A set takes a byte at least.
  if (uint64_t{n_tokens} * n_layers > n_bytes) {
    return damaged(absl::StrCat(n_tokens, " tokens do not fit its size"));
  }
  ActivationTrace trace(model_id, n_layers, n_neurons);
  trace.sets_.resize(n_bytes);
  if (!UnpackFrame(frame, std::as_writable_bytes(std::span(trace.sets_)))) {
    return damaged("cannot be decompressed");
  }
  if (Checksum64(std::as_bytes(std::span(trace.sets_))) != checksum) {
    return damaged("does not match its checksum");
  }
  SLUICE_RETURN_IF_ERROR(trace.IndexSets(n_tokens, source));
  return trace;
}

// Finds where each set begins, and checks every position.
absl::Status ActivationTrace::IndexSets(uint32_t n_tokens, const std::string& source) {
  begins_.reserve(size_t{n_tokens} * n_layers_);
  uint64_t at = 0;
  for (uint64_t set = 0; set < uint64_t{n_tokens} * n_layers_; ++set) {
    begins_.push_back(at);
    uint32_t count = 0, distance = 0;
    bool ok = Take(sets_, &at, &count) && count <= n_neurons_;
    uint64_t position = 0;
    for (uint32_t i = 0; ok && i < count; ++i) {
      ok = Take(sets_, &at, &distance) && (i == 0 || distance > 0);
      position += distance;
      ok = ok && position < n_neurons_;
    }
    if (!ok) {
      return absl::DataLossError(absl::StrFormat(
          "%s: activation trace: the neurons of token %u, layer %u are not rising positions below "
          "%u",
          source, set / n_layers_, set % n_layers_, n_neurons_));
    }
    n_active_ += count;
  }
  if (at != sets_.size()) {
    return absl::DataLossError(source + ": activation trace: bytes are left after the last set");
  }
  return absl::OkStatus();
}

}  // namespace sluice
