// An engine that misbehaves on purpose: a decorator over another one, for tests and for trying out
// how the program meets a bad device.
//
// Faults are drawn from the seed, the offset and the number of earlier operations at that offset,
// so that the same reads meet the same faults however the threads are scheduled.
#ifndef SLUICE_IO_FAULT_ENGINE_H_
#define SLUICE_IO_FAULT_ENGINE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "io/read_engine.h"

namespace sluice {

// Shares are probabilities per operation, 0 to 1. The first fault that is drawn applies, in the
// order below.
struct FaultConfig {
  uint64_t seed = 1;
  uint64_t eio_begin = 0;  // every read of a byte in [eio_begin, eio_end) fails with EIO, for ever
  uint64_t eio_end = 0;
  double einval = 0;      // EINVAL, on the direct descriptor only
  double eio_once = 0;    // EIO for the first read at an offset
  double eintr = 0;       // EINTR
  double eagain = 0;      // EAGAIN
  double unwritten = 0;   // success, but the buffer is left untouched
  double short_read = 0;  // fewer bytes than asked for, and rubbish behind them

  double delay = 0;          // the completion is held back ...
  uint32_t delay_reaps = 3;  // ... until so many calls of Reap later
  bool reorder = false;      // completions come in a random order
  bool few = false;          // Submit takes only some of what it is offered
};

// Reads "seed=3,short=0.2,eio_once=0.1". Keys: seed, short, eintr, eagain, eio_once, einval,
// unwritten, delay (shares), delay_reaps, reorder, few (0 or 1), eio=BEGIN-END (bytes).
// InvalidArgument names the key that is unknown or the value that is wrong.
absl::StatusOr<FaultConfig> ParseFaultConfig(std::string_view spec);

class FaultEngine final : public ReadEngine {
 public:
  // `direct_fd`: the descriptor on which `einval` applies; -1 for none.
  FaultEngine(std::unique_ptr<ReadEngine> inner, const FaultConfig& config, int direct_fd);

  const std::string& description() const override { return description_; }
  uint32_t depth() const override { return inner_->depth(); }
  absl::StatusOr<uint32_t> Submit(std::span<const ReadOp> ops) override;
  absl::StatusOr<uint32_t> Reap(std::span<ReadResult> results, bool wait) override;
  void Wake() override { inner_->Wake(); }

  // How many operations met a fault, delays and order not counted.
  uint64_t faults() const { return faults_; }

 private:
  enum class Kind : uint64_t { kEinval, kEioOnce, kEintr, kEagain, kUnwritten, kShort, kDelay };

  // What is in flight. Its index in slots_ is the `user` of the inner engine.
  struct Slot {
    ReadOp op;
    uint32_t shorten_to = 0;  // 0: as it is
    uint32_t delay = 0;       // calls of Reap to hold the result back
  };
  // A result that waits until Reap has been called `due` times.
  struct Held {
    ReadResult result;
    uint64_t due;
  };

  // Whether this attempt at `offset` draws that fault.
  bool Draw(Kind kind, double share, uint64_t offset, uint64_t attempt) const;
  // What replaces the read: a result, or nothing.
  bool Replace(const ReadOp& op, uint64_t attempt, int32_t* result) const;
  absl::Status Start(const ReadOp& op);
  absl::StatusOr<uint32_t> ReapInner(bool wait);
  uint32_t Deliver(std::span<ReadResult> results);
  uint64_t NextRandom();

  std::unique_ptr<ReadEngine> inner_;
  const FaultConfig config_;
  const int direct_fd_;
  std::string description_;
  std::unordered_map<uint64_t, uint64_t> attempts_;  // by offset
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  std::vector<Held> held_;
  std::vector<ReadResult> inner_results_;
  uint64_t reaps_ = 0;
  uint64_t random_state_;
  uint64_t faults_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_IO_FAULT_ENGINE_H_
