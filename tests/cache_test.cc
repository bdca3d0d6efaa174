#include <gtest/gtest.h>

#include <cstring>
#include <list>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "cache/neuron_cache.h"
#include "cache/wave.h"

namespace sluice {
namespace {

constexpr NeuronCache::Shape kShape = {.n_layers = 3, .n_neurons = 40, .slot_bytes = 512};

std::unique_ptr<NeuronCache> MakeCache(uint32_t n_slots) {
  auto cache = NeuronCache::Create(kShape, n_slots);
  EXPECT_TRUE(cache.ok()) << cache.status();
  return std::move(cache).value();
}

// What a bundle holds in these tests.
uint32_t Mark(uint32_t layer, uint32_t position) { return layer * 1000 + position + 1; }

uint32_t ReadMark(const Pin& pin) {
  uint32_t mark;
  std::memcpy(&mark, pin.data(), sizeof(mark));
  return mark;
}

Pin Load(NeuronCache& cache, uint32_t layer, uint32_t position,
         CacheSegment segment = CacheSegment::kCold) {
  Pin pin = cache.Reserve(layer, position, segment);
  if (pin) {
    const uint32_t mark = Mark(layer, position);
    std::memcpy(pin.data(), &mark, sizeof(mark));
    cache.MarkLoaded(pin.slot());
  }
  return pin;
}

TEST(NeuronCacheTest, FindsWhatWasLoadedAndNothingElse) {
  const auto cache = MakeCache(4);
  EXPECT_FALSE(cache->Find(1, 7));
  Load(*cache, 1, 7);
  EXPECT_FALSE(cache->Contains(0, 7));
  EXPECT_FALSE(cache->Contains(1, 6));
  const Pin pin = cache->Find(1, 7);
  ASSERT_TRUE(pin);
  EXPECT_TRUE(pin.loaded());
  EXPECT_EQ(ReadMark(pin), Mark(1, 7));
  EXPECT_EQ(cache->n_free(), 3u);
}

TEST(NeuronCacheTest, WhatWasReadForNothingGoesFirst) {
  const auto cache = MakeCache(3);
  Load(*cache, 0, 1);
  Load(*cache, 0, 2);
  cache->DropUnused(Load(*cache, 0, 3));
  Load(*cache, 0, 4);
  EXPECT_TRUE(cache->Contains(0, 1));
  EXPECT_FALSE(cache->Contains(0, 3));
  // Used by others: it stays where it was.
  const Pin other = cache->Find(0, 4);
  cache->DropUnused(cache->Find(0, 4));
  Load(*cache, 0, 5);
  EXPECT_TRUE(cache->Contains(0, 4));
  EXPECT_FALSE(cache->Contains(0, 1));
  // Whose read has not ended is free at once; of the hot ones nothing goes.
  cache->DropUnused(cache->Reserve(0, 6, CacheSegment::kCold));
  EXPECT_FALSE(cache->Contains(0, 6));
  EXPECT_EQ(cache->n_free(), 1u);
  cache->DropUnused(Load(*cache, 0, 7, CacheSegment::kHot));
  Load(*cache, 0, 8);
  EXPECT_TRUE(cache->Contains(0, 7));
}

TEST(NeuronCacheTest, SlotsAreDisjointPartsOfTheArena) {
  const auto cache = MakeCache(8);
  EXPECT_GE(cache->arena().size(), 8u * kShape.slot_bytes);
  std::vector<Pin> pins;
  std::set<const std::byte*> starts;
  for (uint32_t p = 0; p < 8; ++p) {
    pins.push_back(Load(*cache, 0, p));
    const std::byte* data = pins.back().data();
    EXPECT_EQ(static_cast<size_t>(data - cache->arena().data()) % kShape.slot_bytes, 0u);
    EXPECT_LE(data + kShape.slot_bytes, cache->arena().data() + cache->arena().size());
    EXPECT_TRUE(starts.insert(data).second);
  }
}

TEST(NeuronCacheTest, EvictsTheLeastRecentlyUsed) {
  const auto cache = MakeCache(3);
  for (const uint32_t p : {0u, 1u, 2u}) Load(*cache, 0, p);
  cache->Find(0, 0);  // 1 is now the oldest
  Load(*cache, 0, 3);
  EXPECT_FALSE(cache->Contains(0, 1));
  EXPECT_TRUE(cache->Contains(0, 0));
  Load(*cache, 0, 4);
  EXPECT_FALSE(cache->Contains(0, 2));
  Load(*cache, 0, 5);
  EXPECT_FALSE(cache->Contains(0, 0));
}

TEST(NeuronCacheTest, UseIsWhenThePinIsDropped) {
  const auto cache = MakeCache(2);
  Pin held = Load(*cache, 0, 0);
  Load(*cache, 0, 1);
  held.Reset();
  Load(*cache, 0, 2);
  EXPECT_TRUE(cache->Contains(0, 0));
  EXPECT_FALSE(cache->Contains(0, 1));
}

TEST(NeuronCacheTest, PinnedBundlesStayWhenMoreAreWantedThanFit) {
  const auto cache = MakeCache(3);
  std::vector<Pin> pins;
  for (const uint32_t p : {0u, 1u, 2u}) pins.push_back(Load(*cache, 0, p));
  EXPECT_FALSE(cache->Reserve(0, 3, CacheSegment::kCold));
  EXPECT_FALSE(cache->Contains(0, 3));
  for (uint32_t p = 0; p < 3; ++p) EXPECT_EQ(ReadMark(pins[p]), Mark(0, p));
  pins[1].Reset();
  EXPECT_TRUE(Load(*cache, 0, 3));
  EXPECT_FALSE(cache->Contains(0, 1));
  EXPECT_EQ(ReadMark(pins[0]), Mark(0, 0));
  EXPECT_EQ(ReadMark(pins[2]), Mark(0, 2));
}

TEST(NeuronCacheTest, LoadingBundlesAreNeverEvicted) {
  const auto cache = MakeCache(2);
  const Pin loading = cache->Reserve(0, 0, CacheSegment::kCold);
  const Pin second = cache->Find(0, 0);
  ASSERT_TRUE(second);
  EXPECT_FALSE(second.loaded());
  Load(*cache, 0, 1);
  Load(*cache, 0, 2);  // takes the slot of 1
  EXPECT_TRUE(cache->Contains(0, 0));
  EXPECT_FALSE(cache->Contains(0, 1));
  cache->MarkLoaded(loading.slot());
  EXPECT_TRUE(second.loaded());
}

TEST(NeuronCacheTest, HotBundlesAreNeverEvicted) {
  const auto cache = MakeCache(3);
  Load(*cache, 0, 0, CacheSegment::kHot);
  Load(*cache, 0, 1, CacheSegment::kHot);
  for (uint32_t p = 2; p < 30; ++p) EXPECT_TRUE(Load(*cache, 0, p));
  EXPECT_EQ(ReadMark(cache->Find(0, 0)), Mark(0, 0));
  EXPECT_EQ(ReadMark(cache->Find(0, 1)), Mark(0, 1));
}

TEST(NeuronCacheTest, PlannedBundlesTakeThePlaceOfColdOnesAndStay) {
  const auto cache = MakeCache(4);
  std::vector<bool> planned(kShape.n_layers * kShape.n_neurons);
  planned[kShape.n_neurons + 2] = planned[kShape.n_neurons + 3] = true;
  cache->PlanHot(planned);
  for (uint32_t p = 0; p < 4; ++p) Load(*cache, 0, p);
  Load(*cache, 1, 2);
  Load(*cache, 1, 3);
  for (uint32_t p = 4; p < 8; ++p) Load(*cache, 0, p);
  EXPECT_TRUE(cache->Contains(1, 2));
  EXPECT_TRUE(cache->Contains(1, 3));
  EXPECT_FALSE(cache->Contains(0, 0));
  EXPECT_FALSE(cache->Contains(0, 5));
  EXPECT_TRUE(cache->Contains(0, 6));
  EXPECT_TRUE(cache->Contains(0, 7));
}

TEST(NeuronCacheTest, HotBundlesEvictNobody) {
  const auto cache = MakeCache(2);
  Load(*cache, 0, 0);
  Load(*cache, 0, 1);
  EXPECT_FALSE(cache->Reserve(0, 2, CacheSegment::kHot));
  EXPECT_TRUE(cache->Contains(0, 0));
  EXPECT_TRUE(cache->Contains(0, 1));
}

TEST(NeuronCacheTest, DiscardedBytesAreNeverServed) {
  const auto cache = MakeCache(1);
  Pin loading = cache->Reserve(0, 0, CacheSegment::kCold);
  const Pin waiting = cache->Find(0, 0);
  cache->Discard(std::move(loading));
  EXPECT_FALSE(cache->Contains(0, 0));
  EXPECT_FALSE(cache->Find(0, 0));
  EXPECT_EQ(cache->n_free(), 0u) << "another pin still holds the slot";
  EXPECT_FALSE(cache->Reserve(0, 1, CacheSegment::kCold));
}

TEST(NeuronCacheTest, ADiscardedSlotIsFreeOnceItsPinsAreGone) {
  const auto cache = MakeCache(1);
  {
    Pin loading = cache->Reserve(0, 0, CacheSegment::kHot);
    const Pin waiting = cache->Find(0, 0);
    cache->Discard(std::move(loading));
  }
  EXPECT_EQ(cache->n_free(), 1u);
  EXPECT_TRUE(Load(*cache, 0, 1));
}

TEST(NeuronCacheTest, APinDroppedWhileLoadingLeavesNothing) {
  const auto cache = MakeCache(1);
  cache->Reserve(2, 5, CacheSegment::kCold);
  EXPECT_FALSE(cache->Contains(2, 5));
  EXPECT_EQ(cache->n_free(), 1u);
}

TEST(NeuronCacheTest, MovedFromPinsHoldNothing) {
  const auto cache = MakeCache(2);
  Pin a = Load(*cache, 0, 0);
  Pin b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(b);
  Pin c = Load(*cache, 0, 1);
  c = std::move(b);  // lets go of bundle 1
  EXPECT_FALSE(b);   // NOLINT(bugprone-use-after-move)
  Load(*cache, 0, 2);
  EXPECT_FALSE(cache->Contains(0, 1));
  EXPECT_EQ(ReadMark(c), Mark(0, 0));
  Pin& self = c;
  c = std::move(self);
  EXPECT_EQ(ReadMark(c), Mark(0, 0));
}

TEST(NeuronCacheTest, CountsUsesAndEvictionsByLayer) {
  const auto cache = MakeCache(1);
  Load(*cache, 0, 0);
  cache->CountUses(0, 0, 1);
  cache->CountUses(0, 2, 3);
  Load(*cache, 1, 0);  // evicts a bundle of layer 0
  EXPECT_EQ(cache->stats(0).hits, 2u);
  EXPECT_EQ(cache->stats(0).misses, 4u);
  EXPECT_EQ(cache->stats(0).evictions, 1u);
  EXPECT_EQ(cache->stats(1).misses, 0u);
  EXPECT_EQ(cache->stats(1).evictions, 0u);
}

TEST(NeuronCacheTest, ACacheWithoutSlotsGivesNone) {
  const auto cache = MakeCache(0);
  EXPECT_FALSE(cache->Find(0, 0));
  EXPECT_FALSE(cache->Reserve(0, 0, CacheSegment::kCold));
}

// The same cache, written the plain way.
class ModelCache {
 public:
  using Key = std::pair<uint32_t, uint32_t>;
  struct Entry {
    CacheSegment segment;
    int pins = 0;
    bool loading = true;
  };

