// A storage device that is not there: an engine reads the real file and completes no earlier than a
// DeviceModel says. One command queue, served in order; several engines may share a device, as
// threads share the real one. A laptop shows what a phone would; whatever is measured through it is
// to be labelled as emulated.
#ifndef SLUICE_IO_EMULATED_DEVICE_H_
#define SLUICE_IO_EMULATED_DEVICE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "io/device_model.h"
#include "io/read_engine.h"

namespace sluice {

// Thread-safe.
class EmulatedDevice {
 public:
  explicit EmulatedDevice(DeviceModel model) : model_(std::move(model)) {}

  const DeviceModel& model() const { return model_; }

  // A submitting thread comes or goes.
  int AddSubmitter() { return n_submitters_.fetch_add(1); }
  void RemoveSubmitter() { n_submitters_.fetch_sub(1); }

  // A read enters the queue at `now_ns`; when it leaves it. Sequential is what begins where the
  // read before it ended; the range is that of the last reads.
  uint64_t Enqueue(uint64_t now_ns, uint64_t offset, uint32_t length, CoreClass core);

  // The real read landed: late if after `due_ns` by over 5 % of the time that it was to take.
  void CountLanded(uint64_t submitted_ns, uint64_t due_ns, uint64_t now_ns);
  double late_share() const;  // of all that landed

 private:
  static constexpr size_t kRecent = 256;

  const DeviceModel model_;
  std::atomic<int> n_submitters_{0};
  std::atomic<uint64_t> n_landed_{0}, n_late_{0};
  std::mutex mutex_;  // guards what follows
  uint64_t free_at_ns_ = 0;
  uint64_t next_sequential_ = UINT64_MAX;
  std::array<uint64_t, kRecent> recent_{};  // offsets, a ring
  size_t n_recent_ = 0;
};

class EmulatedEngine final : public ReadEngine {
 public:
  // Reads through `inner`, as a thread on a core of that class.
  EmulatedEngine(std::unique_ptr<ReadEngine> inner, std::shared_ptr<EmulatedDevice> device,
                 CoreClass core);
  ~EmulatedEngine() override;

  const std::string& description() const override { return description_; }
  uint32_t depth() const override { return depth_; }
  absl::StatusOr<uint32_t> Submit(std::span<const ReadOp> ops) override;
  absl::StatusOr<uint32_t> Reap(std::span<ReadResult> results, bool wait) override;
  void Wake() override;

 private:
  struct Slot {
    uint64_t user = 0;
    uint64_t submitted_ns = 0, due_ns = 0;
    int32_t result = 0;
    bool landed = false;  // the real read is complete
    bool busy = false;
  };

  absl::Status CollectInner(bool wait);
  uint32_t Deliver(std::span<ReadResult> results, uint64_t now_ns, uint64_t* next_due_ns);

  std::unique_ptr<ReadEngine> inner_;
  const std::shared_ptr<EmulatedDevice> device_;
  const CoreClass core_;
  const uint32_t depth_;
  const std::string description_;
  std::vector<Slot> slots_;  // the index is the inner engine's `user`
  std::vector<uint32_t> free_;
  std::vector<ReadResult> inner_results_;
  uint32_t in_inner_ = 0;
  std::atomic<uint32_t> wakes_{0};
  uint32_t wakes_seen_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_IO_EMULATED_DEVICE_H_
