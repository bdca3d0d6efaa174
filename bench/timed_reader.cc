#include "bench/timed_reader.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "io/clock.h"
#include "io/status.h"
#include "io/suite/device_probe.h"

namespace sluice {
namespace {

constexpr uint32_t kCapacity = 1 << 15;

}  // namespace

absl::StatusOr<BenchDevice> BenchDevice::Open(const SluiceFile& file, const std::string& device,
                                              const std::string& emulate) {
  BenchDevice result;
  const std::string& source = emulate.empty() ? device : emulate;
  if (source == "auto") {
    SLUICE_ASSIGN_OR_RETURN(
        auto probed, ProbeDevice(file.path(), file.bundles().layer_bytes(), UINT64_MAX, nullptr));
    result.profile = std::make_unique<DeviceProfile>(std::move(probed.profile));
  } else {
    SLUICE_ASSIGN_OR_RETURN(auto loaded, DeviceProfile::Load(source));
    result.profile = std::make_unique<DeviceProfile>(std::move(loaded));
  }
  if (!emulate.empty()) result.emulated = std::make_shared<EmulatedDevice>(result.profile->model());
  return result;
}

std::string BenchDevice::Name() const {
  return absl::StrCat(emulated ? "EMULATED " : "", profile->model().name());
}

absl::StatusOr<std::unique_ptr<StorageFile>> BenchDevice::OpenStorage(
    const SluiceFile& file) const {
  return StorageFile::Open(file.path(), emulated ? DirectMode::kOff : DirectMode::kOn,
                           file.bundles().block);
}

std::unique_ptr<ReadMerger> BenchDevice::MakeMerger(const SluiceFile& file) const {
  const ReadMerger::Limits limits = {std::min(kMostInFlight, profile->BestDepth()), kMergeBytes};
  return std::make_unique<ReadMerger>(*profile, file.bundles().layer_bytes(), limits,
                                      ReadMerger::MarginFor(*profile));
}

absl::StatusOr<std::unique_ptr<TimedReader>> TimedReader::Open(
    const StorageFile& storage, const BenchDevice& device, std::unique_ptr<ReadMerger> merger,
    std::span<const std::span<std::byte>> buffers) {
  EngineOptions options;
  options.depth = std::min(kMostInFlight, device.profile->BestDepth());
  options.buffers = buffers;
  std::string note;
  SLUICE_ASSIGN_OR_RETURN(auto engine, MakeReadEngine(storage, options, &note));
  if (device.emulated != nullptr) {
    engine = std::make_unique<EmulatedEngine>(std::move(engine), device.emulated, CoreClass::kBig);
  }
  IoThreadOptions thread;
  thread.capacity = kCapacity;
  if (merger != nullptr) thread.bounce = buffers.back();
  thread.merger = std::move(merger);
  SLUICE_ASSIGN_OR_RETURN(auto started,
                          IoThread::Start(storage, std::move(engine), std::move(thread)));
  return std::unique_ptr<TimedReader>(new TimedReader(std::move(started)));
}

absl::StatusOr<double> TimedReader::TimeMs(std::span<const IoRequest> reads,
                                           absl::FunctionRef<void(uint32_t tag)> landed) {
  const uint64_t begin_ns = NowNs();
  if (!thread_->Submit(reads, IoPriority::kDemand)) {
    return absl::ResourceExhaustedError("a layer has more reads than the queue holds");
  }
  std::array<IoCompletion, 256> done;
  while (thread_->in_flight() > 0) {
    thread_->WaitForCompletion();
    const size_t n = thread_->Poll(done);
    for (const IoCompletion& c : std::span(done).first(n)) {
      if (c.error != 0) return ErrnoStatus(c.error, "a read of the model");
      landed(c.tag);
    }
  }
  return static_cast<double>(NowNs() - begin_ns) / 1e6;
}

}  // namespace sluice
