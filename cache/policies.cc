#include "cache/policies.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice {

void KeyLinks::List::PushFront(uint32_t key) {
  links_.prev_[key] = kNone;
  links_.next_[key] = front_;
  (front_ != kNone ? links_.prev_[front_] : back_) = key;
  front_ = key;
  ++size_;
}

void KeyLinks::List::Remove(uint32_t key) {
  const uint32_t prev = links_.prev_[key], next = links_.next_[key];
  (prev != kNone ? links_.next_[prev] : front_) = next;
  (next != kNone ? links_.prev_[next] : back_) = prev;
  --size_;
}

uint32_t LruPolicy::Evict() {
  const uint32_t key = list_.back();
  list_.Remove(key);
  return key;
}

void LruPolicy::Release(uint32_t, std::span<const uint32_t> keys) {
  for (const uint32_t key : keys) list_.PushFront(key);
}

S3FifoPolicy::S3FifoPolicy(uint32_t n_keys, uint32_t n_slots)
    : small_target_(std::max(1u, n_slots / 10)),
      most_ghosts_(n_slots - n_slots / 10),
      links_(n_keys),
      where_(n_keys, Where::kNowhere),
      uses_(n_keys, 0),
      pinned_(n_keys, false) {}

void S3FifoPolicy::Pin(uint32_t key) {
  constexpr uint8_t kMostUses = 3;
  uses_[key] = std::min<uint8_t>(kMostUses, uses_[key] + 1);
  pinned_[key] = true;
  ++QueueOf(key).n_pinned;
}

void S3FifoPolicy::Insert(uint32_t key) {
  const bool known = where_[key] == Where::kGhost;
  if (known) ghosts_.Remove(key);
  uses_[key] = 0;
  pinned_[key] = true;
  Queue& queue = known ? main_ : small_;
  Enter(queue, known ? Where::kMain : Where::kSmall, key);
  ++queue.n_pinned;
}

void S3FifoPolicy::Release(uint32_t, std::span<const uint32_t> keys) {
  for (const uint32_t key : keys) pinned_[key] = false;
  small_.n_pinned = main_.n_pinned = 0;
}

uint32_t S3FifoPolicy::Evict() {
  for (;;) {
    const bool from_small =
        small_.CanGive() && (small_.keys.size() >= small_target_ || !main_.CanGive());
    const uint32_t key = from_small ? TrySmall() : TryMain();
    if (key != KeyLinks::kNone) return key;
  }
}

uint32_t S3FifoPolicy::TrySmall() {
  const uint32_t key = small_.keys.back();
  small_.keys.Remove(key);
  if (pinned_[key]) {
    Enter(small_, Where::kSmall, key);
  } else if (uses_[key] > 1) {
    uses_[key] = 0;
    Enter(main_, Where::kMain, key);
  } else {
    Remember(key);
    return key;
  }
  return KeyLinks::kNone;
}

uint32_t S3FifoPolicy::TryMain() {
  const uint32_t key = main_.keys.back();
  main_.keys.Remove(key);
  if (!pinned_[key] && uses_[key] == 0) {
    where_[key] = Where::kNowhere;
    return key;
  }
  if (!pinned_[key]) --uses_[key];
  Enter(main_, Where::kMain, key);
  return KeyLinks::kNone;
}

void S3FifoPolicy::Enter(Queue& queue, Where where, uint32_t key) {
  queue.keys.PushFront(key);
  where_[key] = where;
}

void S3FifoPolicy::Remember(uint32_t key) {
  ghosts_.PushFront(key);
  where_[key] = Where::kGhost;
  if (ghosts_.size() <= most_ghosts_) return;
  where_[ghosts_.back()] = Where::kNowhere;
  ghosts_.Remove(ghosts_.back());
}

EmaPolicy::EmaPolicy(uint32_t n_keys) : rank_(n_keys, -std::numeric_limits<double>::infinity()) {}

uint32_t EmaPolicy::Evict() {
  const uint32_t key = order_.begin()->second;
  order_.erase(order_.begin());
  return key;
}

void EmaPolicy::Release(uint32_t token, std::span<const uint32_t> keys) {
  constexpr double kLambda = 0.67;
  const double age = token * -std::log(kLambda);
  for (const uint32_t key : keys) {
    rank_[key] = std::log(std::exp(rank_[key] - age) + (1 - kLambda)) + age;
    order_.insert({rank_[key], key});
  }
}

}  // namespace sluice
