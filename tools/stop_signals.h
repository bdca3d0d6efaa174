// SIGINT, SIGTERM and SIGHUP as a wish to end well.
#ifndef SLUICE_TOOLS_STOP_SIGNALS_H_
#define SLUICE_TOOLS_STOP_SIGNALS_H_

#include <atomic>

namespace sluice {

// While one lives, the first of these signals is remembered instead of ending the program; the next
// one ends it. A signal that the caller of the program had ignored stays so. One at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The number of the signal that came; 0 for none. Thread-safe.
  const std::atomic<int>& received() const;
  // What a program that ends by it returns, as a shell counts: 128 + number.
  int exit_code() const { return 128 + received().load(); }
};

}  // namespace sluice

#endif  // SLUICE_TOOLS_STOP_SIGNALS_H_
