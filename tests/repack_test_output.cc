// When writing goes wrong: whatever happens, the input is untouched, and nothing is under the final
// name but a whole file.
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "io/status.h"
#include "layout/repack.h"
#include "layout/verify.h"
#include "tests/import_test_files.h"
#include "tests/import_test_models.h"
#include "tests/repack_test_source.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class OutputTest : public testing::Test {
 protected:
  absl::Status RepackTo(const std::string& out, RepackOptions options = {}) {
    return Repack(source_, out, options).status();
  }
  void ExpectNothingIn(const std::string& folder) {
    EXPECT_TRUE(std::filesystem::is_empty(folder)) << "in " << folder;
  }

  const MemorySource source_{SourceType::kQ4_0};
  TempDir dir_;
  const std::string out_ = dir_.File("out.sluice");
};

// Runs `body` in a child process; its wait status.
int InChild(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}
int ExitCode(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; }

// The child says what it saw by one of these, or by kOther after printing it.
enum Outcome : int { kAsExpected = 0, kOther = 1, kNotPossibleHere = 77 };
int Expect(const absl::Status& status, absl::StatusCode code, const std::string& what) {
  if (status.code() == code && std::string(status.message()).find(what) != std::string::npos) {
    return kAsExpected;
  }
  std::cerr << "got: " << status << "\n";
  return kOther;
}

class InputOutputTest : public OutputTest {
 protected:
  void SetUp() override {
    TinyGguf().Write(in_);
    before_ = ReadFile(in_);
    ASSERT_FALSE(before_.empty());
  }
  void ExpectRefused(const std::string& in, const std::string& out) {
    const auto source = OpenModelSource(in, {});
    ASSERT_TRUE(source.ok()) << source.status();
    RepackOptions options;
    options.overwrite = true;
    const auto report = Repack(**source, out, options);
    EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument) << report.status();
    EXPECT_THAT(std::string(report.status().message()), StartsWith(out));
    EXPECT_THAT(std::string(report.status().message()), HasSubstr("input"));
    EXPECT_EQ(ReadFile(in_), before_);
  }

  const std::string in_ = dir_.File("in.gguf");
  std::string before_;
};

TEST_F(InputOutputTest, TheInputItselfIsRefusedAsOutput) { ExpectRefused(in_, in_); }

TEST_F(InputOutputTest, TheInputByAnotherPathIsRefusedAsOutput) {
  ExpectRefused(in_, dir_.path() + "/./in.gguf");
}

TEST_F(InputOutputTest, ASymbolicLinkToTheInputIsRefusedAsOutput) {
  std::filesystem::create_symlink(in_, out_);
  ExpectRefused(in_, out_);
  EXPECT_TRUE(std::filesystem::is_symlink(out_));
}

TEST_F(InputOutputTest, AHardLinkToTheInputIsRefusedAsOutput) {
  std::filesystem::create_hard_link(in_, out_);
  ExpectRefused(in_, out_);
  EXPECT_EQ(std::filesystem::hard_link_count(in_), 2u);
}

TEST_F(InputOutputTest, AnotherFileOfTheInputIsRefusedAsOutput) {
  const std::string folder = dir_.File("hf");
  std::filesystem::create_directory(folder);
  TinyFolder().Write(folder, /*shards=*/2);
  for (const char* name : {"config.json", "model-00002-of-00002.safetensors"}) {
    const std::string file = folder + "/" + name;
    const std::string before = ReadFile(file);
    ASSERT_FALSE(before.empty()) << file;
    ExpectRefused(folder, file);
    EXPECT_EQ(ReadFile(file), before);
  }
}

TEST_F(InputOutputTest, NoPartOfASplitInputIsTakenAsOutput) {
  TinyGguf().WriteSplit(dir_.File("split"), 3);
  for (const char* from : {"split-00001-of-00003.gguf", "split-00003-of-00003.gguf"}) {
    for (const char* to : {"split-00001-of-00003.gguf", "split-00002-of-00003.gguf"}) {
      const std::string before = ReadFile(dir_.File(to));
      ExpectRefused(dir_.File(from), dir_.File(to));
      EXPECT_EQ(ReadFile(dir_.File(to)), before);
    }
  }
}

