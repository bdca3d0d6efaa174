// What the tests of io/ share: files of random bytes, children that run a function, and engines.
#ifndef SLUICE_TESTS_IO_TEST_FILES_H_
#define SLUICE_TESTS_IO_TEST_FILES_H_

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "io/aligned_buffer.h"
#include "io/device_profile.h"
#include "io/read_engine.h"
#include "io/storage_file.h"
#include "tests/test_paths.h"

namespace sluice {

inline std::vector<std::byte> RandomBytes(size_t size, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// A device of which an operation costs as much as 25,000 bytes, whatever the depth.
inline DeviceProfile SlowOperations() {
  constexpr double kOperationNs = 25'000, kNsPerByte = 1;
  std::vector<DeviceModel::Point> points;
  for (uint32_t block = 4096; block <= 1 << 20; block += 4096) {
    points.push_back({.random = true,
                      .block = block,
                      .range = std::nullopt,
                      .megabytes_per_second = 1e3 * block / (kOperationNs + kNsPerByte * block)});
  }
  auto model = DeviceModel::FromPoints("slow operations", std::move(points));
  DeviceProfile profile(std::move(*model));
  profile.AddFit(
      {.range = 1 << 30, .depth = 1, .operation_ns = kOperationNs, .ns_per_byte = kNsPerByte});
  return profile;
}

inline void WriteFile(const std::string& path, const std::vector<std::byte>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.flush().good()) << path;
}

inline std::vector<std::byte> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

// A temporary file of random bytes, open for reading.
class RandomFile {
 public:
  static constexpr uint32_t kBlock = 512;

  explicit RandomFile(size_t size, DirectMode mode = DirectMode::kAuto)
      : bytes_(RandomBytes(size)) {
    WriteFile(path(), bytes_);
    auto file = StorageFile::Open(path(), mode, kBlock);
    EXPECT_TRUE(file.ok()) << file.status();
    if (file.ok()) file_ = std::move(*file);
  }

  std::string path() const { return dir_.File("data"); }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  const StorageFile& file() const { return *file_; }

 private:
  TempDir dir_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<StorageFile> file_;
};

// Runs `body` in a forked child and returns the text that it returned; nullopt if the child did not
// get to its end. For what cannot be undone: limits, filters, mounts.
inline std::optional<std::string> RunInChild(const std::function<std::string()>& body) {
  int pipe_fds[2];
  if (pipe(pipe_fds) != 0) return std::nullopt;
  const pid_t child = fork();
  if (child == 0) {
    close(pipe_fds[0]);
    const std::string text = body();
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t written = write(pipe_fds[1], text.data() + done, text.size() - done);
      if (written <= 0) _exit(1);
      done += static_cast<size_t>(written);
    }
    _exit(0);
  }
  close(pipe_fds[1]);
  std::string text;
  char part[4096];
  ssize_t got;
  while ((got = read(pipe_fds[0], part, sizeof(part))) > 0)
    text.append(part, static_cast<size_t>(got));
  close(pipe_fds[0]);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return std::nullopt;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return std::nullopt;
  return text;
}

// An engine by name, "io_uring" or "pread"; null where this machine has no io_uring.
inline std::unique_ptr<ReadEngine> MakeEngine(const std::string& name, const StorageFile& file,
                                              uint32_t depth,
                                              std::span<const std::span<std::byte>> buffers = {}) {
  std::string note;
  auto engine = MakeReadEngine(file,
                               {.kind = name == "pread" ? EngineKind::kPread : EngineKind::kUring,
                                .depth = depth,
                                .buffers = buffers},
                               &note);
  return engine.ok() ? std::move(*engine) : nullptr;
}

}  // namespace sluice

#endif  // SLUICE_TESTS_IO_TEST_FILES_H_
