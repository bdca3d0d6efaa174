// Runs the built `sluice` program as a shell would and keeps what came of it.
#ifndef SLUICE_TESTS_CLI_RUN_H_
#define SLUICE_TESTS_CLI_RUN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace sluice {

using Arguments = std::vector<std::string>;

// The program's exit codes.
inline constexpr int kOk = 0, kError = 1, kUsage = 2;
// Of a run that did not come to the program.
inline constexpr int kCannotRun = 127;

struct RunSetup {
  std::string stdin_path = "/dev/null";  // "": closed
  // "": captured.
  std::string stdout_path, stderr_path;
  bool close_stdout = false, close_stderr = false;
  // Run as another user than root, who may do everything.
  bool as_nobody = false;
  // If not 0: pread at this offset of any file fails with EIO, as on a damaged medium.
  uint32_t damaged_offset = 0;
  // Called in the parent when the program runs.
  std::function<void(int pid)> meanwhile;
};

struct RunResult {
  int exit_code = -1;  // -1: ended by a signal, or had to be
  int signal = 0;
  std::string out, err;
};

// A run that hangs is ended with SIGKILL after ten minutes.
RunResult RunProgram(const std::string& program, const Arguments& arguments, RunSetup setup = {});
RunResult RunSluice(const Arguments& arguments, RunSetup setup = {});

// Interrupts the program once its stderr, which goes through a FIFO made at `pipe`, says `what`.
RunSetup InterruptOnceItSays(const std::string& pipe, const std::string& what);

// Runs and expects an error of this kind that says `what`, with nothing on stdout.
void ExpectError(const Arguments& arguments, int exit_code, const std::string& what);

}  // namespace sluice

#endif  // SLUICE_TESTS_CLI_RUN_H_