  explicit ModelCache(size_t n_slots) : n_slots_(n_slots) {}

  bool Contains(Key key) const { return entries_.count(key) != 0; }
  const std::map<Key, Entry>& entries() const { return entries_; }

  void AddPin(Key key) {
    ++entries_.at(key).pins;
    lru_.remove(key);
  }
  bool Reserve(Key key, CacheSegment segment) {
    if (entries_.size() + discarded_.size() == n_slots_) {
      if (segment == CacheSegment::kHot || lru_.empty()) return false;
      entries_.erase(lru_.back());
      lru_.pop_back();
    }
    entries_[key] = {segment, 1, true};
    return true;
  }
  void MarkLoaded(Key key) { entries_.at(key).loading = false; }
  // Returns what the pin refers to from now on: a number in discarded_.
  int Discard(Key key) {
    const int pins = entries_.at(key).pins - 1;
    entries_.erase(key);
    if (pins > 0) discarded_[next_discard_] = pins;
    return next_discard_++;
  }
  void DropPin(Key key) {
    Entry& e = entries_.at(key);
    if (--e.pins > 0) return;
    if (e.loading) {
      entries_.erase(key);
    } else if (e.segment == CacheSegment::kCold) {
      lru_.push_front(key);
    }
  }
  void DropDiscarded(int id) {
    if (--discarded_.at(id) == 0) discarded_.erase(id);
  }
  size_t n_free() const { return n_slots_ - entries_.size() - discarded_.size(); }

