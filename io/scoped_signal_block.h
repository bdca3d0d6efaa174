// Blocks every signal for the calling thread while it lives, so that threads started meanwhile
// never run a handler: signals stay with the threads of the program.
#ifndef SLUICE_IO_SCOPED_SIGNAL_BLOCK_H_
#define SLUICE_IO_SCOPED_SIGNAL_BLOCK_H_

#include <pthread.h>
#include <signal.h>

namespace sluice {

class ScopedSignalBlock {
 public:
  ScopedSignalBlock() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &previous_);
  }
  ~ScopedSignalBlock() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }
  ScopedSignalBlock(const ScopedSignalBlock&) = delete;
  ScopedSignalBlock& operator=(const ScopedSignalBlock&) = delete;

 private:
  sigset_t previous_;
};

}  // namespace sluice

#endif  // SLUICE_IO_SCOPED_SIGNAL_BLOCK_H_
