#include "predictor/activation_profile.h"

#include <algorithm>
#include <cmath>
#include <cstring>
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

constexpr std::string_view kMagic = "SLUICEAP";
constexpr uint32_t kVersion = 1;
constexpr uint64_t kMostBytes = uint64_t{1} << 32;
constexpr uint32_t kMostLayers = 1 << 12, kMostNeurons = 1 << 20;
const char* const kKind = "activation profile";

size_t SizeOfIntersection(std::span<const uint32_t> a, std::span<const uint32_t> b) {
  size_t n = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    n += a[i] == b[j];
    const bool step_a = a[i] <= b[j], step_b = b[j] <= a[i];
    i += step_a;
    j += step_b;
  }
  return n;
}

absl::Status Damaged(const std::string& source, const std::string& what) {
  return absl::DataLossError(absl::StrCat(source, ": ", kKind, ": ", what));
}

}  // namespace

ProfileIdentity ProfileIdentity::Of(const SluiceFile& file) {
  const ModelConfig& config = file.config();
  return {.weights_id = file.weights_id(),
          .n_layers = config.n_layers,
          .n_neurons = config.d_ff,
          .d_model = config.d_model};
}

ActivationProfile::ActivationProfile(const ProfileIdentity& identity, uint64_t set_bytes)
    : identity_(identity),
      set_bytes_(set_bytes),
      counts_(size_t{identity.n_layers} * identity.n_neurons),
      overlaps_(identity.n_layers),
      train_(identity.weights_id, identity.n_layers, identity.n_neurons),
      held_out_(identity.weights_id, identity.n_layers, identity.n_neurons) {}

void ActivationProfile::BeginSequence(bool held_out) {
  sequences_.push_back({static_cast<uint32_t>(tokens_.size()), 0, held_out});
  before_.clear();
}

void ActivationProfile::Append(int32_t token, std::span<const std::vector<uint32_t>> active) {
  tokens_.push_back(token);
  ProfileSequence& sequence = sequences_.back();
  ++sequence.n_tokens;
  full_ = full_ || train_.memory_bytes() + held_out_.memory_bytes() >= set_bytes_;
  if (!full_) {
    ActivationTrace& trace = sequence.held_out ? held_out_ : train_;
    for (const std::vector<uint32_t>& set : active) trace.Append(set);
  }
  if (!sequence.held_out) Count(active);
}

void ActivationProfile::Count(std::span<const std::vector<uint32_t>> active) {
  ++n_train_tokens_;
  for (uint32_t l = 0; l < n_layers(); ++l) {
    uint32_t* const counts = &counts_[size_t{l} * n_neurons()];
    for (const uint32_t id : active[l]) ++counts[id];
    if (before_.empty() || active[l].empty()) continue;
    overlaps_[l].sum += static_cast<double>(SizeOfIntersection(active[l], before_[l])) /
                        static_cast<double>(active[l].size());
    ++overlaps_[l].n;
  }
  before_.assign(active.begin(), active.end());
}

absl::Status ActivationProfile::CheckModel(const SluiceFile& file,
                                           const std::string& source) const {
  if (ProfileIdentity::Of(file) == identity_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("%s: is the profile of another model than %s; make one with sluice profile "
                      "-m %s",
                      source, file.path(), file.path()));
}

// What stands before the parts.
struct ActivationProfile::Header {
  ProfileIdentity identity;
  uint32_t n_tokens = 0, n_sequences = 0, has_thresholds = 0;
  std::array<uint64_t, 3> n_bytes = {}, checksums = {};  // of the parts

  uint64_t records_bytes() const {
    const uint64_t layer = 12 + (has_thresholds != 0 ? 4 : 0) + uint64_t{4} * identity.n_neurons;
    return uint64_t{4} * n_tokens + uint64_t{5} * n_sequences + identity.n_layers * layer;
  }

  std::vector<std::byte> Write() const {
    ByteWriter out;
    out.PutBytes(kMagic.data(), kMagic.size());
    for (const uint32_t v : {kVersion, identity.n_layers, identity.n_neurons, identity.d_model}) {
      out.Put(v);
    }
    out.Put(identity.weights_id);
    for (const uint32_t v : {n_tokens, n_sequences, has_thresholds}) out.Put(v);
    for (const uint64_t v : n_bytes) out.Put(v);
    for (const uint64_t v : checksums) out.Put(v);
    out.Put(Checksum64(out.bytes()));
    return out.bytes();
  }