TEST_F(OutputTest, AnExistingFileIsKeptUnlessForced) {
  WriteFile(out_, "precious");
  const absl::Status refused = RepackTo(out_);
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--force"));
  EXPECT_EQ(ReadFile(out_), "precious");
  RepackOptions options;
  options.overwrite = true;
  ASSERT_TRUE(RepackTo(out_, options).ok());
  EXPECT_TRUE(Verify(out_, nullptr).ok());
}

TEST_F(OutputTest, WhatCannotBeAFileIsRefused) {
  EXPECT_THAT(std::string(RepackTo(dir_.File("missing/out.sluice")).message()),
              HasSubstr("missing/out.sluice"));
  EXPECT_THAT(std::string(RepackTo(dir_.path()).message()), HasSubstr("is a directory"));
  EXPECT_THAT(std::string(RepackTo(dir_.path() + "/").message()), HasSubstr("names no file"));
  ASSERT_EQ(mkfifo(out_.c_str(), 0600), 0);
  EXPECT_THAT(std::string(RepackTo(out_).message()), HasSubstr("not a regular file"));
}

TEST_F(OutputTest, AFolderWithoutPermissionIsRefused) {
  const std::string folder = dir_.File("locked");
  std::filesystem::create_directory(folder);
  ASSERT_EQ(chmod(folder.c_str(), 0555), 0);
  ASSERT_EQ(chmod(dir_.path().c_str(), 0755), 0);
  const int status = InChild([&] {
    // Root may write everywhere, so the test becomes somebody else.
    if (geteuid() == 0 && seteuid(65534) != 0) return int{kNotPossibleHere};
    return Expect(RepackTo(folder + "/out.sluice"), absl::StatusCode::kPermissionDenied,
                  "out.sluice");
  });
  if (ExitCode(status) == kNotPossibleHere) GTEST_SKIP() << "cannot give up root here";
  EXPECT_EQ(ExitCode(status), kAsExpected);
  ExpectNothingIn(folder);
}

// A model that lets something happen while it is read.
class HookedSource : public MemorySource {
 public:
  using Hook = std::function<absl::Status()>;
  HookedSource(const std::string& tensor, Hook hook)
      : MemorySource(SourceType::kQ4_0), tensor_(tensor), hook_(std::move(hook)) {}
  absl::Status ReadTensor(const SourceTensor& tensor, uint64_t offset,
                          std::span<std::byte> dst) const override {
    if (tensor.name == tensor_) {
      if (const Hook hook = std::exchange(hook_, nullptr)) SLUICE_RETURN_IF_ERROR(hook());
    }
    return MemorySource::ReadTensor(tensor, offset, dst);
  }

 private:
  const std::string tensor_;
  mutable Hook hook_;  // until it has been called
};

// The first bundles are written; all weights are, and only the sections are missing.
constexpr const char* kMoments[] = {"blk.1.attn_q.weight", "output_norm.weight"};

absl::Status RepackWhile(const std::string& moment, const std::function<void()>& action,
                         const std::string& out, RepackOptions options = {}) {
  const HookedSource source(moment, [&] {
    action();
    return absl::OkStatus();
  });
  return Repack(source, out, options).status();
}

TEST_F(OutputTest, AFileSizeLimitIsAnErrorThatLeavesNothing) {
  const std::string folder = dir_.File("limited");
  std::filesystem::create_directory(folder);
  const uint64_t weights = DirectoryEnd(PlanRepack(source_, {}));
  const auto limit_to = [](uint64_t bytes) {
    const rlimit limit = {bytes, bytes};
    return setrlimit(RLIMIT_FSIZE, &limit);
  };
  int status = InChild([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    if (limit_to(weights / 2) != 0) return int{kNotPossibleHere};
    return Expect(RepackTo(folder + "/out.sluice"), absl::StatusCode::kResourceExhausted,
                  "ulimit -f");
  });
  EXPECT_EQ(ExitCode(status), kAsExpected) << "known before writing";
  ExpectNothingIn(folder);
  for (const char* moment : kMoments) {
    status = InChild([&] {
      std::signal(SIGXFSZ, SIG_IGN);
      const bool middle = moment == kMoments[0];
      const auto limit = [&] { limit_to(middle ? weights / 2 : weights); };
      return Expect(RepackWhile(moment, limit, folder + "/out.sluice"),
                    absl::StatusCode::kResourceExhausted, "cannot write at byte");
    });
    EXPECT_EQ(ExitCode(status), kAsExpected) << "met while writing: " << moment;
    ExpectNothingIn(folder);
  }
}

