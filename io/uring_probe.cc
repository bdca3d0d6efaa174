#include "io/uring_probe.h"

#include <liburing.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <thread>

#include "absl/strings/str_cat.h"
#include "io/aligned_buffer.h"
#include "io/status.h"
#include "io/uring_setup.h"

namespace sluice {
namespace {

constexpr int kTimeLimitMs = 2000;

enum class Step : int { kFork, kSetUp, kRegister, kRead, kCompare, kDone };

const char* NameOf(Step step) {
  switch (step) {
    case Step::kFork:
      return "starting the probe";
    case Step::kSetUp:
      return "io_uring_setup";
    case Step::kRegister:
      return "io_uring_register";
    case Step::kRead:
      return "a read through the ring";
    case Step::kCompare:
      return "comparing the bytes that were read";
    case Step::kDone:
      break;
  }
  return "the end of the probe";
}

// Lies in memory that parent and child share: how far the child came and what stopped it.
struct Report {
  std::atomic<Step> step{Step::kFork};
  std::atomic<int> error{0};
};

// What the child reads, prepared by the parent, since a child of a process with threads may only
// make system calls.
struct Task {
  int fds[2];       // the one to read through first
  uint32_t length;  // to ask for
  uint32_t expected_length;
  const std::byte* expected;
  struct iovec target;
};

// Step by step what the engine does. Returns 0 or an errno.
int ReadThroughRing(const Task& task, Report& report) {
  struct io_uring ring;
  report.step = Step::kSetUp;
  int result = SetUpRing(2, &ring);
  if (result < 0) return -result;

  // Registering may fail, but must not kill.
  report.step = Step::kRegister;
  const bool fixed_file = io_uring_register_files(&ring, task.fds, 2) == 0;
  const bool fixed_buffer = io_uring_register_buffers(&ring, &task.target, 1) == 0;

  report.step = Step::kRead;
  struct io_uring_sqe* sqe = io_uring_get_sqe(&ring);
  const int fd = fixed_file ? 0 : task.fds[0];
  if (fixed_buffer) {
    io_uring_prep_read_fixed(sqe, fd, task.target.iov_base, task.length, 0, 0);
  } else {
    io_uring_prep_read(sqe, fd, task.target.iov_base, task.length, 0);
  }
  if (fixed_file) sqe->flags |= IOSQE_FIXED_FILE;
  do {
    result = io_uring_submit_and_wait(&ring, 1);
  } while (result == -EINTR);
  if (result < 0) return -result;
  struct io_uring_cqe* cqe = nullptr;
  result = io_uring_wait_cqe(&ring, &cqe);
  if (result < 0) return -result;
  if (cqe->res < 0) return -cqe->res;

  report.step = Step::kCompare;
  const bool same = static_cast<uint32_t>(cqe->res) == task.expected_length &&
                    memcmp(task.target.iov_base, task.expected, task.expected_length) == 0;
  return same ? 0 : EILSEQ;
}

[[noreturn]] void RunChild(const Task& task, Report& report) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // A filter's SIGSYS must end the child quietly: no handler of the program, and no core dump,
  // which a limit of 0 would not keep from a collector of dumps.
  signal(SIGSYS, SIG_DFL);
  prctl(PR_SET_DUMPABLE, 0);
  const int error = ReadThroughRing(task, report);
  if (error == 0) {
    report.step = Step::kDone;
  } else {
    report.error = error;
  }
  _exit(0);
}

// Waits until the child has ended, at most `limit_ms`. False if it still runs. `signal_number`
// receives what killed it, or 0.
bool WaitForChild(pid_t child, int limit_ms, int* signal_number) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
  do {
    int status = 0;
    const pid_t ended = waitpid(child, &status, WNOHANG);
    // ECHILD: the program ignores SIGCHLD, so the kernel reaped it; the report says the rest.
    if (ended == child || (ended < 0 && errno == ECHILD)) {
      *signal_number = ended == child && WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      return true;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

absl::Status Judge(pid_t child, const Report& report) {
  int signal_number = 0;
  if (!WaitForChild(child, kTimeLimitMs, &signal_number)) {
    kill(child, SIGKILL);
    // A child that hangs inside the kernel cannot be killed; better a zombie than to hang too.
    WaitForChild(child, kTimeLimitMs / 10, &signal_number);
    return absl::UnimplementedError(
        absl::StrCat("no answer within ", kTimeLimitMs / 1000, " s to ", NameOf(report.step)));
  }
  if (report.step == Step::kDone) return absl::OkStatus();
  const std::string step = NameOf(report.step);
  if (signal_number == SIGSYS) {
    return absl::UnimplementedError(
        absl::StrCat(step, ": the process is killed by a seccomp filter (SIGSYS)"));
  }
  if (signal_number != 0) {
    return absl::UnimplementedError(absl::StrCat(step, ": killed by signal ", signal_number));
  }
  if (report.step == Step::kCompare) {
    return absl::UnimplementedError("a read through the ring gave wrong bytes");
  }
  if (report.error == 0) return absl::UnimplementedError(absl::StrCat(step, ": the child ended"));
  return absl::UnimplementedError(absl::StrCat(step, ": ", strerror(report.error)));
}

}  // namespace

absl::Status ProbeUring(const StorageFile& file) {
  const uint32_t block = file.block();
  SLUICE_ASSIGN_OR_RETURN(const AlignedBuffer target, AlignedBuffer::Allocate(block));
  SLUICE_ASSIGN_OR_RETURN(const AlignedBuffer expected, AlignedBuffer::Allocate(block));
  Task task{.fds = {file.fd(), file.buffered_fd()},
            .length = block,
            .expected_length = static_cast<uint32_t>(std::min<uint64_t>(block, file.size())),
            .expected = expected.data(),
            .target = {target.data(), block}};
  SLUICE_RETURN_IF_ERROR(file.ReadExactly(0, expected.span().first(task.expected_length)));
  // Poison that differs from the file in every byte.
  std::transform(expected.data(), expected.data() + block, target.data(),
                 [](std::byte b) { return ~b; });

  void* const shared =
      mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return ErrnoStatus(errno, "no memory for the probe");
  Report* const report = new (shared) Report;
  const pid_t child = fork();
  if (child == 0) RunChild(task, *report);
  const absl::Status verdict =
      child < 0 ? absl::UnimplementedError(absl::StrCat("cannot fork a probe: ", strerror(errno)))
                : Judge(child, *report);
  munmap(shared, sizeof(Report));
  return verdict;
}

}  // namespace sluice