  static absl::StatusOr<Header> Read(std::span<const std::byte> bytes, ByteReader& in,
                                     const std::string& source) {
    const auto magic = in.GetBytes(kMagic.size());
    if (!in.ok() || std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0) {
      return NotOfKind(source, kKind);
    }
    const auto version = in.Get<uint32_t>();
    if (in.ok() && version != kVersion) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s: is an %s of version %u, and this program reads version %u; make it anew", source,
          kKind, version, kVersion));
    }
    Header h;
    for (uint32_t* v : {&h.identity.n_layers, &h.identity.n_neurons, &h.identity.d_model}) {
      *v = in.Get<uint32_t>();
    }
    h.identity.weights_id = in.Get<uint64_t>();
    for (uint32_t* v : {&h.n_tokens, &h.n_sequences, &h.has_thresholds}) *v = in.Get<uint32_t>();
    for (uint64_t& v : h.n_bytes) v = in.Get<uint64_t>();
    for (uint64_t& v : h.checksums) v = in.Get<uint64_t>();
    const size_t n_checked = bytes.size() - in.remaining();
    const auto checksum = in.Get<uint64_t>();
    if (!in.ok()) return Damaged(source, "the header is truncated");
    if (checksum != Checksum64(bytes.first(n_checked))) {
      return Damaged(source, "the header does not match its checksum");
    }
    SLUICE_RETURN_IF_ERROR(h.Check(source));
    return h;
  }

  absl::Status Check(const std::string& source) const {
    if (identity.n_layers == 0 || identity.n_layers > kMostLayers) {
      return Damaged(source, absl::StrCat(identity.n_layers, " layers"));
    }
    if (identity.n_neurons == 0 || identity.n_neurons > kMostNeurons) {
      return Damaged(source, absl::StrCat(identity.n_neurons, " neurons in a layer"));
    }
    if (has_thresholds > 1) {
      return Damaged(source, absl::StrCat("the mark of thresholds is ", has_thresholds));
    }
    return absl::OkStatus();
  }
};

std::vector<std::byte> ActivationProfile::Records() const {
  ByteWriter out;
  for (const int32_t token : tokens_) out.Put(token);
  for (const ProfileSequence& s : sequences_) {
    out.Put(s.n_tokens);
    out.Put<uint8_t>(s.held_out);
  }
  for (uint32_t l = 0; l < n_layers(); ++l) {
    out.Put(overlaps_[l].sum);
    out.Put(overlaps_[l].n);
    if (!thresholds_.empty()) out.Put(thresholds_[l]);
    for (const uint32_t count : counts(l)) out.Put(count);
  }
  return out.bytes();
}

absl::StatusOr<ActivationProfile::Pieces> ActivationProfile::Pack() const {
  Pieces pieces;
  SLUICE_RETURN_IF_ERROR(AppendFrame(Records(), &pieces[1]));
  SLUICE_ASSIGN_OR_RETURN(pieces[2], train_.Serialize());
  SLUICE_ASSIGN_OR_RETURN(pieces[3], held_out_.Serialize());
  Header header = {.identity = identity_,
                   .n_tokens = static_cast<uint32_t>(tokens_.size()),
                   .n_sequences = static_cast<uint32_t>(sequences_.size()),
                   .has_thresholds = thresholds_.empty() ? 0u : 1u};
  for (size_t part = 0; part < 3; ++part) {
    header.n_bytes[part] = pieces[part + 1].size();
    header.checksums[part] = Checksum64(pieces[part + 1]);
  }
  pieces[0] = header.Write();
  return pieces;
}

absl::StatusOr<std::vector<std::byte>> ActivationProfile::Serialize() const {
  SLUICE_ASSIGN_OR_RETURN(const Pieces pieces, Pack());
  std::vector<std::byte> out;
  for (const auto& piece : pieces) out.insert(out.end(), piece.begin(), piece.end());
  return out;
}

absl::Status ActivationProfile::Save(const std::string& path) const {
  AtomicFile::Options options;
  options.overwrite = true;
  SLUICE_ASSIGN_OR_RETURN(const auto out, AtomicFile::Create(path, options));
  return SaveTo(*out);
}

absl::Status ActivationProfile::SaveTo(AtomicFile& out) const {
  SLUICE_ASSIGN_OR_RETURN(const Pieces pieces, Pack());
  uint64_t at = 0;
  for (const auto& piece : pieces) {
    SLUICE_RETURN_IF_ERROR(out.WriteAt(at, piece));
    at += piece.size();
  }
  return out.Commit();
}

absl::StatusOr<ActivationProfile> ActivationProfile::Load(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes,
                          ReadPackedFile(path, kMagic, kMostBytes, kKind));
  return Parse(bytes, path);
}

