#include "cache/policy_replay.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "cache/policies.h"

namespace sluice {
namespace {

// Slots under a policy.
class SimulatedCache {
 public:
  SimulatedCache(uint32_t n_keys, uint32_t n_slots, EvictionPolicy& policy)
      : n_slots_(n_slots), policy_(policy), present_(n_keys, false) {}

  // Hits of a set.
  uint64_t Use(uint32_t token, std::span<const uint32_t> keys) {
    uint64_t hits = 0;
    while (n_slots_ > 0 && !keys.empty()) {
      const auto part = keys.first(std::min<size_t>(n_slots_, keys.size()));
      hits += UsePart(token, part);
      keys = keys.subspan(part.size());
    }
    return hits;
  }

 private:
  uint64_t UsePart(uint32_t token, std::span<const uint32_t> part) {
    misses_.clear();
    for (const uint32_t key : part) {
      if (present_[key]) {
        policy_.Pin(key);
      } else {
        misses_.push_back(key);
      }
    }
    for (const uint32_t key : misses_) {
      if (n_present_ == n_slots_) {
        present_[policy_.Evict()] = false;
      } else {
        ++n_present_;
      }
      policy_.Insert(key);
      present_[key] = true;
    }
    policy_.Release(token, part);
    return part.size() - misses_.size();
  }

  const uint32_t n_slots_;
  EvictionPolicy& policy_;
  std::vector<bool> present_;
  uint32_t n_present_ = 0;
  std::vector<uint32_t> misses_;
};

// The keys that the sets before `end_set` use most, `n` of them or as many as are used at all; of
// equal ones the lowest.
std::vector<uint32_t> MostUsed(const AccessTrace& trace, size_t end_set, uint32_t n) {
  std::vector<uint32_t> uses(trace.n_keys(), 0), order;
  for (size_t s = 0; s < end_set; ++s) {
    for (const uint32_t key : trace.keys(s)) {
      if (uses[key]++ == 0) order.push_back(key);
    }
  }
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return uses[a] != uses[b] ? uses[a] > uses[b] : a < b; });
  order.resize(std::min<size_t>(n, order.size()));
  return order;
}

// `hot` keys are always there, and are not told to the cache.
ReplayCounts ReplayCache(const AccessTrace& trace, size_t warm_sets, std::span<const uint32_t> hot,
                         SimulatedCache cache) {
  std::vector<bool> is_hot(trace.n_keys(), false);
  for (const uint32_t key : hot) is_hot[key] = true;
  ReplayCounts counts;
  std::vector<uint32_t> cold;
  for (size_t s = 0; s < trace.n_sets(); ++s) {
    const auto keys = trace.keys(s);
    cold.clear();
    for (const uint32_t key : keys) {
      if (!is_hot[key]) cold.push_back(key);
    }
    const uint64_t hits = keys.size() - cold.size() + cache.Use(trace.token(s), cold);
    if (s < warm_sets) continue;
    counts.hits += hits;
    counts.misses += keys.size() - hits;
  }
  return counts;
}

// For each access the set that uses the key next, or none.
constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();
std::vector<uint32_t> NextUses(const AccessTrace& trace) {
  std::vector<uint32_t> next(trace.n_accesses()), seen(trace.n_keys(), kNever);
  for (size_t s = trace.n_sets(); s-- > 0;) {
    const auto keys = trace.keys(s);
    for (size_t i = 0; i < keys.size(); ++i) {
      next[trace.begin(s) + i] = std::exchange(seen[keys[i]], static_cast<uint32_t>(s));
    }
  }
  return next;
}

// To keep a key until its next use is an interval; no more than n_slots of them may overlap, and as
// many as possible are wanted. Of those that overlap in too great a number, the one that ends last
// is in the way of most others, so leaving it out is never wrong. Intervals that end in the warm
// part gain nothing.
ReplayCounts ReplayBelady(const AccessTrace& trace, const ReplayOptions& options) {
  const std::vector<uint32_t> next = NextUses(trace);
  std::set<std::pair<uint32_t, uint32_t>> kept;  // next use, key
  ReplayCounts counts;
  for (size_t s = 0; s < trace.n_sets(); ++s) {
    const auto keys = trace.keys(s);
    uint64_t hits = 0;
    for (const uint32_t key : keys) hits += kept.erase({static_cast<uint32_t>(s), key});
    for (size_t i = 0; i < keys.size(); ++i) {
      const uint32_t use = next[trace.begin(s) + i];
      if (use == kNever || use < options.warm_sets) continue;
      kept.insert({use, keys[i]});
      if (kept.size() > options.n_slots) kept.erase(std::prev(kept.end()));
    }
    if (s < options.warm_sets) continue;
    counts.hits += hits;
    counts.misses += keys.size() - hits;
  }
  return counts;
}

}  // namespace

void AccessTrace::Append(uint32_t token, std::span<const uint32_t> keys) {
  tokens_.push_back(token);
  keys_.insert(keys_.end(), keys.begin(), keys.end());
  begins_.push_back(keys_.size());
}

std::string_view CachePolicyName(CachePolicy policy) {
  switch (policy) {
    case CachePolicy::kLru:
      return "LRU";
    case CachePolicy::kS3Fifo:
      return "S3-FIFO";
    case CachePolicy::kEma:
      return "EMA";
    case CachePolicy::kHotLru:
      return "hot + LRU";
    case CachePolicy::kBelady:
      break;
  }
  return "Belady";
}

ReplayCounts ReplayPolicy(const AccessTrace& trace, CachePolicy policy,
                          const ReplayOptions& options) {
  if (policy == CachePolicy::kBelady) return ReplayBelady(trace, options);
  const uint32_t n_keys = trace.n_keys();
  std::vector<uint32_t> hot;
  if (policy == CachePolicy::kHotLru) {
    const double n_hot = options.n_slots * std::clamp(options.hot_share, 0.0, 1.0);
    hot = MostUsed(trace, options.warm_sets, static_cast<uint32_t>(n_hot));
  }
  const uint32_t n_cold = options.n_slots - static_cast<uint32_t>(hot.size());
  std::unique_ptr<EvictionPolicy> eviction;
  if (policy == CachePolicy::kS3Fifo) {
    eviction = std::make_unique<S3FifoPolicy>(n_keys, n_cold);
  } else if (policy == CachePolicy::kEma) {
    eviction = std::make_unique<EmaPolicy>(n_keys);
  } else {
    eviction = std::make_unique<LruPolicy>(n_keys);
  }
  return ReplayCache(trace, options.warm_sets, hot, SimulatedCache(n_keys, n_cold, *eviction));
}

}  // namespace sluice
