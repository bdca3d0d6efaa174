#include "runtime/look_ahead.h"

#include <algorithm>
#include <utility>

namespace sluice {

LookAhead::LookAhead(const FfnContext& context) : c_(context) {
  const uint32_t n_slots = c_.cache->n_slots();
  const uint32_t most = std::min(c_.bundles().d_ff, n_slots);
  slots_.reserve(n_slots);
  states_.resize(n_slots, State::kNone);
  pins_.resize(n_slots);
  wave_pins_.resize(most);
  wave_.hits.reserve(most);
  wave_.misses.reserve(most);
  reads_.reserve(most);
  rules_.resize(c_.file.config().n_layers);
}

bool LookAhead::Pays(uint32_t layer) {
  const bool pays = rules_[layer].Asked();
  stats_.paused += !pays;
  return pays;
}

size_t LookAhead::Bytes(uint32_t d_ff, uint32_t n_slots) {
  constexpr size_t kPerPosition = sizeof(Pin) + 2 * sizeof(uint32_t) + sizeof(IoRequest);
  return n_slots * (sizeof(uint32_t) + sizeof(State) + sizeof(Pin)) +
         std::min(d_ff, n_slots) * kPerPosition;
}

void LookAhead::Begin(uint32_t layer, std::span<const uint32_t> positions) {
  DropLanded();
  PinWave(*c_.cache, layer, positions, c_.io.room(), wave_pins_, &wave_);
  reads_.clear();
  for (const uint32_t i : wave_.misses) {
    Pin& pin = wave_pins_[i];
    reads_.push_back({c_.bundles().BundleOffset(layer, positions[i]), c_.bundles().stride,
                      pin.data(), pin.slot()});
    slots_.push_back(pin.slot());
    states_[pin.slot()] = State::kReading;
    pins_[pin.slot()] = std::move(pin);
  }
  for (const uint32_t i : wave_.hits) wave_pins_[i].Reset();
  stats_.reads += reads_.size();
  rules_[layer].Began(reads_.size());
  layer_ = layer;
  c_.io.SubmitSlots(reads_, IoPriority::kLookAhead);
}

bool LookAhead::Take(uint32_t slot) {
  const bool landed = std::exchange(states_[slot], State::kNone) == State::kLanded;
  pins_[slot].Reset();
  ++stats_.needed;
  rules_[layer_].Needed();
  stats_.in_time += landed;
  return landed;
}

bool LookAhead::DropLanded() {
  bool dropped = false;
  size_t kept = 0;
  for (const uint32_t slot : slots_) {
    if (states_[slot] == State::kReading) {
      slots_[kept++] = slot;
    } else if (std::exchange(states_[slot], State::kNone) == State::kLanded) {
      c_.cache->DropUnused(std::move(pins_[slot]));
      dropped = true;
    }
  }
  slots_.resize(kept);
  return dropped;
}

void LookAhead::Forget() {
  for (const uint32_t slot : slots_) {
    states_[slot] = State::kNone;
    pins_[slot].Reset();
  }
  slots_.clear();
}

}  // namespace sluice
