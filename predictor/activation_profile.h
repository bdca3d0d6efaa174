// What a model does with a text: which neurons fire, how often, together with which, and from one
// token to the next. Made by `sluice profile`; the order of neurons, the plan of what is pinned and
// the predictors are made from it.
//
// Neurons go by their id, their index in the source model, so that a profile holds for a model in
// whatever order a file keeps its neurons. Every tenth sequence or so is held out: it is in no
// count, so that what is made from the others can be tried on it.
//
// The file, all little-endian. It is at most 4 GiB long.
//   "SLUICEAP", u32 version 1, u32 layers, u32 neurons of a layer, u32 d_model, u64 weights_id,
//   u32 tokens, u32 sequences, u32 1 if there are thresholds (else 0),
//   u64 bytes as stored of the three parts, u64 XXH64 of each, u64 XXH64 of all before it;
//   part 1, one zstd frame in proportion to what it holds (predictor/packed_file.h):
//     i32 id of each token; for each sequence u32 tokens and u8 1 if it is held out (else 0);
//     for each layer f64 sum and u32 number of overlaps, f32 threshold if there are any,
//     u32 count of each neuron;
//   part 2 and 3, the training and the held-out sets as ActivationTrace keeps them.
// The same profile gives the same bytes.
#ifndef SLUICE_PREDICTOR_ACTIVATION_PROFILE_H_
#define SLUICE_PREDICTOR_ACTIVATION_PROFILE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/sluice_file.h"
#include "predictor/activation_trace.h"

namespace sluice {

class AtomicFile;

// Tokens that were run from an empty context.
struct ProfileSequence {
  uint32_t begin = 0, n_tokens = 0;  // in tokens()
  bool held_out = false;
};

struct ProfileIdentity {
  uint64_t weights_id = 0;  // SluiceFile::weights_id()
  uint32_t n_layers = 0, n_neurons = 0, d_model = 0;

  static ProfileIdentity Of(const SluiceFile& file);
  bool operator==(const ProfileIdentity&) const = default;
};

// One thread at a time.
class ActivationProfile {
 public:
  static constexpr uint64_t kDefaultSetBytes = uint64_t{512} << 20;

  // Once the sets take `set_bytes`, no more are kept: later tokens are only counted, and of later
  // held-out ones nothing is. While they grow, and while they are saved, they take up to twice
  // that; tokens and counts take 4 bytes a token and a neuron of each layer besides.
  explicit ActivationProfile(const ProfileIdentity& identity,
                             uint64_t set_bytes = kDefaultSetBytes);

  // Building: sequence after sequence, token after token. `active` are the active sets of the
  // layers, ids in rising order.
  void BeginSequence(bool held_out);
  void Append(int32_t token, std::span<const std::vector<uint32_t>> active);
  // By layer: a neuron was active where |activation(gate)| is at least this.
  void set_thresholds(std::vector<float> thresholds) { thresholds_ = std::move(thresholds); }

  const ProfileIdentity& identity() const { return identity_; }
  uint32_t n_layers() const { return identity_.n_layers; }
  uint32_t n_neurons() const { return identity_.n_neurons; }  // in a layer
  std::span<const int32_t> tokens() const { return tokens_; }
  std::span<const ProfileSequence> sequences() const { return sequences_; }
  uint32_t n_train_tokens() const { return n_train_tokens_; }
  uint32_t n_held_out_tokens() const {
    return static_cast<uint32_t>(tokens_.size()) - n_train_tokens_;
  }
  // For how many of the training tokens each neuron was active, by id.
  std::span<const uint32_t> counts(uint32_t layer) const {
    return std::span(counts_).subspan(size_t{layer} * n_neurons(), n_neurons());
  }
  // Over the training tokens but the first of a sequence: the mean share of the active neurons that
  // were active for the token before, too. 0 if there are none.
  double overlap(uint32_t layer) const {
    const Overlap& o = overlaps_[layer];
    return o.n > 0 ? o.sum / o.n : 0;
  }
  std::span<const float> thresholds() const { return thresholds_; }  // empty: exact zeros
  // The active sets, of the first tokens of the training sequences in turn, and of the held-out
  // ones; fewer than the sequences have if there was no room for more. Neurons by id; the model id
  // is weights_id.
  const ActivationTrace& train() const { return train_; }
  const ActivationTrace& held_out() const { return held_out_; }

  // FailedPrecondition if this is not a profile of the model in `file`; `source` is what it was
  // loaded from.
  absl::Status CheckModel(const SluiceFile& file, const std::string& source) const;

  // NotFound, InvalidArgument for a file of another kind, FailedPrecondition for another version,
  // DataLoss for a truncated or damaged one; messages name the file.
  static absl::StatusOr<ActivationProfile> Load(const std::string& path);
  static absl::StatusOr<ActivationProfile> Parse(std::span<const std::byte> bytes,
                                                 const std::string& source);
  // Under a temporary name, then renamed; an existing file is replaced. Takes about as much memory
  // again as the sets.
  absl::Status Save(const std::string& path) const;
  absl::Status SaveTo(AtomicFile& out) const;  // for who has to know early that it can be written
  absl::StatusOr<std::vector<std::byte>> Serialize() const;

 private:
  struct Overlap {
    double sum = 0;
    uint32_t n = 0;
  };
  using Pieces = std::array<std::vector<std::byte>, 4>;  // the header, then the parts
  struct Header;

  absl::StatusOr<Pieces> Pack() const;
  std::vector<std::byte> Records() const;
  absl::Status ReadRecords(std::span<const std::byte> records, const Header& header,
                           const std::string& source);
  absl::Status CheckTraces(const std::string& source) const;
  void Count(std::span<const std::vector<uint32_t>> active);

  ProfileIdentity identity_;
  uint64_t set_bytes_;
  std::vector<int32_t> tokens_;
  std::vector<ProfileSequence> sequences_;
  uint32_t n_train_tokens_ = 0;
  std::vector<uint32_t> counts_;  // [layers x neurons]
  std::vector<Overlap> overlaps_;
  std::vector<float> thresholds_;
  ActivationTrace train_, held_out_;
  bool full_ = false;                          // no more sets are kept
  std::vector<std::vector<uint32_t>> before_;  // the sets of the token before, by layer
};

// The sets of a profile as a cache of this file sees them: by position, as a trace of the file. The
// profile is one of the model in the file.
ActivationTrace SetsByPosition(const ActivationTrace& sets, const SluiceFile& file);

}  // namespace sluice

#endif  // SLUICE_PREDICTOR_ACTIVATION_PROFILE_H_