// Mounts a small file system on `folder`, seen by this process only.
bool MountSmallDisk(const std::string& folder, uint64_t bytes) {
  if (unshare(CLONE_NEWNS) != 0) return false;
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  const std::string size = "size=" + std::to_string(bytes);
  return mount("tmpfs", folder.c_str(), "tmpfs", 0, size.c_str()) == 0;
}

TEST_F(OutputTest, ADiskThatIsTooSmallIsFoundBeforeWriting) {
  const int status = InChild([&] {
    if (!MountSmallDisk(dir_.path(), 512 * 1024)) return int{kNotPossibleHere};
    const int outcome =
        Expect(RepackTo(out_), absl::StatusCode::kResourceExhausted, "are free on the disk");
    return std::filesystem::is_empty(dir_.path()) ? outcome : int{kOther};
  });
  if (ExitCode(status) == kNotPossibleHere) GTEST_SKIP() << "tmpfs cannot be mounted here";
  EXPECT_EQ(ExitCode(status), kAsExpected);
}

TEST_F(OutputTest, ADiskThatFillsUpWhileWritingIsAnErrorThatLeavesNothing) {
  const std::string filler = dir_.File("filler");
  const auto fill = [&filler] {
    std::ofstream out(filler, std::ios::binary);
    const std::string piece(4096, 'x');
    while (out.write(piece.data(), static_cast<std::streamsize>(piece.size())).flush()) {
    }
  };
  for (const char* moment : kMoments) {
    const int status = InChild([&] {
      if (!MountSmallDisk(dir_.path(), 16 << 20)) return int{kNotPossibleHere};
      const int outcome = Expect(RepackWhile(moment, fill, out_),
                                 absl::StatusCode::kResourceExhausted, "the disk is full");
      std::filesystem::remove(filler);
      return std::filesystem::is_empty(dir_.path()) ? outcome : int{kOther};
    });
    if (ExitCode(status) == kNotPossibleHere) GTEST_SKIP() << "tmpfs cannot be mounted here";
    EXPECT_EQ(ExitCode(status), kAsExpected) << moment;
  }
}

TEST_F(OutputTest, AKilledRunLeavesNothingUnderTheNameAndTheNextOneSucceeds) {
  for (const char* moment : kMoments) {
    std::filesystem::remove(out_);
    const int status = InChild([&] {
      return static_cast<int>(RepackWhile(
                                  moment, [] { raise(SIGKILL); }, out_)
                                  .code());
    });
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << moment;
    EXPECT_FALSE(std::filesystem::exists(out_));
    const absl::Status second = RepackTo(out_);
    ASSERT_TRUE(second.ok()) << second;
    const auto verified = Verify(out_, nullptr);
    ASSERT_TRUE(verified.ok()) << verified.status();
    EXPECT_EQ(verified->damaged, 0u);
    const auto entries = std::filesystem::directory_iterator(dir_.path());
    EXPECT_EQ(std::distance(begin(entries), end(entries)), 1) << "what was left is gone";
  }
}

TEST_F(OutputTest, AKilledRunDoesNotHarmTheFileThatItWasToReplace) {
  WriteFile(out_, "precious");
  RepackOptions options;
  options.overwrite = true;
  const int status = InChild([&] {
    return static_cast<int>(RepackWhile(
                                kMoments[0], [] { raise(SIGKILL); }, out_, options)
                                .code());
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(ReadFile(out_), "precious");
}

TEST_F(OutputTest, ARunThatIsStoppedLeavesNothing) {
  RepackOptions options;
  options.progress = [](uint64_t, uint64_t) { return false; };
  EXPECT_TRUE(absl::IsCancelled(RepackTo(out_, options)));
  ExpectNothingIn(dir_.path());
}

TEST_F(OutputTest, AnErrorOfTheSourceIsPassedOnAndLeavesNothing) {
  // As of a file that is cut while it is read.
  const HookedSource source("blk.1.ffn_down.weight", [] {
    return absl::DataLossError("model.gguf: tensor blk.1.ffn_down.weight ends early");
  });
  const auto report = Repack(source, out_, {});
  EXPECT_EQ(report.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("blk.1.ffn_down.weight"));
  ExpectNothingIn(dir_.path());
}

}  // namespace
}  // namespace sluice
