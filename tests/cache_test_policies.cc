// Replays of accesses through cache policies: hits counted by hand, the optimum against a search of
// all that could be done, and LRU against the neuron cache itself.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "cache/neuron_cache.h"
#include "cache/policy_replay.h"
#include "cache/wave.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using Sets = std::vector<std::vector<uint32_t>>;

constexpr CachePolicy kRealPolicies[] = {CachePolicy::kLru, CachePolicy::kS3Fifo, CachePolicy::kEma,
                                         CachePolicy::kHotLru};

// A set is a token.
AccessTrace TraceOf(const Sets& sets, uint32_t n_keys) {
  AccessTrace trace(n_keys);
  for (uint32_t s = 0; s < sets.size(); ++s) trace.Append(s, sets[s]);
  return trace;
}

AccessTrace OneByOne(const std::vector<uint32_t>& keys) {
  Sets sets;
  for (const uint32_t key : keys) sets.push_back({key});
  return TraceOf(sets, 100);
}

uint64_t Hits(const AccessTrace& trace, CachePolicy policy, uint32_t n_slots, size_t warm_sets = 0,
              double hot_share = 0.5) {
  const ReplayCounts counts = ReplayPolicy(trace, policy, {n_slots, warm_sets, hot_share});
  EXPECT_EQ(counts.hits + counts.misses, trace.n_accesses() - trace.begin(warm_sets));
  return counts.hits;
}

// Most keys are rare, and sets hold 0 to `most` of them.
AccessTrace RandomTrace(uint32_t n_keys, size_t n_sets, uint32_t most, uint64_t seed) {
  std::mt19937_64 random(seed);
  Sets sets(n_sets);
  for (auto& keys : sets) {
    std::set<uint32_t> chosen;
    for (uint64_t i = random() % (most + 1); i > 0; --i) {
      chosen.insert(static_cast<uint32_t>(random() % (random() % n_keys + 1)));
    }
    keys.assign(chosen.begin(), chosen.end());
  }
  return TraceOf(sets, n_keys);
}

TEST(PolicyReplayTest, LruHitsWhatWasUsedLately) {
  const AccessTrace trace = OneByOne({0, 1, 0, 2, 1, 0});  // 2 takes the slot of 1, 1 that of 0
  EXPECT_EQ(Hits(trace, CachePolicy::kLru, 2), 1u);
  EXPECT_EQ(Hits(trace, CachePolicy::kLru, 3), 3u);
}

TEST(PolicyReplayTest, BeladyKeepsWhatIsNeededSoonest) {
  EXPECT_EQ(Hits(OneByOne({0, 1, 0, 2, 1, 0}), CachePolicy::kBelady, 2), 3u);
  EXPECT_EQ(Hits(OneByOne({0, 1, 2, 0, 1, 2, 0, 1, 2}), CachePolicy::kBelady, 2), 4u);
  EXPECT_EQ(Hits(OneByOne({0, 1, 2, 0, 1, 2, 0, 1, 2}), CachePolicy::kLru, 2), 0u);
}

TEST(PolicyReplayTest, S3FifoKeepsWhatIsUsedAgainInTheMainQueue) {
  // At 2, the oldest key 0 goes to the main queue and 1 to the ghosts, so that 0 is hit; 1 comes
  // back to the main queue in place of 2.
  const AccessTrace trace = OneByOne({0, 0, 0, 1, 2, 0, 1, 0, 1});
  EXPECT_EQ(Hits(trace, CachePolicy::kS3Fifo, 2), 5u);
  EXPECT_EQ(Hits(trace, CachePolicy::kLru, 2), 4u);
}

TEST(PolicyReplayTest, EmaKeepsWhatIsUsedOftenAndLately) {
  // S of 0 is 0.55 * 0.45 at the fourth token, that of 1 is 0.33 * 0.67: 1 gives way.
  EXPECT_EQ(Hits(OneByOne({0, 0, 1, 2, 0}), CachePolicy::kEma, 2), 2u);
  EXPECT_EQ(Hits(OneByOne({0, 0, 1, 2, 0}), CachePolicy::kLru, 2), 1u);
  // After five tokens without it, 0 has faded.
  EXPECT_EQ(Hits(OneByOne({0, 0, 1, 2, 3, 4, 5, 0}), CachePolicy::kEma, 2), 1u);
}

