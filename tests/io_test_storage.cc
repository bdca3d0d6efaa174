// Memory for direct I/O, opening files, the probe of direct I/O.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "io/aligned_buffer.h"
#include "io/direct_probe.h"
#include "io/storage_file.h"
#include "tests/io_test_files.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

TEST(AlignedBufferTest, IsZeroedPageAlignedAndAtLeastAsLargeAsAsked) {
  auto buffer = AlignedBuffer::Allocate(10'000);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % page, 0u);
  EXPECT_EQ(buffer->size(), (10'000 + page - 1) / page * page);
  EXPECT_TRUE(std::all_of(buffer->span().begin(), buffer->span().end(),
                          [](std::byte b) { return b == std::byte{0}; }));
}

TEST(AlignedBufferTest, OfNothingIsEmpty) {
  auto buffer = AlignedBuffer::Allocate(0);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ(buffer->data(), nullptr);
  EXPECT_EQ(buffer->size(), 0u);
}

TEST(AlignedBufferTest, MoreThanThereIsIsAnError) {
  for (const size_t size : {SIZE_MAX, SIZE_MAX - 8192, size_t{1} << 60}) {
    EXPECT_EQ(AlignedBuffer::Allocate(size).status().code(), absl::StatusCode::kResourceExhausted);
  }
}

TEST(AlignedBufferTest, MovesItsMemory) {
  AlignedBuffer a = AlignedBuffer::Allocate(4096).value();
  std::byte* const data = a.data();
  AlignedBuffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  AlignedBuffer c = AlignedBuffer::Allocate(8192).value();
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(c.size(), 4096u);
}

TEST(StorageFileTest, ReadsExactlyTheBytesAskedFor) {
  const RandomFile random(100'000);
  std::vector<std::byte> got(777);
  ASSERT_TRUE(random.file().ReadExactly(12'345, got).ok());
  EXPECT_TRUE(std::equal(got.begin(), got.end(), random.bytes().begin() + 12'345));
  EXPECT_EQ(random.file().size(), 100'000u);
}

TEST(StorageFileTest, SaysThatAReadPastTheEndIsTruncation) {
  const RandomFile random(1000);
  std::vector<std::byte> got(100);
  const absl::Status status = random.file().ReadExactly(950, got);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(random.path()));
  EXPECT_THAT(std::string(status.message()), HasSubstr("ends at byte 1000"));
}

TEST(StorageFileTest, RefusesWhatIsNotAFile) {
  const TempDir dir;
  const std::string fifo = dir.File("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {dir.path(), fifo, std::string("/dev/null")}) {
    auto file = StorageFile::Open(path, DirectMode::kAuto, 512);
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << file.status();
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(path));
  }
}

TEST(StorageFileTest, RefusesAnEmptyAndAMissingFile) {
  const TempDir dir;
  WriteFile(dir.File("empty"), {});
  EXPECT_EQ(StorageFile::Open(dir.File("empty"), DirectMode::kAuto, 512).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(StorageFile::Open(dir.File("missing"), DirectMode::kAuto, 512).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(StorageFileTest, RefusesABlockSizeThatIsNoPowerOfTwoInRange) {
  const RandomFile random(1000);
  for (const uint32_t block : {0u, 1u, 256u, 1000u, 2u * 1024 * 1024}) {
    EXPECT_EQ(StorageFile::Open(random.path(), DirectMode::kOff, block).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(StorageFileTest, ReadsBufferedWhenAskedTo) {
  const RandomFile random(100'000, DirectMode::kOff);
  EXPECT_FALSE(random.file().direct());
  EXPECT_EQ(random.file().fd(), random.file().buffered_fd());
  EXPECT_EQ(random.file().mode_note(), "buffered, as asked");
}

TEST(StorageFileTest, SaysWhatTheProbeFound) {
  const RandomFile random(100'000);
  EXPECT_THAT(random.file().mode_note(),
              HasSubstr(random.file().direct() ? "O_DIRECT verified at 512 B" : "buffered: "));
}

TEST(StorageFileTest, TurnsToBufferedReadsWhereDirectOnesAreRefusedAndSaysWhy) {
  // sysfs has no direct I/O.
  const std::string path = "/sys/devices/system/cpu/online";
  if (access(path.c_str(), R_OK) != 0) GTEST_SKIP() << path << " is not readable here";
  auto file = StorageFile::Open(path, DirectMode::kAuto, 512);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE((*file)->direct());
  EXPECT_THAT((*file)->mode_note(), HasSubstr("buffered: O_DIRECT is refused"));

  const absl::Status forced = StorageFile::Open(path, DirectMode::kOn, 512).status();
  EXPECT_EQ(forced.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(forced.message()), HasSubstr("O_DIRECT is refused"));
}

// The probe is given descriptors that only claim to be direct.
class DirectProbeTest : public testing::Test {
 protected:
  static constexpr size_t kSize = 64 * 1024;

  void SetUp() override {
    WriteFile(dir_.File("data"), bytes_);
    const int fd = open(dir_.File("data").c_str(), O_RDONLY);
    fsync(fd);
    close(fd);
    buffered_fd_ = Open("data", O_RDONLY);
  }
  void TearDown() override {
    for (const int fd : fds_) close(fd);
  }
  int Open(const std::string& name, int flags) {
    fds_.push_back(open(dir_.File(name).c_str(), flags));
    EXPECT_GE(fds_.back(), 0);
    return fds_.back();
  }
  DirectProbeResult Probe(int direct_fd) {
    auto result = ProbeDirectIo(direct_fd, buffered_fd_, kSize, 512);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(DirectProbeResult{});
  }

  TempDir dir_;
  std::vector<std::byte> bytes_ = RandomBytes(kSize);
  std::vector<int> fds_;
  int buffered_fd_ = -1;
};

TEST_F(DirectProbeTest, NoticesReadsThatGoThroughThePageCache) {
  posix_fadvise(buffered_fd_, 0, 0, POSIX_FADV_DONTNEED);
  unsigned char resident = 1;
  void* map = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, buffered_fd_, 0);
  ASSERT_NE(map, MAP_FAILED);
  mincore(map, 4096, &resident);
  munmap(map, 4096);
  if ((resident & 1) != 0) GTEST_SKIP() << "the file system keeps its pages in memory";
  const DirectProbeResult result = Probe(Open("data", O_RDONLY));
  EXPECT_FALSE(result.works);
  EXPECT_THAT(result.note, HasSubstr("page cache"));
}

TEST_F(DirectProbeTest, NoticesWrongBytes) {
  std::vector<std::byte> other = bytes_;
  other[kSize - 1] ^= std::byte{1};  // in the last block only
  WriteFile(dir_.File("other"), other);
  const DirectProbeResult result = Probe(Open("other", O_RDONLY));
  EXPECT_FALSE(result.works);
  EXPECT_THAT(result.note, HasSubstr("wrong bytes at offset 65024"));
}

TEST_F(DirectProbeTest, NoticesShortReads) {
  WriteFile(dir_.File("other"), RandomBytes(kSize / 2));
  const DirectProbeResult result = Probe(Open("other", O_RDONLY));
  EXPECT_FALSE(result.works);
}

TEST_F(DirectProbeTest, NoticesReadsThatFail) {
  const DirectProbeResult result = Probe(Open("data", O_WRONLY));
  EXPECT_FALSE(result.works);
  EXPECT_THAT(result.note, HasSubstr("failed: Bad file descriptor"));
}

TEST_F(DirectProbeTest, AcceptsFilesShorterThanABlockAndWithAPartialOne) {
  for (const size_t size : {1u, 511u, 512u, 513u, 1537u}) {
    const RandomFile random(size);
    EXPECT_THAT(random.file().mode_note(), testing::Not(HasSubstr("wrong bytes"))) << size;
    EXPECT_THAT(random.file().mode_note(), testing::Not(HasSubstr("returned"))) << size;
  }
}

// Readers that behave as file systems were seen to.
TEST_F(DirectProbeTest, NoticesSuccessThatLeavesTheBufferUntouched) {
  // Also where the file happens to hold the bytes that the buffer is filled with beforehand.
  for (const int fill : {0x00, 0x5a, 0xa5, 0xff}) {
    WriteFile(dir_.File("data"), std::vector<std::byte>(kSize, static_cast<std::byte>(fill)));
    const auto result = ProbeDirectReads(
        [](std::byte*, size_t length, uint64_t) { return static_cast<ssize_t>(length); }, 0,
        buffered_fd_, kSize, 512);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_FALSE(result->works) << fill;
    EXPECT_THAT(result->note, HasSubstr("wrong bytes at offset 0"));
  }
}

TEST_F(DirectProbeTest, SaysThatALargerAlignmentWorks) {
  const auto strict = [this](std::byte* dst, size_t length, uint64_t offset) -> ssize_t {
    if ((offset | length | reinterpret_cast<uintptr_t>(dst)) % 4096 != 0) {
      errno = EINVAL;
      return -1;
    }
    std::copy_n(bytes_.data() + offset, length, dst);
    return static_cast<ssize_t>(length);
  };
  const auto result = ProbeDirectReads(strict, 0, buffered_fd_, kSize, 512);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->works);
  EXPECT_THAT(result->note, HasSubstr("Invalid argument"));
  EXPECT_THAT(result->note, HasSubstr("it works at 4096 B alignment"));

  const auto at_4096 = ProbeDirectReads(strict, 0, buffered_fd_, kSize, 4096);
  ASSERT_TRUE(at_4096.ok()) << at_4096.status();
  EXPECT_TRUE(at_4096->works);
  EXPECT_EQ(at_4096->note, "O_DIRECT verified at 4096 B");
}

TEST_F(DirectProbeTest, BelievesTheFileSystemThatItNeedsALargerAlignment) {
  const auto result = ProbeDirectReads(
      [this](std::byte* dst, size_t length, uint64_t offset) {
        std::copy_n(bytes_.data() + offset, length, dst);
        return static_cast<ssize_t>(length);
      },
      4096, buffered_fd_, kSize, 512);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->works);
  EXPECT_EQ(result->note, "O_DIRECT needs 4096 B alignment here, reads have 512");
}

}  // namespace
}  // namespace sluice
