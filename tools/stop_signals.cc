#include "tools/stop_signals.h"

#include <csignal>

namespace sluice {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

// A handler may touch nothing else.
std::atomic<int> g_received{0};

void Remember(int signal_number) {
  g_received.store(signal_number, std::memory_order_relaxed);
  std::signal(signal_number, SIG_DFL);
}

}  // namespace

StopSignals::StopSignals() {
  for (const int s : kSignals) {
    if (std::signal(s, Remember) == SIG_IGN) std::signal(s, SIG_IGN);  // as a shell's & asks for
  }
}

StopSignals::~StopSignals() {
  for (const int s : kSignals) {
    if (std::signal(s, SIG_DFL) == SIG_IGN) std::signal(s, SIG_IGN);
  }
}

const std::atomic<int>& StopSignals::received() const { return g_received; }

}  // namespace sluice
