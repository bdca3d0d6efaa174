#include "runtime/miss_replay.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "io/status.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<MissReplay>> MissReplay::Create(const SluiceFile& file,
                                                               const ActivationTrace& trace,
                                                               uint32_t n_slots) {
  const ModelConfig& config = file.config();
  if (trace.model_id() != file.model_id() || trace.n_layers() != config.n_layers ||
      trace.n_neurons() != config.d_ff) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the activation trace is of model %016x with %u x %u neurons; %s is %016x with %u x %u",
        trace.model_id(), trace.n_layers(), trace.n_neurons(), file.path(), file.model_id(),
        config.n_layers, config.d_ff));
  }
  auto replay = std::unique_ptr<MissReplay>(new MissReplay(file, trace));
  const NeuronCache::Shape shape = {config.n_layers, config.d_ff, file.bundles().stride};
  SLUICE_ASSIGN_OR_RETURN(replay->cache_, NeuronCache::Create(shape, n_slots));
  replay->pins_.resize(std::min(config.d_ff, n_slots));
  return replay;
}

std::span<const IoRequest> MissReplay::Next(uint32_t token, uint32_t layer) {
  trace_.Get(token, layer, &active_);
  reads_.clear();
  const BundleLayout& bundles = file_.bundles();
  for (size_t begin = 0; begin < active_.size();) {  // in waves, as DemandFfn does
    const size_t most = std::min(active_.size() - begin, pins_.size());
    for (size_t w = 0; w < most; ++w) pins_[w] = cache_->Find(layer, active_[begin + w]);
    size_t count = 0, last = most;
    for (; count < last; ++count) {
      const uint32_t position = active_[begin + count];
      Pin& pin = pins_[count];
      if (pin) {
        ++hits_;
        continue;
      }
      while (true) {
        pin = cache_->Reserve(layer, position, CacheSegment::kCold);
        if (pin || last == count + 1) break;
        pins_[--last].Reset();  // hits at the end of the wave hold the slots
      }
      if (!pin) break;
      cache_->MarkLoaded(pin.slot());
      reads_.push_back(
          {bundles.BundleOffset(layer, position), bundles.stride, pin.data(), pin.slot()});
      ++misses_;
    }
    for (size_t w = 0; w < last; ++w) pins_[w].Reset();
    if (count == 0) break;  // no slot at all
    begin += count;
  }
  return reads_;
}

}  // namespace sluice
