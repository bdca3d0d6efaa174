// The neuron cache: bundles of FFN neurons in DRAM.
//
// One arena of fixed slots, sized at creation; reads land directly in a slot. A slot is free, cold
// (in an LRU list), hot (never evicted) or held: while it is pinned or loading it is in no list, so
// eviction is O(1) and can never take a slot that is in use or that the kernel still writes to.
//
// After Create nothing allocates and nothing locks. Confined to the decode thread; other threads
// may read the bytes of a slot while a Pin on it is held.
#ifndef SLUICE_CACHE_NEURON_CACHE_H_
#define SLUICE_CACHE_NEURON_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "io/aligned_buffer.h"

namespace sluice {

class NeuronCache;

// Keeps a bundle in its slot while it lives. Empty if default-constructed or moved from.
class Pin {
 public:
  Pin() = default;
  Pin(Pin&& other) noexcept
      : cache_(std::exchange(other.cache_, nullptr)), slot_(std::exchange(other.slot_, 0)) {}
  Pin& operator=(Pin&& other) noexcept {
    Pin taken(std::move(other));
    std::swap(cache_, taken.cache_);
    std::swap(slot_, taken.slot_);
    return *this;
  }
  ~Pin() { Reset(); }

  explicit operator bool() const { return cache_ != nullptr; }
  uint32_t slot() const { return slot_; }
  inline std::byte* data() const;  // slot_bytes() bytes
  inline bool loaded() const;
  inline void Reset();

 private:
  friend class NeuronCache;
  Pin(NeuronCache* cache, uint32_t slot) : cache_(cache), slot_(slot) {}

  NeuronCache* cache_ = nullptr;
  uint32_t slot_ = 0;
};

enum class CacheSegment : uint8_t {
  kCold,  // least recently used goes first
  kHot,   // stays
};

struct CacheLayerStats {
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t evictions = 0;
};

class NeuronCache {
 public:
  struct Shape {
    uint32_t n_layers = 0;
    uint32_t n_neurons = 0;  // in a layer
    uint32_t slot_bytes = 0;
  };

  // DRAM that a cache takes: for the tables that any cache of this shape needs, and for each slot.
  static size_t FixedBytes(const Shape& shape);
  static size_t BytesPerSlot(const Shape& shape);

  // ResourceExhausted if the system has no memory.
  static absl::StatusOr<std::unique_ptr<NeuronCache>> Create(const Shape& shape, uint32_t n_slots);

  // By key (layer * n_neurons + position): bundles that are hot once they have been read, whatever
  // segment they are reserved for; at least one slot fewer than there are. They take the place of
  // cold ones. Before anything is reserved.
  void PlanHot(std::vector<bool> planned) { planned_hot_ = std::move(planned); }

  uint32_t n_slots() const { return static_cast<uint32_t>(slots_.size()); }
  uint32_t slot_bytes() const { return shape_.slot_bytes; }
  std::span<std::byte> arena() const { return arena_.span(); }

  // Pins the bundle if it is present (loaded or still loading), else gives an empty Pin.
  Pin Find(uint32_t layer, uint32_t position);
  bool Contains(uint32_t layer, uint32_t position) const {
    return index_[Key(layer, position)] != kNone;
  }
  // Present, and not on its way only.
  bool Holds(uint32_t layer, uint32_t position) const {
    const uint32_t slot = index_[Key(layer, position)];
    return slot != kNone && !slots_[slot].loading;
  }

  // The bytes of a bundle that is present, which nothing may evict while they are used: for passes
  // that reserve nothing. Any thread may ask as long as nobody changes what is cached.
  const std::byte* Peek(uint32_t layer, uint32_t position) const {
    const uint32_t slot = index_[Key(layer, position)];
    return slot == kNone ? nullptr : arena_.data() + size_t{slot} * shape_.slot_bytes;
  }

  // Takes a slot for a bundle that is not present: a free one, else (kCold, and what PlanHot named)
  // the least recently used cold one. The slot is pinned and loading until MarkLoaded. Empty if
  // there is none to take.
  Pin Reserve(uint32_t layer, uint32_t position, CacheSegment segment);
  void MarkLoaded(uint32_t slot) { slots_[slot].loading = false; }
  // Drops a pin on what was read and then not used: unless others have pins too, it is the first
  // to be evicted.
  void DropUnused(Pin pin);
  // The load failed: the slot becomes free once its pins are gone, its bytes are never served.
  void Discard(Pin pin);

  // Bundles that a token or a chunk of them needed: found here, or read.
  void CountUses(uint32_t layer, uint64_t hits, uint64_t misses) {
    stats_[layer].hits += hits;
    stats_[layer].misses += misses;
  }

  uint32_t n_free() const { return n_free_; }
  const CacheLayerStats& stats(uint32_t layer) const { return stats_[layer]; }

 private:
  friend class Pin;
  static constexpr uint32_t kNone = 0xffffffff;

  struct Slot {
    uint32_t key = kNone;
    uint32_t prev = kNone, next = kNone;  // in the LRU list or (next only) the free list
    uint32_t pins = 0;
    bool loading = false;
    CacheSegment segment = CacheSegment::kCold;
  };

  NeuronCache() = default;
  uint32_t Key(uint32_t layer, uint32_t position) const {
    return layer * shape_.n_neurons + position;
  }
  void AddPin(uint32_t slot);
  void DropPin(uint32_t slot);
  void PushFront(uint32_t slot);
  void PushBack(uint32_t slot);
  void Unlink(uint32_t slot);
  void Free(uint32_t slot);

  Shape shape_;
  AlignedBuffer arena_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> index_;    // slot by key
  std::vector<bool> planned_hot_;  // by key; empty: none
  std::vector<CacheLayerStats> stats_;
  uint32_t lru_front_ = kNone, lru_back_ = kNone;
  uint32_t free_ = kNone;
  uint32_t n_free_ = 0;
};

inline std::byte* Pin::data() const {
  return cache_->arena_.data() + size_t{slot_} * cache_->shape_.slot_bytes;
}
inline bool Pin::loaded() const { return !cache_->slots_[slot_].loading; }
inline void Pin::Reset() {
  if (cache_ != nullptr) std::exchange(cache_, nullptr)->DropPin(slot_);
}

}  // namespace sluice

#endif  // SLUICE_CACHE_NEURON_CACHE_H_
