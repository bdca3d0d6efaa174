#include "cache/neuron_cache.h"

#include "absl/strings/str_format.h"
#include "io/status.h"

namespace sluice {

size_t NeuronCache::FixedBytes(const Shape& shape) {
  return size_t{shape.n_layers} *
         (shape.n_neurons * sizeof(uint32_t) + shape.n_neurons / 8 + 1 + sizeof(CacheLayerStats));
}

size_t NeuronCache::BytesPerSlot(const Shape& shape) { return shape.slot_bytes + sizeof(Slot); }

absl::StatusOr<std::unique_ptr<NeuronCache>> NeuronCache::Create(const Shape& shape,
                                                                 uint32_t n_slots) {
  auto cache = std::unique_ptr<NeuronCache>(new NeuronCache);
  cache->shape_ = shape;
  auto arena = AlignedBuffer::Allocate(size_t{n_slots} * shape.slot_bytes);
  if (!arena.ok()) return Annotate(arena.status(), "neuron cache");
  cache->arena_ = std::move(arena).value();
  cache->slots_.resize(n_slots);
  cache->index_.resize(size_t{shape.n_layers} * shape.n_neurons, kNone);
  cache->stats_.resize(shape.n_layers);
  for (uint32_t s = n_slots; s-- > 0;) cache->Free(s);
  return cache;
}

Pin NeuronCache::Find(uint32_t layer, uint32_t position) {
  const uint32_t slot = index_[Key(layer, position)];
  if (slot == kNone) return {};
  AddPin(slot);
  return Pin(this, slot);
}

Pin NeuronCache::Reserve(uint32_t layer, uint32_t position, CacheSegment segment) {
  const uint32_t key = Key(layer, position);
  const bool is_planned = !planned_hot_.empty() && planned_hot_[key];
  uint32_t slot = free_;
  if (slot != kNone) {
    free_ = slots_[slot].next;
    --n_free_;
  } else if ((segment == CacheSegment::kCold || is_planned) && lru_back_ != kNone) {
    slot = lru_back_;
    Unlink(slot);
    index_[slots_[slot].key] = kNone;
    ++stats_[slots_[slot].key / shape_.n_neurons].evictions;
  } else {
    return {};
  }
  Slot& s = slots_[slot];
  s.key = key;
  s.pins = 1;
  s.loading = true;
  s.segment = is_planned ? CacheSegment::kHot : segment;
  index_[key] = slot;
  return Pin(this, slot);
}

void NeuronCache::Discard(Pin pin) {
  Slot& s = slots_[pin.slot_];
  index_[s.key] = kNone;
  s.key = kNone;  // DropPin frees it
}

void NeuronCache::DropUnused(Pin pin) {
  const uint32_t slot = pin.slot_;
  pin.Reset();
  const Slot& s = slots_[slot];
  if (s.pins > 0 || s.key == kNone || s.segment != CacheSegment::kCold) return;
  Unlink(slot);
  PushBack(slot);
}

void NeuronCache::AddPin(uint32_t slot) {
  Slot& s = slots_[slot];
  if (s.pins++ == 0 && s.segment == CacheSegment::kCold) Unlink(slot);
}

void NeuronCache::DropPin(uint32_t slot) {
  Slot& s = slots_[slot];
  if (--s.pins > 0) return;
  if (s.key == kNone) {
    Free(slot);
  } else if (s.loading) {  // dropped before its read was used: nobody vouches for the bytes
    index_[s.key] = kNone;
    Free(slot);
  } else if (s.segment == CacheSegment::kCold) {
    PushFront(slot);
  }
}

void NeuronCache::PushFront(uint32_t slot) {
  slots_[slot].prev = kNone;
  slots_[slot].next = lru_front_;
  (lru_front_ != kNone ? slots_[lru_front_].prev : lru_back_) = slot;
  lru_front_ = slot;
}

void NeuronCache::PushBack(uint32_t slot) {
  slots_[slot].next = kNone;
  slots_[slot].prev = lru_back_;
  (lru_back_ != kNone ? slots_[lru_back_].next : lru_front_) = slot;
  lru_back_ = slot;
}

void NeuronCache::Unlink(uint32_t slot) {
  const Slot& s = slots_[slot];
  (s.prev != kNone ? slots_[s.prev].next : lru_front_) = s.next;
  (s.next != kNone ? slots_[s.next].prev : lru_back_) = s.prev;
}

void NeuronCache::Free(uint32_t slot) {
  slots_[slot] = Slot{};
  slots_[slot].next = free_;
  free_ = slot;
  ++n_free_;
}

}  // namespace sluice