 private:
  const size_t n_slots_;
  std::map<Key, Entry> entries_;
  std::list<Key> lru_;  // unpinned cold entries, the latest first
  std::map<int, int> discarded_;
  int next_discard_ = 0;
};

struct HeldPin {
  Pin pin;
  ModelCache::Key key;
  std::optional<int> discarded;
};

class RandomOperations {
 public:
  RandomOperations(uint32_t n_slots, uint64_t seed)
      : cache_(MakeCache(n_slots)), model_(n_slots), random_(seed) {}

  void Step() {
    switch (random_() % 6) {
      case 0:
      case 1:
        return FindOrReserve();
      case 2:
        return FinishLoad(/*ok=*/random_() % 4 != 0);
      case 3:
        if (held_.size() < 4) return FindOrReserve();
        [[fallthrough]];
      default:
        return Drop();
    }
  }

  void ExpectSame() {
    for (uint32_t l = 0; l < kShape.n_layers; ++l) {
      for (uint32_t p = 0; p < kShape.n_neurons; ++p) {
        ASSERT_EQ(cache_->Contains(l, p), model_.Contains({l, p})) << l << " " << p;
      }
    }
    ASSERT_EQ(cache_->n_free(), model_.n_free());
    for (const HeldPin& h : held_) {
      if (h.discarded || !h.pin.loaded()) continue;
      ASSERT_EQ(ReadMark(h.pin), Mark(h.key.first, h.key.second));
    }
  }