TEST(PolicyReplayTest, HotBundlesOfTheWarmPartStay) {
  const AccessTrace trace = OneByOne({0, 1, 0, /*counted*/ 2, 3, 0, 2, 3, 0, 1});
  EXPECT_EQ(Hits(trace, CachePolicy::kHotLru, 2, 3), 2u);  // 0 twice
  EXPECT_EQ(Hits(trace, CachePolicy::kLru, 2, 3), 0u);
  EXPECT_EQ(Hits(trace, CachePolicy::kHotLru, 2, 3, 1.0), 3u) << "1 is hot too";
  EXPECT_EQ(Hits(trace, CachePolicy::kHotLru, 4, 3, 1.0), 5u)
      << "what was never used is not hot: two slots are left for 2 and 3";
}

TEST(PolicyReplayTest, ASetIsNeededAtOnce) {
  const AccessTrace trace = TraceOf({{0, 1, 2}, {0, 1, 3}, {2, 3}, {0, 2, 3}}, 4);
  // 3 takes the slot of 2, not that of 0, which is in use; then 2 that of 0, and 0 that of 1.
  EXPECT_EQ(Hits(trace, CachePolicy::kLru, 3), 2u + 1 + 2);
  // A set larger than the cache passes in parts; what was last in it stays.
  EXPECT_EQ(Hits(TraceOf({{0, 1, 2}, {2}}, 4), CachePolicy::kLru, 2), 1u);
  EXPECT_EQ(Hits(TraceOf({{0, 1, 2}, {0}}, 4), CachePolicy::kLru, 2), 0u);
}

TEST(PolicyReplayTest, NothingHitsWithoutSlots) {
  const AccessTrace trace = RandomTrace(40, 50, 12, 1);
  for (const CachePolicy policy : kRealPolicies) EXPECT_EQ(Hits(trace, policy, 0, 10), 0u);
  EXPECT_EQ(Hits(trace, CachePolicy::kBelady, 0, 10), 0u);
}

TEST(PolicyReplayTest, OneSlotHoldsTheLastUse) {
  const AccessTrace trace = OneByOne({0, 0, 1, 0, 0, 0, 2, 2});
  for (const CachePolicy policy : kRealPolicies) EXPECT_EQ(Hits(trace, policy, 1), 4u);
  EXPECT_EQ(Hits(trace, CachePolicy::kBelady, 1), 5u) << "1 passes without a slot";
}

TEST(PolicyReplayTest, ASlotForEveryBundleMissesFirstUsesOnly) {
  const AccessTrace trace = RandomTrace(40, 60, 12, 2);
  for (const size_t warm_sets : {0u, 20u}) {
    std::set<uint32_t> seen;
    for (size_t s = 0; s < warm_sets; ++s) seen.insert(trace.keys(s).begin(), trace.keys(s).end());
    uint64_t expected = 0;
    for (size_t s = warm_sets; s < trace.n_sets(); ++s) {
      for (const uint32_t key : trace.keys(s)) expected += !seen.insert(key).second;
    }
    for (const CachePolicy policy : kRealPolicies) {
      EXPECT_EQ(Hits(trace, policy, 40, warm_sets), expected) << CachePolicyName(policy);
    }
    EXPECT_EQ(Hits(trace, CachePolicy::kBelady, 40, warm_sets), expected);
  }
}

TEST(PolicyReplayTest, NoPolicyHitsMoreThanBelady) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const AccessTrace trace = RandomTrace(60, 120, 1 + seed % 25, seed);
    for (const uint32_t n_slots : {1u, 2u, 7u, 20u, 50u}) {
      for (const size_t warm_sets : {0u, 40u}) {
        const uint64_t best = Hits(trace, CachePolicy::kBelady, n_slots, warm_sets);
        for (const CachePolicy policy : kRealPolicies) {
          ASSERT_LE(Hits(trace, policy, n_slots, warm_sets, 0.1 * static_cast<double>(seed % 11)),
                    best)
              << CachePolicyName(policy) << ", seed " << seed << ", " << n_slots << " slots";
        }
      }
    }
  }
}

