// What the tests of `sluice iobench` share.
#ifndef SLUICE_TESTS_IOBENCH_FIXTURE_H_
#define SLUICE_TESTS_IOBENCH_FIXTURE_H_

#include <unistd.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <string>

#include "gtest/gtest.h"
#include "tests/cli_run.h"
#include "tests/test_paths.h"

namespace sluice {

// Of a process, from /proc; "" if it is not there.
inline std::string ProcessStatus(int pid, const std::string& wanted) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/status");
  for (std::string key, value; in >> key >> value; in.ignore(4096, '\n')) {
    if (key == wanted + ":") return value;
  }
  return "";
}

inline bool CatchesInterrupts(int pid) {
  const std::string caught = ProcessStatus(pid, "SigCgt");
  return !caught.empty() && (std::stoull(caught, nullptr, 16) >> (SIGINT - 1) & 1) != 0;
}

// Whether the file is open and being read by the pread engine: there are the main thread, the job's
// and a worker of its engine. A sanitizer may have one of its own.
inline bool RunsACell(int pid) {
  const std::string threads = ProcessStatus(pid, "Threads");
  return !threads.empty() && std::stoi(threads) > 2;
}

// Waits until the process is so, or for a minute.
inline void WaitUntil(bool (*is_so)(int pid), int pid) {
  for (int i = 0; i < 60'000 && !is_so(pid); ++i) usleep(1000);
}

class IobenchTest : public testing::Test {
 protected:
  IobenchTest() { std::ofstream(file_, std::ios::binary) << std::string(2 << 20, 'x'); }

  static Arguments Quick(Arguments more) {
    const Arguments quick = {"--runtime", "0.02", "--ramp_time", "0.01",
                             "--gate",    "0",    "--ioengine",  "pread"};
    more.insert(more.begin(), "iobench");
    more.insert(more.end(), quick.begin(), quick.end());
    return more;
  }
  // Cells of sequential direct reads end when they are told to.
  Arguments Endless(Arguments more) const {
    const Arguments endless = {"--runtime",     "1000",       "--gate", "0",     "--rw",
                               "read,randread", "--ioengine", "pread",  "--json"};
    more.insert(more.begin(), {"iobench", file_});
    more.insert(more.end(), endless.begin(), endless.end());
    return more;
  }
  static RunSetup InterruptOnce(bool (*is_so)(int pid)) {
    RunSetup setup;
    setup.meanwhile = [is_so](int pid) {
      WaitUntil(is_so, pid);
      EXPECT_EQ(kill(pid, SIGINT), 0);
    };
    return setup;
  }

  TempDir dir_;
  const std::string file_ = dir_.File("data");
};

}  // namespace sluice

#endif  // SLUICE_TESTS_IOBENCH_FIXTURE_H_
