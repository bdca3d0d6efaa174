#include "tests/cli_run.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <iterator>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/import_test_files.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLimitSeconds = 600;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// In the child, between fork and exec: only calls that are safe there.
void Redirect(int fd, const char* path, int flags) {
  close(fd);
  if (path == nullptr) return;
  const int opened = open(path, flags, 0600);
  if (opened < 0) _exit(kCannotRun);
  if (opened != fd) {
    dup2(opened, fd);
    close(opened);
  }
}

// From here on, in this process: a filter of system calls that cannot be taken back.
bool MakePreadFail(uint32_t offset) {
  constexpr uint32_t kNumber = offsetof(seccomp_data, nr),
                     kOffset = offsetof(seccomp_data, args[3]);
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_pread64, 0, 3),
                          BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kOffset),  // the lower half
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, offset, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EIO),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {std::size(filter), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace

RunResult RunSluice(const Arguments& arguments, RunSetup setup) {
  return RunProgram(SLUICE_BINARY, arguments, std::move(setup));
}

RunResult RunProgram(const std::string& program, const Arguments& arguments, RunSetup setup) {
  TempDir dir;
  if (setup.stdout_path.empty()) setup.stdout_path = dir.File("out");
  if (setup.stderr_path.empty()) setup.stderr_path = dir.File("err");
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  constexpr int kWrite = O_WRONLY | O_CREAT;

  const auto begin = Clock::now();
  const pid_t pid = fork();
  if (pid == 0) {
    Redirect(STDIN_FILENO, setup.stdin_path.empty() ? nullptr : setup.stdin_path.c_str(), O_RDONLY);
    Redirect(STDOUT_FILENO, setup.close_stdout ? nullptr : setup.stdout_path.c_str(), kWrite);
    Redirect(STDERR_FILENO, setup.close_stderr ? nullptr : setup.stderr_path.c_str(), kWrite);
    constexpr uid_t kNobody = 65534;
    if (setup.as_nobody && geteuid() == 0 && setuid(kNobody) != 0) _exit(kCannotRun);
    if (setup.damaged_offset != 0 && !MakePreadFail(setup.damaged_offset)) _exit(kCannotRun);
    execv(program.c_str(), argv.data());
    _exit(kCannotRun);
  }
  if (setup.meanwhile) setup.meanwhile(pid);
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (SecondsSince(begin) > kLimitSeconds) kill(pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  RunResult result;
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  const auto is_capture = [&dir](const std::string& path) { return path.starts_with(dir.path()); };
  if (is_capture(setup.stdout_path)) result.out = ReadFile(setup.stdout_path);
  if (is_capture(setup.stderr_path)) result.err = ReadFile(setup.stderr_path);
  return result;
}

RunSetup InterruptOnceItSays(const std::string& pipe, const std::string& what) {
  EXPECT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  RunSetup setup;
  setup.stderr_path = pipe;
  setup.meanwhile = [pipe, what](int pid) {
    const int fd = open(pipe.c_str(), O_RDONLY | O_CLOEXEC);
    std::string said;
    char piece[4096];
    bool sent = false;
    for (ssize_t n = 0; (n = read(fd, piece, sizeof(piece))) > 0;) {
      said.append(piece, static_cast<size_t>(n));
      if (sent || said.find(what) == std::string::npos) continue;
      sent = true;
      EXPECT_EQ(kill(pid, SIGINT), 0);
    }
    close(fd);
    EXPECT_TRUE(sent) << said;
  };
  return setup;
}

void ExpectError(const Arguments& arguments, int exit_code, const std::string& what) {
  const RunResult run = RunSluice(arguments);
  EXPECT_EQ(run.exit_code, exit_code) << run.err;
  EXPECT_THAT(run.err, testing::HasSubstr(what));
  EXPECT_THAT(run.out, testing::IsEmpty());
}

}  // namespace sluice
