#include "io/suite/load_job.h"

#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/clock.h"
#include "io/cpu_topology.h"
#include "io/scoped_signal_block.h"
#include "io/status.h"

namespace sluice {

LoadJob::LoadJob(const StorageFile& file, const LoadSpec& spec, int index,
                 std::unique_ptr<ReadEngine> engine, AlignedBuffer memory)
    : file_(file),
      spec_(spec),
      sequence_(spec.random, spec.range / spec.block, spec.seed, index, spec.n_jobs,
                /*wraps=*/MayReadAgain(file, spec)),
      engine_(std::move(engine)),
      memory_(std::move(memory)),
      slots_(engine_->depth()),
      latency_(static_cast<size_t>(spec.n_windows) + 2) {
  for (uint32_t s = engine_->depth(); s-- > 0;) free_.push_back(s);
}

absl::Status LoadJob::Start(PhaseClock& clock, std::atomic<int>& running) {
  clock_ = &clock;
  const ScopedSignalBlock no_signals;
  ++running;
  try {
    thread_ = std::thread([this, &running] {
      if (spec_.core >= 0) affinity_note_ = PinThisThread(spec_.core, &pinned_);
      status_ = Drive();
      if (!status_.ok()) clock_->Stop();
      engine_.reset();  // by the thread that drove it
      --running;
    });
  } catch (const std::system_error& error) {
    --running;
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start ", spec_.n_jobs, " threads for reading: ", error.what()));
  }
  return absl::OkStatus();
}

void LoadJob::Join() {
  if (thread_.joinable()) thread_.join();
}

absl::Status LoadJob::Drive() {
  std::vector<ReadOp> ops;
  std::vector<ReadResult> results(slots_.size());
  size_t in_flight = 0;
  while (true) {
    FillOps(ops);
    SLUICE_ASSIGN_OR_RETURN(const uint32_t taken, engine_->Submit(ops));
    in_flight += taken;
    ops.erase(ops.begin(), ops.begin() + taken);
    if (in_flight == 0) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(const uint32_t count, engine_->Reap(results, /*wait=*/true));
    const uint64_t now_ns = NowNs();
    LatencyHistogram& latency = latency_[clock_->Count(count, now_ns)];
    for (const ReadResult& r : std::span(results).first(count)) {
      SLUICE_RETURN_IF_ERROR(CheckResult(r));
      latency.Add(now_ns - slots_[r.user].started_ns);
      free_.push_back(static_cast<uint32_t>(r.user));
    }
    in_flight -= count;
  }
}

void LoadJob::FillOps(std::vector<ReadOp>& ops) {
  const uint64_t now_ns = NowNs();
  while (!free_.empty() && !clock_->over()) {
    const std::optional<uint64_t> block = sequence_.Next();
    if (!block) return;
    const uint32_t slot = free_.back();
    free_.pop_back();
    slots_[slot] = {spec_.offset + *block * spec_.block, now_ns};
    ReadOp op;
    op.fd = file_.fd();
    op.offset = slots_[slot].offset;
    op.length = spec_.block;
    op.dst = memory_.data() + size_t{slot} * spec_.block;
    op.user = slot;
    ops.push_back(op);
  }
}

absl::Status LoadJob::CheckResult(const ReadResult& r) const {
  if (r.result == static_cast<int32_t>(spec_.block)) return absl::OkStatus();
  const std::string what =
      absl::StrCat(file_.path(), ": a read of ", spec_.block, " bytes at ", slots_[r.user].offset);
  if (r.result < 0) return ErrnoStatus(-r.result, absl::StrCat(what, " failed"));
  return absl::DataLossError(
      absl::StrCat(what, " gave only ", r.result, ": the file has become shorter"));
}

}  // namespace sluice
