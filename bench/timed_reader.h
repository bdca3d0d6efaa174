// Batches of reads through the I/O thread that the decoder uses, and how long they take: what the
// benchmarks that replay activations share.
#ifndef SLUICE_BENCH_TIMED_READER_H_
#define SLUICE_BENCH_TIMED_READER_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "io/emulated_device.h"
#include "io/io_thread.h"
#include "layout/sluice_file.h"
#include "runtime/weight_io.h"

namespace sluice {

// What reads cost, and the device that is emulated, if one is.
struct BenchDevice {
  std::unique_ptr<DeviceProfile> profile;
  std::shared_ptr<EmulatedDevice> emulated;  // may be null

  // `emulate`: the profile of a device to emulate, or empty. `device`: a profile of the real one,
  // or "auto" to probe it.
  static absl::StatusOr<BenchDevice> Open(const SluiceFile& file, const std::string& device,
                                          const std::string& emulate);
  // "EMULATED x", or "x".
  std::string Name() const;
  // The file past the page cache; or through it, since an emulated device must not wait for the
  // real one.
  absl::StatusOr<std::unique_ptr<StorageFile>> OpenStorage(const SluiceFile& file) const;
  // With all that a memory plan of 128 MiB and more gives it.
  std::unique_ptr<ReadMerger> MakeMerger(const SluiceFile& file) const;
};

constexpr uint32_t kMergeBytes = 4 << 20;

// Which of n ways of reading comes i-th for a layer of a token: each is first as often as the
// others, and has each of the others before it as often.
inline uint32_t WayAt(uint32_t token, uint32_t layer, uint32_t i, uint32_t n) {
  const uint32_t step = (token + layer) % 2 == 0 ? i : n - i;
  return (token + layer / 2 + step) % n;
}

// One thread at a time.
class TimedReader {
 public:
  // Borrows `storage` and `buffers`: the memory that reads land in, the last of it for what is
  // merged. `merger` null: every request is an operation.
  static absl::StatusOr<std::unique_ptr<TimedReader>> Open(
      const StorageFile& storage, const BenchDevice& device, std::unique_ptr<ReadMerger> merger,
      std::span<const std::span<std::byte>> buffers);

  // From the submission of the batch to its last completion, in milliseconds. `landed` is called
  // with the tag of each read as it is there, within that time.
  absl::StatusOr<double> TimeMs(
      std::span<const IoRequest> reads,
      absl::FunctionRef<void(uint32_t tag)> landed = [](uint32_t) {});

 private:
  explicit TimedReader(std::unique_ptr<IoThread> thread) : thread_(std::move(thread)) {}

  std::unique_ptr<IoThread> thread_;
};

}  // namespace sluice

#endif  // SLUICE_BENCH_TIMED_READER_H_