 private:
  void FindOrReserve() {
    const ModelCache::Key key = {random_() % kShape.n_layers, random_() % 12};
    if (model_.Contains(key)) {
      Pin pin = cache_->Find(key.first, key.second);
      ASSERT_TRUE(pin);
      model_.AddPin(key);
      ASSERT_EQ(pin.loaded(), !model_.entries().at(key).loading);
      held_.push_back({std::move(pin), key, {}});
      return;
    }
    ASSERT_FALSE(cache_->Find(key.first, key.second));
    const CacheSegment segment =
        n_hot_ < 2 && random_() % 8 == 0 ? CacheSegment::kHot : CacheSegment::kCold;
    Pin pin = cache_->Reserve(key.first, key.second, segment);
    ASSERT_EQ(static_cast<bool>(pin), model_.Reserve(key, segment));
    if (!pin) return;
    n_hot_ += segment == CacheSegment::kHot;
    held_.push_back({std::move(pin), key, {}});
  }

  void FinishLoad(bool ok) {
    for (size_t i = 0; i < held_.size(); ++i) {
      HeldPin& h = held_[i];
      if (h.discarded || h.pin.loaded()) continue;
      if (ok) {
        const uint32_t mark = Mark(h.key.first, h.key.second);
        std::memcpy(h.pin.data(), &mark, sizeof(mark));
        cache_->MarkLoaded(h.pin.slot());
        model_.MarkLoaded(h.key);
        return;
      }
      const ModelCache::Key key = h.key;
      cache_->Discard(std::move(h.pin));
      const int id = model_.Discard(key);
      held_.erase(held_.begin() + static_cast<ptrdiff_t>(i));
      for (HeldPin& other : held_) {
        if (!other.discarded && other.key == key) other.discarded = id;
      }
      return;
    }
  }

