// Replacement policies over keys, for replays (cache/policy_replay.h). One thread at a time.
#ifndef SLUICE_CACHE_POLICIES_H_
#define SLUICE_CACHE_POLICIES_H_

#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace sluice {

// Lists of keys, each key in one of them at most. O(1), linked through arrays by key.
class KeyLinks {
 public:
  static constexpr uint32_t kNone = 0xffffffff;

  class List {
   public:
    explicit List(KeyLinks& links) : links_(links) {}
    void PushFront(uint32_t key);
    void Remove(uint32_t key);
    uint32_t back() const { return back_; }  // kNone if there is none
    uint32_t size() const { return size_; }

   private:
    KeyLinks& links_;
    uint32_t front_ = kNone, back_ = kNone, size_ = 0;
  };

  explicit KeyLinks(uint32_t n_keys) : prev_(n_keys, kNone), next_(n_keys, kNone) {}

 private:
  std::vector<uint32_t> prev_, next_;
};

// Who gives way. Told of each part of a set: Pin for every hit, then for every miss Evict (where
// the slots are full) and Insert, then Release. Between Pin or Insert and Release a key is never
// evicted.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual void Pin(uint32_t key) = 0;
  // Chooses a key that is present and not pinned, of which there is one, and forgets it.
  virtual uint32_t Evict() = 0;
  virtual void Insert(uint32_t key) = 0;
  virtual void Release(uint32_t token, std::span<const uint32_t> keys) = 0;
};

class LruPolicy final : public EvictionPolicy {
 public:
  explicit LruPolicy(uint32_t n_keys) : links_(n_keys) {}
  void Pin(uint32_t key) override { list_.Remove(key); }
  uint32_t Evict() override;
  void Insert(uint32_t) override {}
  void Release(uint32_t token, std::span<const uint32_t> keys) override;

 private:
  KeyLinks links_;
  KeyLinks::List list_{links_};  // the latest first; pinned keys are in no list
};

class S3FifoPolicy final : public EvictionPolicy {
 public:
  S3FifoPolicy(uint32_t n_keys, uint32_t n_slots);
  void Pin(uint32_t key) override;
  uint32_t Evict() override;
  void Insert(uint32_t key) override;
  void Release(uint32_t token, std::span<const uint32_t> keys) override;

 private:
  enum class Where : uint8_t { kNowhere, kSmall, kMain, kGhost };
  struct Queue {
    KeyLinks::List keys;
    uint32_t n_pinned = 0;
    bool CanGive() const { return keys.size() > n_pinned; }
  };
  // Looks at the oldest key of a queue: throws it out, or moves it on and returns kNone.
  uint32_t TrySmall();
  uint32_t TryMain();
  void Enter(Queue& queue, Where where, uint32_t key);
  void Remember(uint32_t key);  // among the ghosts
  Queue& QueueOf(uint32_t key) { return where_[key] == Where::kSmall ? small_ : main_; }

  const uint32_t small_target_, most_ghosts_;
  KeyLinks links_;
  Queue small_{KeyLinks::List(links_)}, main_{KeyLinks::List(links_)};
  KeyLinks::List ghosts_{links_};
  std::vector<Where> where_;
  std::vector<uint8_t> uses_;  // 3 at most
  std::vector<bool> pinned_;
};

class EmaPolicy final : public EvictionPolicy {
 public:
  explicit EmaPolicy(uint32_t n_keys);
  void Pin(uint32_t key) override { order_.erase({rank_[key], key}); }
  uint32_t Evict() override;
  void Insert(uint32_t) override {}
  void Release(uint32_t token, std::span<const uint32_t> keys) override;

 private:
  // log S + token * log(1 / lambda): S of all keys fades alike, so that this stays the same until
  // the key is used, and orders keys as S does.
  std::vector<double> rank_;
  std::set<std::pair<double, uint32_t>> order_;  // of present keys that are not pinned
};

}  // namespace sluice

#endif  // SLUICE_CACHE_POLICIES_H_
