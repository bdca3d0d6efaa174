// Files that are complete under their final name or not there.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "io/atomic_file.h"
#include "tests/io_test_files.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(AtomicFileTest, AppearsUnderItsNameOnlyWhenCommitted) {
  const TempDir dir;
  const std::vector<std::byte> bytes = RandomBytes(300'000);
  auto file = AtomicFile::Create(dir.File("out"), {.expected_bytes = bytes.size()});
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->WriteAt(0, bytes).ok());
  EXPECT_THAT(NamesIn(dir.path()), testing::ElementsAre(".out.partial"));
  ASSERT_TRUE((*file)->Commit().ok());
  EXPECT_THAT(NamesIn(dir.path()), testing::ElementsAre("out"));
  EXPECT_EQ(ReadFile(dir.File("out")), bytes);
}

TEST(AtomicFileTest, LeavesNothingBehindWhenDropped) {
  const TempDir dir;
  {
    auto file = AtomicFile::Create(dir.File("out"), {});
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->WriteAt(0, RandomBytes(1000)).ok());
  }
  EXPECT_TRUE(NamesIn(dir.path()).empty());
}

TEST(AtomicFileTest, WritesOutOfOrderAndOverWhatIsThere) {
  const TempDir dir;
  std::vector<std::byte> bytes = RandomBytes(3 << 20);
  auto file = AtomicFile::Create(dir.File("out"), {});
  ASSERT_TRUE(file.ok()) << file.status();
  const std::span<const std::byte> all(bytes);
  for (size_t at = 0; at < bytes.size(); at += 1 << 19) {
    ASSERT_TRUE((*file)->WriteAt(at, all.subspan(at, 1 << 19)).ok());
    (*file)->FlushBehind();
  }
  const std::vector<std::byte> header = RandomBytes(100, 2);
  std::copy(header.begin(), header.end(), bytes.begin());
  ASSERT_TRUE((*file)->WriteAt(0, header).ok());
  ASSERT_TRUE((*file)->Commit().ok());
  EXPECT_EQ(ReadFile(dir.File("out")), bytes);
}

TEST(AtomicFileTest, RefusesToReplaceAFileUnlessToldTo) {
  const TempDir dir;
  WriteFile(dir.File("out"), RandomBytes(10, 1));
  const absl::Status refused = AtomicFile::Create(dir.File("out"), {}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--force"));
  EXPECT_EQ(ReadFile(dir.File("out")), RandomBytes(10, 1));

  auto file = AtomicFile::Create(dir.File("out"), {.overwrite = true});
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->WriteAt(0, RandomBytes(20, 2)).ok());
  EXPECT_EQ(ReadFile(dir.File("out")), RandomBytes(10, 1));
  ASSERT_TRUE((*file)->Commit().ok());
  EXPECT_EQ(ReadFile(dir.File("out")), RandomBytes(20, 2));
}

TEST(AtomicFileTest, DoesNotReplaceAFileThatAppearedMeanwhile) {
  const TempDir dir;
  auto file = AtomicFile::Create(dir.File("out"), {});
  ASSERT_TRUE(file.ok()) << file.status();
  WriteFile(dir.File("out"), RandomBytes(10));
  EXPECT_EQ((*file)->Commit().code(), absl::StatusCode::kAlreadyExists);
  file->reset();
  EXPECT_THAT(NamesIn(dir.path()), testing::ElementsAre("out"));
  EXPECT_EQ(ReadFile(dir.File("out")), RandomBytes(10));
}

