// Whether to go on with reads that are a guess: pauses while fewer than half of them are needed,
// and tries again now and then, after a trial that fails only after twice as long.
#ifndef SLUICE_RUNTIME_PAUSE_RULE_H_
#define SLUICE_RUNTIME_PAUSE_RULE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace sluice {

// For one stream of guesses, as those for one layer.
class PauseRule {
 public:
  static constexpr uint32_t kShortest = 16, kLongest = 4096;  // pauses, in times asked

  // Whether to read this time.
  bool Asked() {
    ++asked_;
    if (reads_ < kLeastReads || needed_ >= kLeastShare * reads_) {
      pause_ = kShortest;
      resumes_at_ = asked_ + pause_;
      return true;
    }
    if (asked_ < resumes_at_) return false;
    // A trial takes two times: what the first one reads may be needed only then.
    if (asked_ > resumes_at_) {
      pause_ = std::min(2 * pause_, kLongest);
      resumes_at_ = asked_ + pause_;
    }
    return true;
  }
  // So many reads were begun; what was known counts less.
  void Began(size_t reads) {
    needed_ *= kKept;
    reads_ = kKept * reads_ + static_cast<float>(reads);
  }
  void Needed() { ++needed_; }

 private:
  static constexpr float kLeastReads = 8, kLeastShare = 0.5, kKept = 0.875;

  float reads_ = 0, needed_ = 0;
  uint32_t asked_ = 0, pause_ = kShortest, resumes_at_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_PAUSE_RULE_H_