absl::StatusOr<ActivationProfile> ActivationProfile::Parse(std::span<const std::byte> bytes,
                                                           const std::string& source) {
  ByteReader in(bytes);
  SLUICE_ASSIGN_OR_RETURN(const Header header, Header::Read(bytes, in, source));
  std::array<std::span<const std::byte>, 3> parts;
  for (size_t i = 0; i < 3; ++i) {
    parts[i] = in.GetBytes(header.n_bytes[i]);
    if (!in.ok()) return Damaged(source, "is truncated");
    if (Checksum64(parts[i]) != header.checksums[i]) {
      return Damaged(source, absl::StrCat("part ", i + 1, " does not match its checksum"));
    }
  }
  if (in.remaining() > 0) return Damaged(source, "bytes are left after its end");
  // Said before memory is taken for it.
  const uint64_t n_records = header.records_bytes();
  if (!FrameHolds(parts[0], n_records)) {
    return Damaged(source, "its records are not of the size that its header says");
  }
  std::vector<std::byte> records(n_records);
  if (!UnpackFrame(parts[0], records)) return Damaged(source, "its records cannot be unpacked");
  ActivationProfile profile(header.identity, 0);
  SLUICE_RETURN_IF_ERROR(profile.ReadRecords(records, header, source));
  SLUICE_ASSIGN_OR_RETURN(profile.train_, ActivationTrace::Parse(parts[1], source));
  SLUICE_ASSIGN_OR_RETURN(profile.held_out_, ActivationTrace::Parse(parts[2], source));
  SLUICE_RETURN_IF_ERROR(profile.CheckTraces(source));
  return profile;
}

// Of the size that the header says.
absl::Status ActivationProfile::ReadRecords(std::span<const std::byte> records,
                                            const Header& header, const std::string& source) {
  ByteReader in(records);
  tokens_.resize(header.n_tokens);
  for (int32_t& token : tokens_) {
    token = in.Get<int32_t>();
    if (token < 0) return Damaged(source, absl::StrCat("a token id is ", token));
  }
  uint64_t n_tokens = 0;
  for (uint32_t i = 0; i < header.n_sequences; ++i) {
    const auto n = in.Get<uint32_t>();
    const auto held_out = in.Get<uint8_t>();
    if (n > header.n_tokens - n_tokens || held_out > 1) {
      return Damaged(source, absl::StrCat("sequence ", i, " is not within its tokens"));
    }
    sequences_.push_back({static_cast<uint32_t>(n_tokens), n, held_out == 1});
    n_tokens += n;
    n_train_tokens_ += held_out == 1 ? 0 : n;
  }
  if (n_tokens != header.n_tokens) return Damaged(source, "tokens are in no sequence");
  if (header.has_thresholds != 0) thresholds_.resize(n_layers());
  for (uint32_t l = 0; l < n_layers(); ++l) {
    Overlap& o = overlaps_[l];
    o.sum = in.Get<double>();
    o.n = in.Get<uint32_t>();
    bool ok = o.sum >= 0 && o.sum <= o.n && o.n <= n_train_tokens_;
    if (header.has_thresholds != 0) {
      thresholds_[l] = in.Get<float>();
      ok = ok && thresholds_[l] >= 0 && std::isfinite(thresholds_[l]);
    }
    for (uint32_t i = 0; i < n_neurons(); ++i) {
      const auto count = in.Get<uint32_t>();
      ok = ok && count <= n_train_tokens_;
      counts_[size_t{l} * n_neurons() + i] = count;
    }
    if (!ok) return Damaged(source, absl::StrCat("figures of layer ", l, " are out of range"));
  }
  return absl::OkStatus();
}

absl::Status ActivationProfile::CheckTraces(const std::string& source) const {
  for (const ActivationTrace* trace : {&train_, &held_out_}) {
    const uint32_t n_tokens = trace == &train_ ? n_train_tokens() : n_held_out_tokens();
    if (trace->model_id() != identity_.weights_id || trace->n_layers() != n_layers() ||
        trace->n_neurons() != n_neurons() || trace->n_tokens() > n_tokens) {
      return Damaged(source, trace == &train_ ? "its training sets are of something else"
                                              : "its held-out sets are of something else");
    }
  }
  return absl::OkStatus();
}

ActivationTrace SetsByPosition(const ActivationTrace& sets, const SluiceFile& file) {
  const uint32_t n_layers = sets.n_layers(), n_neurons = sets.n_neurons();
  std::vector<std::vector<uint32_t>> position(n_layers, std::vector<uint32_t>(n_neurons));
  for (uint32_t l = 0; l < n_layers; ++l) {
    for (uint32_t p = 0; p < n_neurons; ++p) position[l][file.NeuronAt(l, p)] = p;
  }
  ActivationTrace trace(file.model_id(), n_layers, n_neurons);
  std::vector<uint32_t> active;
  for (uint32_t t = 0; t < sets.n_tokens(); ++t) {
    for (uint32_t l = 0; l < n_layers; ++l) {
      sets.Get(t, l, &active);
      for (uint32_t& neuron : active) neuron = position[l][neuron];
      std::ranges::sort(active);
      trace.Append(active);
    }
  }
  return trace;
}

}  // namespace sluice