TEST(AtomicFileTest, RefusesTargetsThatAreNoFiles) {
  const TempDir dir;
  const std::string fifo = dir.File("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {dir.path(), dir.path() + "/", fifo, std::string("")}) {
    EXPECT_EQ(AtomicFile::Create(path, {.overwrite = true}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << path;
  }
  EXPECT_EQ(AtomicFile::Create(dir.File("missing/out"), {}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(NamesIn(dir.path()), testing::ElementsAre("fifo"));
}

TEST(AtomicFileTest, ReplacesALinkAndNotWhatItLeadsTo) {
  const TempDir dir;
  WriteFile(dir.File("input"), RandomBytes(10));
  std::filesystem::create_symlink("input", dir.File("out"));
  EXPECT_EQ(AtomicFile::Create(dir.File("out"), {}).status().code(),
            absl::StatusCode::kAlreadyExists);
  auto file = AtomicFile::Create(dir.File("out"), {.overwrite = true});
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->WriteAt(0, RandomBytes(20)).ok());
  ASSERT_TRUE((*file)->Commit().ok());
  EXPECT_EQ(ReadFile(dir.File("input")), RandomBytes(10));
  EXPECT_EQ(ReadFile(dir.File("out")), RandomBytes(20));
}

TEST(AtomicFileTest, RefusesASecondWriterOfTheSameTarget) {
  const TempDir dir;
  auto first = AtomicFile::Create(dir.File("out"), {});
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE((*first)->WriteAt(0, RandomBytes(100)).ok());
  const absl::Status second = AtomicFile::Create(dir.File("out"), {}).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.message()),
              HasSubstr("another process is writing " + dir.File("out")));
  ASSERT_TRUE((*first)->Commit().ok());
  EXPECT_EQ(ReadFile(dir.File("out")), RandomBytes(100));
}

TEST(AtomicFileTest, ReplacesWhatAKilledRunLeft) {
  const TempDir dir;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto file = AtomicFile::Create(dir.File("out"), {});
    const bool written = file.ok() && (*file)->WriteAt(0, RandomBytes(500'000)).ok();
    if (!written || write(ready[1], "x", 1) != 1) _exit(1);
    pause();
  }
  char byte;
  close(ready[1]);
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_THAT(NamesIn(dir.path()), testing::ElementsAre(".out.partial"));

  auto file = AtomicFile::Create(dir.File("out"), {});
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->WriteAt(0, RandomBytes(100, 2)).ok());
  ASSERT_TRUE((*file)->Commit().ok());
  EXPECT_EQ(ReadFile(dir.File("out")), RandomBytes(100, 2));
  EXPECT_THAT(NamesIn(dir.path()), testing::ElementsAre("out"));
}

TEST(AtomicFileTest, ChecksTheFreeSpaceBeforeItWrites) {
  const TempDir dir;
  const absl::Status status =
      AtomicFile::Create(dir.File("out"), {.expected_bytes = uint64_t{1} << 60}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("needs 1152921504606846976 bytes"));
  EXPECT_TRUE(NamesIn(dir.path()).empty());
}

TEST(AtomicFileTest, SaysThatTheDiskIsFull) {
  const TempDir dir;
  const auto text = RunInChild([&]() -> std::string {
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", dir.path().c_str(), "tmpfs", 0, "size=1m") != 0) {
      return "cannot mount";
    }
    auto too_much = AtomicFile::Create(dir.File("out"), {.expected_bytes = 2 << 20});
    if (too_much.ok()) return "the size was not checked";
    auto file = AtomicFile::Create(dir.File("out"), {});
    if (!file.ok()) return file.status().ToString();
    const absl::Status status = (*file)->WriteAt(0, RandomBytes(2 << 20));
    file->reset();
    if (!NamesIn(dir.path()).empty()) return "something was left behind";
    return std::string(too_much.status().message()) + "\n" + status.ToString();
  });
  ASSERT_TRUE(text.has_value());
  if (*text == "cannot mount") GTEST_SKIP() << "needs the right to mount a small tmpfs";
  EXPECT_THAT(*text, HasSubstr("needs 2097152 bytes, but only 1048576 are free"));
  EXPECT_THAT(*text, HasSubstr("RESOURCE_EXHAUSTED"));
  EXPECT_THAT(*text, HasSubstr("the disk is full"));
}

TEST(AtomicFileTest, SaysThatTheFileSizeLimitIsReached) {
  const TempDir dir;
  const auto text = RunInChild([&]() -> std::string {
    signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit = {100'000, 100'000};
    setrlimit(RLIMIT_FSIZE, &limit);
    auto too_much = AtomicFile::Create(dir.File("out"), {.expected_bytes = 200'000});
    if (too_much.ok()) return "the limit was not checked";
    auto file = AtomicFile::Create(dir.File("out"), {});
    if (!file.ok()) return file.status().ToString();
    const absl::Status status = (*file)->WriteAt(0, RandomBytes(200'000));
    file->reset();
    if (!NamesIn(dir.path()).empty()) return "something was left behind";
    return std::string(too_much.status().message()) + "\n" + status.ToString();
  });
  ASSERT_TRUE(text.has_value());
  EXPECT_THAT(*text, HasSubstr("the file size limit is 100000"));
  EXPECT_THAT(*text, HasSubstr("RESOURCE_EXHAUSTED"));
  EXPECT_THAT(*text, HasSubstr("ulimit -f"));
}

TEST(AtomicFileTest, SaysThatTheFolderMayNotBeWritten) {
  const TempDir dir;
  ASSERT_EQ(chmod(dir.path().c_str(), 0555), 0);
  const auto text = RunInChild([&]() -> std::string {
    if (geteuid() == 0 && setuid(65534) != 0) return "cannot become another user";
    return AtomicFile::Create(dir.File("out"), {}).status().ToString();
  });
  chmod(dir.path().c_str(), 0755);
  ASSERT_TRUE(text.has_value());
  EXPECT_THAT(*text, HasSubstr("PERMISSION_DENIED"));
  EXPECT_THAT(*text, HasSubstr(dir.File("out")));
}

TEST(SameFileTest, SeesThroughLinks) {
  const TempDir dir;
  WriteFile(dir.File("a"), RandomBytes(1));
  WriteFile(dir.File("b"), RandomBytes(1));
  std::filesystem::create_hard_link(dir.File("a"), dir.File("hard"));
  std::filesystem::create_symlink("a", dir.File("soft"));
  EXPECT_TRUE(SameFile(dir.File("a"), dir.path() + "/./a"));
  EXPECT_TRUE(SameFile(dir.File("a"), dir.File("hard")));
  EXPECT_TRUE(SameFile(dir.File("a"), dir.File("soft")));
  EXPECT_FALSE(SameFile(dir.File("a"), dir.File("b")));
  EXPECT_FALSE(SameFile(dir.File("a"), dir.File("missing")));
  EXPECT_FALSE(SameFile(dir.File("missing"), dir.File("missing")));
}

}  // namespace
}  // namespace sluice