// The most hits of the sets after the warm part, by trying every content of the cache after every
// set. Keys are bits.
uint64_t BestByTrying(const AccessTrace& trace, uint32_t n_slots, size_t warm_sets) {
  std::map<uint32_t, uint64_t> best = {{0, 0}};  // hits by content
  for (size_t s = 0; s < trace.n_sets(); ++s) {
    uint32_t needed = 0;
    for (const uint32_t key : trace.keys(s)) needed |= 1u << key;
    std::map<uint32_t, uint64_t> after;
    for (const auto& [content, hits_before] : best) {
      const auto found = static_cast<uint64_t>(__builtin_popcount(content & needed));
      const uint64_t hits = hits_before + (s < warm_sets ? 0 : found);
      const uint32_t all = content | needed;
      for (uint32_t kept = all;; kept = (kept - 1) & all) {
        if (__builtin_popcount(kept) <= static_cast<int>(n_slots)) {
          after[kept] = std::max(after[kept], hits);
        }
        if (kept == 0) break;
      }
    }
    best = std::move(after);
  }
  uint64_t most = 0;
  for (const auto& entry : best) most = std::max(most, entry.second);
  return most;
}

TEST(PolicyReplayTest, BeladyIsTheBestOfAllThatCouldBeDone) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const AccessTrace trace = RandomTrace(6, 14, 1 + seed % 4, seed);
    for (uint32_t n_slots = 1; n_slots <= 4; ++n_slots) {
      for (const size_t warm_sets : {0u, 5u}) {
        ASSERT_EQ(Hits(trace, CachePolicy::kBelady, n_slots, warm_sets),
                  BestByTrying(trace, n_slots, warm_sets))
            << "seed " << seed << ", " << n_slots << " slots, " << warm_sets;
      }
    }
  }
}

// As the decoder uses the cache, with as many pins as there are slots.
uint64_t HitsOfNeuronCache(const AccessTrace& trace, uint32_t n_slots) {
  const NeuronCache::Shape shape = {1, trace.n_keys(), 512};
  auto cache = NeuronCache::Create(shape, n_slots);
  EXPECT_TRUE(cache.ok()) << cache.status();
  std::vector<Pin> pins(n_slots);
  Wave wave;
  uint64_t hits = 0;
  for (size_t s = 0; s < trace.n_sets(); ++s) {
    const auto keys = trace.keys(s);
    for (size_t begin = 0; begin < keys.size(); begin += wave.count()) {
      PinWave(**cache, 0, keys.subspan(begin), keys.size(), pins, &wave);
      hits += wave.hits.size();
      for (const uint32_t w : wave.misses) (*cache)->MarkLoaded(pins[w].slot());
      for (uint32_t w = 0; w < wave.count(); ++w) pins[w].Reset();
    }
  }
  return hits;
}

TEST(PolicyReplayTest, LruHitsWhatTheNeuronCacheHits) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const AccessTrace trace = RandomTrace(80, 200, 30, seed);
    for (const uint32_t n_slots : {1u, 3u, 11u, 25u, 40u, 79u}) {
      ASSERT_EQ(Hits(trace, CachePolicy::kLru, n_slots), HitsOfNeuronCache(trace, n_slots))
          << "seed " << seed << ", " << n_slots << " slots";
    }
  }
}

TEST(PolicyReplayTest, EmaBeatsLruWhereMostBundlesAreUsedOnce) {
  constexpr uint32_t kTokens = 60, kRegular = 40, kOnce = 30;
  Sets sets;
  for (uint32_t t = 0; t < kTokens; ++t) {
    // Half of the regular ones by turns, and some that never come again.
    auto& keys = sets.emplace_back();
    for (uint32_t i = t % 2; i < kRegular; i += 2) keys.push_back(i);
    for (uint32_t i = 0; i < kOnce; ++i) keys.push_back(kRegular + t * kOnce + i);
  }
  const AccessTrace trace = TraceOf(sets, kRegular + kTokens * kOnce);
  // Room for the regular ones, and for those of one token.
  const uint32_t n_slots = kRegular + kOnce;
  const uint64_t lru = Hits(trace, CachePolicy::kLru, n_slots, 10);
  const uint64_t ema = Hits(trace, CachePolicy::kEma, n_slots, 10);
  EXPECT_EQ(ema, (kTokens - 10) * kRegular / 2) << "every use of a regular one";
  EXPECT_LT(lru, ema / 2);
}

}  // namespace
}  // namespace sluice
