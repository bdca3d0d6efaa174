// Which neurons each token needed, layer by layer: recorded while decoding, replayed to foretell
// what a cache of another size, or another way of reading, would do with the same text.
#ifndef SLUICE_PREDICTOR_ACTIVATION_TRACE_H_
#define SLUICE_PREDICTOR_ACTIVATION_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice {

class AtomicFile;

// One thread at a time. Takes about 1.3 bytes for each active neuron.
class ActivationTrace {
 public:
  ActivationTrace(uint64_t model_id, uint32_t n_layers, uint32_t n_neurons)
      : model_id_(model_id), n_layers_(n_layers), n_neurons_(n_neurons) {}

  // The active set of the next layer: positions in rising order, layers in turn, token after token.
  void Append(std::span<const uint32_t> active);

  uint64_t model_id() const { return model_id_; }
  uint32_t n_layers() const { return n_layers_; }
  uint32_t n_neurons() const { return n_neurons_; }  // in a layer
  uint32_t n_tokens() const { return static_cast<uint32_t>(begins_.size() / n_layers_); }  // whole
  uint64_t n_active() const { return n_active_; }
  uint64_t memory_bytes() const { return sets_.size() + begins_.size() * sizeof(begins_[0]); }
  // Replaces *active by the active set of a layer of a token.
  void Get(uint32_t token, uint32_t layer, std::vector<uint32_t>* active) const;

  // DataLoss for a truncated or damaged file, InvalidArgument for a file of another kind; messages
  // name the file and the field.
  static absl::StatusOr<ActivationTrace> Load(const std::string& path);
  static absl::StatusOr<ActivationTrace> Parse(std::span<const std::byte> bytes,
                                               const std::string& source);
  // Under a temporary name, then renamed; an existing file is replaced.
  absl::Status Save(const std::string& path) const;
  absl::Status SaveTo(AtomicFile& out) const;  // for who has to know early that it can be written
  // What Save writes: "SLUICEAT", u32 version 1, u32 layers, u32 neurons, u32 tokens, u64 model,
  // u64 bytes of the sets, u64 their XXH64 (all little-endian), then the sets as one zstd frame.
  // A set is its size, then each position as its distance from the one before, in LEB128. The frame
  // is in proportion to the sets: predictor/packed_file.h.
  absl::StatusOr<std::vector<std::byte>> Serialize() const;

 private:
  void Put(uint32_t value);
  absl::Status IndexSets(uint32_t n_tokens, const std::string& source);

  uint64_t model_id_;
  uint32_t n_layers_, n_neurons_;
  uint64_t n_active_ = 0;
  std::vector<uint8_t> sets_;     // coded as in the file
  std::vector<uint64_t> begins_;  // of each set
};

}  // namespace sluice

#endif  // SLUICE_PREDICTOR_ACTIVATION_TRACE_H_
