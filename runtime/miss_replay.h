// What a neuron cache would miss: an activation trace goes through a cache of a plan's size, as the
// decoder would use it, and every batch of reads comes out as it would be submitted. Nothing is
// read.
#ifndef SLUICE_RUNTIME_MISS_REPLAY_H_
#define SLUICE_RUNTIME_MISS_REPLAY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "cache/neuron_cache.h"
#include "cache/wave.h"
#include "io/io_request.h"
#include "layout/sluice_file.h"
#include "predictor/activation_trace.h"

namespace sluice {

class MissReplay {
 public:
  // Borrows both. InvalidArgument if the trace is of another model.
  static absl::StatusOr<std::unique_ptr<MissReplay>> Create(const SluiceFile& file,
                                                            const ActivationTrace& trace,
                                                            uint32_t n_slots);

  // The misses of a layer of a token, in rising order of offset; dst is the slot in arena() and tag
  // its number. Tokens in turn, and layers in turn; valid until the next call.
  std::span<const IoRequest> Next(uint32_t token, uint32_t layer);

  uint64_t hits() const { return hits_; }
  uint64_t misses() const { return misses_; }
  std::span<std::byte> arena() const { return cache_->arena(); }

 private:
  MissReplay(const SluiceFile& file, const ActivationTrace& trace) : file_(file), trace_(trace) {}

  const SluiceFile& file_;
  const ActivationTrace& trace_;
  std::unique_ptr<NeuronCache> cache_;
  std::vector<uint32_t> active_;
  std::vector<Pin> pins_;
  Wave wave_;
  std::vector<IoRequest> reads_;
  uint64_t hits_ = 0, misses_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_MISS_REPLAY_H_
