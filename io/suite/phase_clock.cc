#include "io/suite/phase_clock.h"

#include <time.h>

#include <utility>

#include "io/clock.h"

namespace sluice {

PhaseClock::PhaseClock(const Plan& plan) : plan_(plan) { BeginPhase(Take(NowNs())); }

PhaseClock::Snapshot PhaseClock::Take(uint64_t now_ns) const {
  struct timespec cpu;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  return {.ns = now_ns,
          .cpu_ns = static_cast<uint64_t>(cpu.tv_sec) * 1'000'000'000 +
                    static_cast<uint64_t>(cpu.tv_nsec),
          .operations = operations_.load(std::memory_order_relaxed)};
}

void PhaseClock::BeginPhase(const Snapshot& now) {
  begin_ = now;
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  const double seconds = phase == 0 ? plan_.warm_up_s : plan_.window_s;
  end_ns_ = now.ns + static_cast<uint64_t>(seconds * 1e9);
  const auto n_phases = static_cast<uint64_t>(plan_.n_windows) + 1;
  end_operations_ = plan_.n_blocks == 0 ? UINT64_MAX : plan_.n_blocks * (phase + 1) / n_phases;
}

void PhaseClock::EndPhase(const Snapshot& now, bool in_time) {
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (phase > 0) {
    windows_.push_back({.ns = now.ns - begin_.ns,
                        .cpu_ns = now.cpu_ns - begin_.cpu_ns,
                        .operations = now.operations - begin_.operations});
    ran_out_ |= !in_time;
  }
  phase_ = phase + 1;
  if (phase == static_cast<uint32_t>(plan_.n_windows)) {
    Stop();
  } else {
    BeginPhase(now);
  }
}

uint32_t PhaseClock::Count(uint64_t n, uint64_t now_ns) {
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  const uint64_t total = operations_.fetch_add(n, std::memory_order_relaxed) + n;
  if (now_ns < end_ns_.load(std::memory_order_relaxed) &&
      total < end_operations_.load(std::memory_order_relaxed)) {
    return phase;
  }
  const std::lock_guard lock(mutex_);
  // Another job may have closed the phase meanwhile; and with a completion that came after this
  // one, though it was counted first: then this one cannot end the phase that began with that.
  if (phase == phase_.load() && !over() && now_ns > begin_.ns) {
    EndPhase(Take(now_ns), now_ns >= end_ns_.load());
  }
  return phase;
}

std::vector<PhaseClock::Window> PhaseClock::TakeWindows() {
  const std::lock_guard lock(mutex_);
  const Snapshot now = Take(NowNs());
  const bool unfinished =
      phase_.load() > 0 && windows_.size() < static_cast<size_t>(plan_.n_windows);
  if (unfinished && now.operations > begin_.operations) EndPhase(now, /*in_time=*/false);
  return std::move(windows_);
}

}  // namespace sluice
