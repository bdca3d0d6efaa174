#include "runtime/miss_replay.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "runtime/hot_plan.h"

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
  replay->cache_->PlanHot(PlanHot(file, n_slots));
  replay->pins_.resize(std::min(config.d_ff, n_slots));
  return replay;
}

std::span<const IoRequest> MissReplay::Next(uint32_t token, uint32_t layer) {
  trace_.Get(token, layer, &active_);
  reads_.clear();
  const BundleLayout& bundles = file_.bundles();
  for (size_t begin = 0; begin < active_.size(); begin += wave_.count()) {
    const auto positions = std::span<const uint32_t>(active_).subspan(begin);
    PinWave(*cache_, layer, positions, positions.size(), pins_, &wave_);
    if (wave_.count() == 0) break;  // no slot at all
    for (const uint32_t w : wave_.misses) {
      cache_->MarkLoaded(pins_[w].slot());
      reads_.push_back({bundles.BundleOffset(layer, positions[w]), bundles.stride, pins_[w].data(),
                        pins_[w].slot()});
    }
    for (uint32_t w = 0; w < wave_.count(); ++w) pins_[w].Reset();
    hits_ += wave_.hits.size();
    misses_ += wave_.misses.size();
  }
  return reads_;
}

}  // namespace sluice
