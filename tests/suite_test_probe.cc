// The short measurement of the device under a file: made once, kept beside the file, and made again
// when what is kept is not of this file as it is.
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "io/storage_file.h"
#include "io/suite/device_probe.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr uint64_t kRange = 64 << 20;

std::string Read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

class ProbeTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = 6 << 20;

  void SetUp() override {
    Write(path_, std::string(kBytes, 'x'));
    const auto file = StorageFile::Open(path_, DirectMode::kAuto, 4096);
    ASSERT_TRUE(file.ok()) << file.status();
    if (!(*file)->direct()) GTEST_SKIP() << "no direct I/O here: " << (*file)->mode_note();
  }

  static ProbedDevice Probe(const std::string& path) {
    auto device = ProbeDevice(path, kRange, 0, nullptr);
    EXPECT_TRUE(device.ok()) << device.status();
    if (!device.ok()) return {DeviceProfile(*DeviceModel::FromPoints("", {{}})), ""};
    EXPECT_FALSE(device->profile.fits().empty());
    return *std::move(device);
  }
  void ExpectMeasuredAndKept() {
    EXPECT_THAT(Probe(path_).note,
                AllOf(StartsWith("measured in "), HasSubstr("kept in " + kept_)));
    ExpectKept();
  }
  void ExpectKept() {
    EXPECT_THAT(Probe(path_).note, AllOf(HasSubstr("measured before"), HasSubstr(kept_)));
  }
  void ExpectMeasuredAndNotKept() {
    EXPECT_THAT(Probe(path_).note, AllOf(StartsWith("measured in "), HasSubstr("not kept: ")));
  }

  TempDir dir_;
  const std::string path_ = dir_.File("model.sluice");
  const std::string kept_ = ProbeCachePath(path_);
};

TEST_F(ProbeTest, IsMadeOnceAndKeptBesideTheFile) {
  EXPECT_EQ(kept_, path_ + ".device.json");
  const ProbedDevice first = Probe(path_);
  EXPECT_THAT(first.note, AllOf(StartsWith("measured in "), HasSubstr("kept in " + kept_)));
  const ProbedDevice second = Probe(path_);
  EXPECT_THAT(second.note, HasSubstr("measured before"));
  EXPECT_EQ(second.profile.ToJson(), first.profile.ToJson());
  EXPECT_TRUE(first.profile.depends_on_depth());
  // A profile like any other, with nothing else left behind.
  EXPECT_TRUE(DeviceProfile::Load(kept_).ok());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_.path()), {}), 2);
}

TEST_F(ProbeTest, IsMadeAgainWhenTheFileChanges) {
  ExpectMeasuredAndKept();
  std::ofstream(path_, std::ios::binary | std::ios::app) << "more";
  ExpectMeasuredAndKept();
  constexpr struct timespec kThen[2] = {{1'000'000'000, 5}, {1'000'000'000, 5}};
  ASSERT_EQ(utimensat(AT_FDCWD, path_.c_str(), kThen, 0), 0);
  ExpectMeasuredAndKept();
  // Another file of the same size and time under this name.
  const std::string other = dir_.File("other");
  std::filesystem::copy_file(path_, other);
  ASSERT_EQ(utimensat(AT_FDCWD, other.c_str(), kThen, 0), 0);
  std::filesystem::rename(other, path_);
  ExpectMeasuredAndKept();
}

TEST_F(ProbeTest, IsMadeAgainWhenWhatIsKeptIsOfNoUse) {
  ExpectMeasuredAndKept();
  const std::string good = Read(kept_);
  const std::string bad[] = {
      "",
      good.substr(0, good.size() / 2),
      "[]",
      "{\"measured_on\": 7}",
      std::string(100'000, '['),
      absl::StrReplaceAll(good, {{"measured_on", "measured"}}),
      absl::StrReplaceAll(good, {{"in_flight\": ", "in_flight\": -"}}),
      absl::StrReplaceAll(good, {{"in_flight\": ", "in_flight\": \"many\", \"x\": "}}),
      absl::StrReplaceAll(good, {{"inode ", "inode 1"}}),
      absl::StrReplaceAll(good, {{"\"read_MBps\"", "\"read\""}}),
      absl::StrReplaceAll(good, {{"\"operation_ns\": ", "\"operation_ns\": -1"}}),
  };
  for (const std::string& text : bad) {
    ASSERT_NE(text, good);
    Write(kept_, text);
    SCOPED_TRACE(text.substr(0, 200));
    ExpectMeasuredAndKept();
  }
}

TEST_F(ProbeTest, IsMadeAgainWhenMoreMemoryShowsMore) {
  const auto note = [&](uint64_t memory) {
    const auto probed = ProbeDevice(path_, kRange, memory, nullptr);
    EXPECT_TRUE(probed.ok()) << probed.status();
    return probed.ok() ? probed->note : "";
  };
  EXPECT_THAT(note(0), StartsWith("measured in "));
  EXPECT_THAT(note(2 << 20), StartsWith("measured before"));
  EXPECT_THAT(note(4 << 20), StartsWith("measured in "));
  EXPECT_THAT(note(0), StartsWith("measured before"));
  EXPECT_THAT(note(UINT64_MAX), StartsWith("measured in "));
  EXPECT_THAT(note(16 << 20), StartsWith("measured before"));
}

TEST_F(ProbeTest, WhatWasKeptForAnotherFileIsNotUsed) {
  const std::string other = dir_.File("other");
  std::filesystem::copy_file(path_, other);
  Probe(other);
  std::filesystem::copy_file(ProbeCachePath(other), kept_);
  ExpectMeasuredAndKept();
}

TEST_F(ProbeTest, WhereItCannotBeKeptItIsMadeAndSaysSo) {
  std::filesystem::create_directory(kept_);
  ExpectMeasuredAndNotKept();
  std::filesystem::remove(kept_);
  ASSERT_EQ(mkfifo(kept_.c_str(), 0600), 0);  // nobody writes into it
  ExpectMeasuredAndNotKept();
}

TEST_F(ProbeTest, ANameThatIsNoTextIsNoObstacle) {
  const std::string odd = dir_.File("\xff\xfe model");
  std::filesystem::rename(path_, odd);
  EXPECT_THAT(Probe(odd).note, StartsWith("measured in "));
  EXPECT_THAT(Probe(odd).note, HasSubstr("measured before"));
}

TEST_F(ProbeTest, WhatCannotBeMeasuredIsRefusedByName) {
  const auto refuse = [](const std::string& path, const std::string& what) {
    const absl::Status status = ProbeDevice(path, kRange, 0, nullptr).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(path), HasSubstr(what)));
    EXPECT_FALSE(std::filesystem::exists(ProbeCachePath(path)));
  };
  refuse(dir_.File("missing"), "No such file");
  refuse(dir_.path(), "directory");
  const std::string fifo = dir_.File("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  refuse(fifo, "not a regular file");
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{20'000}}) {
    const std::string small = dir_.File("small");
    Write(small, std::string(bytes, 'x'));
    refuse(small, "too small");
  }
  const std::string empty = dir_.File("empty");
  Write(empty, "");
  refuse(empty, "empty");
}

TEST_F(ProbeTest, AStopCancelsIt) {
  const std::atomic<int> stop{1};
  EXPECT_TRUE(absl::IsCancelled(ProbeDevice(path_, kRange, 0, &stop).status()));
  EXPECT_FALSE(std::filesystem::exists(kept_));
}

}  // namespace
}  // namespace sluice