  void Drop() {
    if (held_.empty()) return;
    const size_t i = random_() % held_.size();
    const HeldPin h = std::move(held_[i]);
    held_.erase(held_.begin() + static_cast<ptrdiff_t>(i));
    if (h.discarded) {
      model_.DropDiscarded(*h.discarded);
    } else {
      model_.DropPin(h.key);
    }
  }

  std::unique_ptr<NeuronCache> cache_;
  ModelCache model_;
  std::mt19937 random_;
  std::vector<HeldPin> held_;
  int n_hot_ = 0;
};

TEST(WaveTest, HitsArePinnedBeforeAnyMissTakesASlot) {
  const auto cache = MakeCache(3);
  for (const uint32_t position : {5u, 6u, 7u}) Load(*cache, 0, position);
  Pin pins[3];
  Wave wave;
  // The least recently used one, 5, comes last; the miss before it must take another.
  PinWave(*cache, 0, std::vector<uint32_t>{1, 6, 5}, 8, pins, &wave);
  EXPECT_EQ(wave.misses, std::vector<uint32_t>{0});
  EXPECT_EQ(wave.hits, (std::vector<uint32_t>{1, 2}));
  EXPECT_FALSE(cache->Contains(0, 7));
  EXPECT_FALSE(pins[0].loaded());
  EXPECT_EQ(ReadMark(pins[2]), Mark(0, 5));
}

TEST(WaveTest, HitsAtTheEndGiveWayWhereTheyHoldAllSlots) {
  const auto cache = MakeCache(2);
  for (const uint32_t position : {8u, 9u}) Load(*cache, 0, position);
  Pin pins[3];
  Wave wave;
  PinWave(*cache, 0, std::vector<uint32_t>{1, 9, 8}, 8, pins, &wave);
  EXPECT_EQ(wave.misses, std::vector<uint32_t>{0});
  EXPECT_EQ(wave.hits, std::vector<uint32_t>{1});
  EXPECT_FALSE(pins[2]);
  EXPECT_FALSE(cache->Contains(0, 8)) << "position 1 has its slot now";
}

TEST(WaveTest, EndsAtItsBounds) {
  const auto cache = MakeCache(8);
  Load(*cache, 0, 3);
  Pin pins[4];
  Wave wave;
  const std::vector<uint32_t> positions = {1, 2, 3, 4, 5, 6};
  PinWave(*cache, 0, positions, 8, pins, &wave);
  EXPECT_EQ(wave.count(), 4u) << "as many as there are pins";
  for (Pin& pin : pins) {
    if (!pin.loaded()) cache->Discard(std::move(pin));
    pin.Reset();
  }
  PinWave(*cache, 0, positions, 2, pins, &wave);
  EXPECT_EQ(wave.misses, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(wave.hits, std::vector<uint32_t>{2});
  EXPECT_FALSE(pins[3]);
  PinWave(*MakeCache(0), 0, positions, 8, std::span<Pin>(), &wave);
  EXPECT_EQ(wave.count(), 0u);
}

TEST(NeuronCacheTest, BehavesLikeAPlainModelUnderRandomOperations) {
  for (const uint32_t n_slots : {1u, 3u, 8u, 20u}) {
    RandomOperations operations(n_slots, n_slots);
    for (int step = 0; step < 5000; ++step) {
      operations.Step();
      operations.ExpectSame();
      ASSERT_FALSE(testing::Test::HasFailure()) << n_slots << " slots, step " << step;
    }
  }
}

}  // namespace
}  // namespace sluice
