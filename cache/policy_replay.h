// What a cache of bundles would hit under other policies: recorded accesses are replayed through
// each of them, and through the best that could be done by somebody who knows the future.
//
// Bundles are keys below n_keys. A set holds what a layer of a token needs: its bundles are needed
// at once, so hits are those that are present before any of the set's misses takes a slot, and no
// bundle of the set gives up its slot while it is used. A set of more keys than there are slots
// passes in parts of that many, as in cache/wave.h.
//
// Offline; one thread at a time. Memory: some 30 bytes for each key, and 12 for each access.
#ifndef SLUICE_CACHE_POLICY_REPLAY_H_
#define SLUICE_CACHE_POLICY_REPLAY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace sluice {

class AccessTrace {
 public:
  explicit AccessTrace(uint32_t n_keys) : n_keys_(n_keys) {}

  // The next set: distinct keys below n_keys(), in the order in which they are used. Tokens never
  // fall.
  void Append(uint32_t token, std::span<const uint32_t> keys);

  uint32_t n_keys() const { return n_keys_; }
  size_t n_sets() const { return tokens_.size(); }
  uint32_t token(size_t set) const { return tokens_[set]; }
  std::span<const uint32_t> keys(size_t set) const {
    return std::span(keys_).subspan(begins_[set], begins_[set + 1] - begins_[set]);
  }
  size_t n_accesses() const { return keys_.size(); }
  size_t begin(size_t set) const { return begins_[set]; }  // accesses before it

 private:
  uint32_t n_keys_;
  std::vector<uint32_t> tokens_;
  std::vector<uint32_t> keys_;
  std::vector<size_t> begins_ = {0};
};

enum class CachePolicy : uint8_t {
  kLru,     // as NeuronCache does
  kS3Fifo,  // three queues (Yang et al., SOSP 2023): a tenth of the slots for what is new, the rest
            // for what was used again there, and a list of keys that were thrown out lately
  kEma,  // S = 0.67 S + 0.33 A once a token (Kairox), A 1 if used: the least S gives way. A bundle
         // that is read has a slot while it is used, and keeps it only where its S is greater
         // than that of another
  kHotLru,  // a share of the slots holds the bundles most used in the warm part, and never changes
  kBelady,  // the optimum: keeps, of what it holds and what was just used, what is needed soonest.
            // What it does not keep it need not have had a slot for, which no real cache can do:
            // an upper bound, by one set of slots too good
};
std::string_view CachePolicyName(CachePolicy policy);

struct ReplayOptions {
  uint32_t n_slots = 0;
  size_t warm_sets = 0;    // at the beginning: not counted
  double hot_share = 0.5;  // of the slots (kHotLru)
};

struct ReplayCounts {
  uint64_t hits = 0, misses = 0;
  double hit_rate() const {
    return hits == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(hits + misses);
  }
};

// Over the sets after the warm part. Each policy begins with nothing but the hot bundles of
// kHotLru.
ReplayCounts ReplayPolicy(const AccessTrace& trace, CachePolicy policy,
                          const ReplayOptions& options);

}  // namespace sluice

#endif  // SLUICE_CACHE_POLICY_REPLAY_H_
