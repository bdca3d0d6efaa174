// The engines, each alone, and how one is chosen: what a filter or a limit does to io_uring.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "io/read_engine.h"
#include "io/uring_probe.h"
#include "tests/io_test_files.h"

namespace sluice {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr uint32_t kDepth = 16;

class EngineTest : public testing::TestWithParam<std::string> {
 protected:
  static constexpr size_t kSize = 4 << 20;

  void SetUp() override {
    memory_ = AlignedBuffer::Allocate(kDepth * kLength).value();
    engine_ = MakeEngine(GetParam(), random_.file(), kDepth);
    if (engine_ == nullptr) GTEST_SKIP() << ProbeUring(random_.file());
  }

  // The operation that reads slot `slot` of memory_ from `offset`.
  ReadOp OpAt(uint32_t slot, uint64_t offset) {
    return {.fd = random_.file().fd(),
            .offset = offset,
            .length = kLength,
            .dst = memory_.data() + slot * kLength,
            .user = slot};
  }
  bool Matches(const ReadOp& op) const {
    return std::equal(op.dst, op.dst + op.length, random_.bytes().begin() + op.offset);
  }

  static constexpr uint32_t kLength = 4096;
  const RandomFile random_{kSize};
  AlignedBuffer memory_;
  std::unique_ptr<ReadEngine> engine_;
};

TEST_P(EngineTest, ReadsManyPlacesAtOnce) {
  std::mt19937_64 random(7);
  std::array<ReadOp, kDepth> ops;
  std::vector<uint32_t> idle(kDepth);
  for (uint32_t i = 0; i < kDepth; ++i) idle[i] = i;
  size_t started = 0;
  size_t finished = 0;
  constexpr size_t kReads = 3000;
  while (finished < kReads) {
    std::vector<ReadOp> batch;
    while (!idle.empty() && started + batch.size() < kReads) {
      const uint32_t slot = idle.back();
      idle.pop_back();
      ops[slot] = OpAt(slot, random() % (kSize / kLength) * kLength);
      batch.push_back(ops[slot]);
    }
    const auto taken = engine_->Submit(batch);
    ASSERT_TRUE(taken.ok()) << taken.status();
    ASSERT_EQ(*taken, batch.size());
    started += *taken;
    std::array<ReadResult, 5> results;
    const auto count = engine_->Reap(results, /*wait=*/true);
    ASSERT_TRUE(count.ok()) << count.status();
    for (uint32_t i = 0; i < *count; ++i) {
      ASSERT_LT(results[i].user, kDepth);
      const uint32_t slot = static_cast<uint32_t>(results[i].user);
      ASSERT_EQ(results[i].result, static_cast<int32_t>(kLength));
      ASSERT_TRUE(Matches(ops[slot]));
      idle.push_back(slot);
      ++finished;
    }
  }
}

TEST_P(EngineTest, TakesNoMoreThanItsDepth) {
  std::vector<ReadOp> ops;
  for (uint32_t i = 0; i < kDepth; ++i) ops.push_back(OpAt(i, i * kLength));
  ops.push_back(OpAt(0, 0));
  EXPECT_EQ(engine_->Submit(ops).value(), kDepth);
  EXPECT_EQ(engine_->Submit(ops).value(), 0u);
  uint32_t reaped = 0;
  while (reaped < kDepth) {
    std::array<ReadResult, kDepth> results;
    reaped += engine_->Reap(results, true).value();
  }
  EXPECT_EQ(engine_->Submit(ops).value(), kDepth);
}

TEST_P(EngineTest, DoesNotWaitWithNothingInFlight) {
  std::array<ReadResult, 1> results;
  EXPECT_EQ(engine_->Reap(results, /*wait=*/true).value(), 0u);
  EXPECT_EQ(engine_->Reap(results, /*wait=*/false).value(), 0u);
}

TEST_P(EngineTest, ReportsErrorsAndTheEndOfTheFileAsTheyAre) {
  ReadOp bad = OpAt(0, 0);
  bad.fd = -1;
  const ReadOp past_end = OpAt(1, kSize);
  ASSERT_EQ(engine_->Submit(std::array{bad, past_end}).value(), 2u);
  std::array<int32_t, 2> result_of = {1, 1};
  for (uint32_t reaped = 0; reaped < 2;) {
    std::array<ReadResult, 2> results;
    const uint32_t count = engine_->Reap(results, true).value();
    for (uint32_t i = 0; i < count; ++i) result_of[results[i].user] = results[i].result;
    reaped += count;
  }
  EXPECT_EQ(result_of[0], -EBADF);
  EXPECT_EQ(result_of[1], 0);
}

TEST_P(EngineTest, CanBePolledWithoutWaiting) {
  ASSERT_EQ(engine_->Submit(std::array{OpAt(0, 8192)}).value(), 1u);
  std::array<ReadResult, 1> results;
  uint32_t count = 0;
  while (count == 0) count = engine_->Reap(results, /*wait=*/false).value();
  EXPECT_EQ(results[0].result, static_cast<int32_t>(kLength));
  EXPECT_TRUE(Matches(OpAt(0, 8192)));
}

TEST_P(EngineTest, IsDestroyedWithReadsInFlight) {
  std::vector<ReadOp> ops;
  for (uint32_t i = 0; i < kDepth; ++i) ops.push_back(OpAt(i, i * kLength));
  ASSERT_EQ(engine_->Submit(ops).value(), kDepth);
  std::array<ReadResult, 1> results;
  ASSERT_TRUE(engine_->Reap(results, /*wait=*/false).ok());
  engine_.reset();
  // Nothing may be written from now on.
  std::fill_n(memory_.data(), memory_.size(), std::byte{0x11});
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(std::all_of(memory_.span().begin(), memory_.span().end(),
                          [](std::byte b) { return b == std::byte{0x11}; }));
}

TEST_P(EngineTest, IsMadeOnOneThreadAndDrivenByAnother) {
  std::thread driver([&] {
    EXPECT_EQ(engine_->Submit(std::array{OpAt(0, 4096)}).value(), 1u);
    std::array<ReadResult, 1> results;
    EXPECT_EQ(engine_->Reap(results, true).value(), 1u);
    engine_.reset();
  });
  driver.join();
  EXPECT_TRUE(Matches(OpAt(0, 4096)));
}

INSTANTIATE_TEST_SUITE_P(Engines, EngineTest, testing::Values("io_uring", "pread"),
                         [](const auto& engine) { return engine.param; });

TEST(UringEngineTest, WakeEndsAWait) {
  const RandomFile random(4096);
  auto engine = MakeEngine("io_uring", random.file(), 4);
  if (engine == nullptr) GTEST_SKIP() << ProbeUring(random.file());
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  std::byte byte{0};
  // A read that does not end before somebody writes.
  const ReadOp op = {.fd = pipe_fds[0], .offset = 0, .length = 1, .dst = &byte, .user = 5};
  ASSERT_EQ(engine->Submit({&op, 1}).value(), 1u);
  std::array<ReadResult, 1> results;
  for (int round = 0; round < 3; ++round) {
    std::thread waker([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      engine->Wake();
    });
    EXPECT_EQ(engine->Reap(results, true).value(), 0u);
    waker.join();
  }
  engine->Wake();  // before the wait
  EXPECT_EQ(engine->Reap(results, true).value(), 0u);
  ASSERT_EQ(write(pipe_fds[1], "x", 1), 1);
  EXPECT_EQ(engine->Reap(results, true).value(), 1u);
  EXPECT_EQ(results[0].user, 5u);
  EXPECT_EQ(byte, std::byte{'x'});
  engine.reset();
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

TEST(PreadEngineTest, WakeEndsAWait) {
  const RandomFile random(4096);
  auto engine = MakeEngine("pread", random.file(), 1);
  const int zero_fd = open("/dev/zero", O_RDONLY);
  ASSERT_GE(zero_fd, 0);
  const AlignedBuffer memory = AlignedBuffer::Allocate(64 << 20).value();
  // Takes milliseconds; a wait that is woken at once ends before. A machine that stops this thread
  // meanwhile may hide that, but not every time.
  const ReadOp op = {.fd = zero_fd,
                     .offset = 0,
                     .length = static_cast<uint32_t>(memory.size()),
                     .dst = memory.data(),
                     .user = 0};
  std::array<ReadResult, 1> results;
  int woken_early = 0;
  for (int round = 0; round < 20 && woken_early == 0; ++round) {
    ASSERT_EQ(engine->Submit({&op, 1}).value(), 1u);
    engine->Wake();
    uint32_t count = engine->Reap(results, true).value();
    if (count == 0) ++woken_early;
    while (count == 0) count = engine->Reap(results, true).value();
    EXPECT_EQ(results[0].result, static_cast<int32_t>(op.length));
  }
  EXPECT_GT(woken_early, 0);
  close(zero_fd);
}

TEST(UringEngineTest, ReadsIntoRegisteredAndUnregisteredMemory) {
  const RandomFile random(1 << 20);
  const AlignedBuffer memory = AlignedBuffer::Allocate(1 << 20).value();
  // Two buffers with a hole between them, given in descending order.
  const std::array<std::span<std::byte>, 2> buffers = {memory.span().subspan(512 << 10),
                                                       memory.span().first(256 << 10)};
  auto engine = MakeEngine("io_uring", random.file(), 8, buffers);
  if (engine == nullptr) GTEST_SKIP() << ProbeUring(random.file());
  EXPECT_THAT(engine->description(), HasSubstr("io_uring ("));
  // Inside each buffer, in the hole, and over the edge of one.
  for (const size_t at : {0u, 252u << 10, 254u << 10, 300u << 10, 512u << 10, 1020u << 10}) {
    for (const int fd : {random.file().fd(), random.file().buffered_fd()}) {
      std::fill_n(memory.data() + at, 4096, std::byte{0});
      const ReadOp op = {.fd = fd, .offset = at, .length = 4096, .dst = memory.data() + at};
      ASSERT_EQ(engine->Submit({&op, 1}).value(), 1u);
      std::array<ReadResult, 1> results;
      ASSERT_EQ(engine->Reap(results, true).value(), 1u);
      ASSERT_EQ(results[0].result, 4096) << at;
      EXPECT_TRUE(std::equal(op.dst, op.dst + 4096, random.bytes().begin() + at)) << at;
    }
  }
}

TEST(EngineFactoryTest, RefusesADepthOutOfRange) {
  const RandomFile random(4096);
  std::string note;
  for (const uint32_t depth : {0u, 4097u, UINT32_MAX}) {
    const auto engine = MakeReadEngine(random.file(), {.depth = depth}, &note);
    EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(EngineFactoryTest, SaysWhichEngineItChose) {
  const RandomFile random(4096);
  std::string note;
  auto engine = MakeReadEngine(random.file(), {.kind = EngineKind::kAuto}, &note);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_THAT((*engine)->description(), AnyOf(HasSubstr("io_uring ("), HasSubstr("pread with 8")));
  EXPECT_THAT(note, HasSubstr((*engine)->description().substr(0, 5)));

  engine = MakeReadEngine(random.file(), {.kind = EngineKind::kPread, .depth = 3}, &note);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->description(), "pread with 3 threads");
  EXPECT_EQ(note, "pread, as asked");
}

// Makes io_uring_setup do `action` in this process for good.
bool Filter(uint32_t syscall_number, uint32_t action) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, syscall_number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, action),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const struct sock_fprog program = {.len = std::size(code), .filter = code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// What the factory says under that filter, automatically and by name, and whether pread then reads.
std::optional<std::string> ChooseUnderFilter(const StorageFile& file, uint32_t syscall_number,
                                             uint32_t action) {
  return RunInChild([&]() -> std::string {
    // A handler of the program, as crash reporters install them, must not confuse the probe.
    signal(SIGSYS, [](int) {});
    if (!Filter(syscall_number, action)) return "cannot filter";
    std::string note;
    auto engine = MakeReadEngine(file, {.kind = EngineKind::kAuto}, &note);
    if (!engine.ok()) return engine.status().ToString();
    const AlignedBuffer memory = AlignedBuffer::Allocate(512).value();
    const ReadOp op = {.fd = file.fd(), .offset = 0, .length = 512, .dst = memory.data()};
    std::array<ReadResult, 1> results = {};
    if (!(*engine)->Submit({&op, 1}).ok() || !(*engine)->Reap(results, true).ok()) return "failed";
    std::string ignored;
    const absl::Status forced =
        MakeReadEngine(file, {.kind = EngineKind::kUring}, &ignored).status();
    return note + "\nread " + std::to_string(results[0].result) + "\n" + forced.ToString();
  });
}

TEST(EngineFactoryTest, TurnsToPreadWhereAFilterKills) {
  const RandomFile random(4096);
  std::vector<uint32_t> actions = {SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_TRAP};
#ifndef __SANITIZE_THREAD__  // whose own thread in the child would outlive the one that is killed
  actions.push_back(SECCOMP_RET_KILL_THREAD);
#endif
  for (const uint32_t action : actions) {
    const auto text = ChooseUnderFilter(random.file(), SYS_io_uring_setup, action);
    ASSERT_TRUE(text.has_value()) << "the filter killed the program itself";
    if (*text == "cannot filter") GTEST_SKIP() << "no seccomp here";
    EXPECT_THAT(*text, HasSubstr("pread: io_uring does not work here (io_uring_setup: the process "
                                 "is killed by a seccomp filter (SIGSYS))"));
    EXPECT_THAT(*text, HasSubstr("read 512"));
    EXPECT_THAT(*text, HasSubstr("UNIMPLEMENTED: io_uring does not work here"));
  }
}

TEST(EngineFactoryTest, TurnsToPreadWhereAFilterRefuses) {
  const RandomFile random(4096);
  for (const int error : {EPERM, ENOSYS}) {
    const auto text = ChooseUnderFilter(random.file(), SYS_io_uring_setup,
                                        SECCOMP_RET_ERRNO | static_cast<uint32_t>(error));
    ASSERT_TRUE(text.has_value());
    if (*text == "cannot filter") GTEST_SKIP() << "no seccomp here";
    EXPECT_THAT(*text, HasSubstr(std::string("(io_uring_setup: ") + strerror(error) + ")"));
    EXPECT_THAT(*text, HasSubstr("read 512"));
    EXPECT_THAT(*text, HasSubstr("UNIMPLEMENTED"));
  }
}

TEST(EngineFactoryTest, TurnsToPreadWhereAFilterKillsOnlyTheRead) {
  const RandomFile random(4096);
  if (!ProbeUring(random.file()).ok()) GTEST_SKIP() << ProbeUring(random.file());
  const auto text = ChooseUnderFilter(random.file(), SYS_io_uring_enter, SECCOMP_RET_KILL_PROCESS);
  ASSERT_TRUE(text.has_value());
  if (*text == "cannot filter") GTEST_SKIP() << "no seccomp here";
  EXPECT_THAT(*text, HasSubstr("(a read through the ring: the process is killed"));
  EXPECT_THAT(*text, HasSubstr("read 512"));
}

TEST(EngineFactoryTest, ProbesWhereChildrenAreReapedByTheKernel) {
  const RandomFile random(4096);
  const absl::Status direct = ProbeUring(random.file());
  const auto text = RunInChild([&]() -> std::string {
    signal(SIGCHLD, SIG_IGN);
    return ProbeUring(random.file()).ToString();
  });
  EXPECT_EQ(text, direct.ToString());
}

TEST(UringEngineTest, GoesOnUnregisteredWhereTheMemlockLimitIsSmall) {
  const RandomFile random(4 << 20);
  if (!ProbeUring(random.file()).ok()) GTEST_SKIP() << ProbeUring(random.file());
  const auto text = RunInChild([&]() -> std::string {
    const struct rlimit limit = {64 << 10, 64 << 10};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "cannot set the limit";
    // The superuser is not limited.
    if (geteuid() == 0 && setuid(65534) != 0) return "cannot become another user";
    const AlignedBuffer memory = AlignedBuffer::Allocate(4 << 20).value();
    const std::array<std::span<std::byte>, 1> buffers = {memory.span()};
    std::string note;
    auto engine =
        MakeReadEngine(random.file(), {.kind = EngineKind::kUring, .buffers = buffers}, &note);
    if (!engine.ok()) return engine.status().ToString();
    const ReadOp op = {
        .fd = random.file().fd(), .offset = 1 << 20, .length = 4096, .dst = memory.data()};
    std::array<ReadResult, 1> results = {};
    if (!(*engine)->Submit({&op, 1}).ok() || !(*engine)->Reap(results, true).ok()) return "failed";
    const bool same = std::equal(op.dst, op.dst + 4096, random.bytes().begin() + (1 << 20));
    return (*engine)->description() + (same ? ", same bytes" : ", other bytes");
  });
  ASSERT_TRUE(text.has_value());
  EXPECT_EQ(*text,
            "io_uring (registered file; buffers not registered: the memlock limit is 64 KiB), same "
            "bytes");
}

}  // namespace
}  // namespace sluice
