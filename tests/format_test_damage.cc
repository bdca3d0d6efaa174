// Copies that went wrong: truncated files, flipped bytes, files of another kind or another version.
// Each is refused with a message that names the file.
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/sluice_file.h"
#include "tests/format_test_files.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class DamageTest : public TinyFileTest {
 protected:
  void SetUp() override {
    TinyFileTest::SetUp();
    image_ = SluiceImage::Load(path_);
  }

  // Writes the image elsewhere and opens it.
  absl::StatusOr<std::unique_ptr<SluiceFile>> Open(const SluiceImage& image) const {
    image.Write(damaged_);
    return SluiceFile::Open(damaged_);
  }
  void ExpectRefused(const SluiceImage& image, absl::StatusCode code, const std::string& what) {
    const auto file = Open(image);
    EXPECT_EQ(file.status().code(), code) << file.status();
    EXPECT_THAT(std::string(file.status().message()), StartsWith(damaged_));
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(what));
  }

  const std::string damaged_ = dir_.File("damaged.sluice");
  SluiceImage image_;
};

TEST_F(DamageTest, ATruncatedFileIsRefusedWhateverItsLength) {
  std::set<size_t> lengths = {0, 1, 7, 8, 9, 4087, 4095, 4096, 4097, image_.bytes.size() - 1};
  for (size_t n = 100; n < kHeaderBytes; n += 397) lengths.insert(n);
  for (size_t n = 5000; n < image_.bytes.size(); n += 65537) lengths.insert(n);
  for (const SluiceImage::Entry& e : image_.entries) {
    lengths.insert({e.offset, e.offset + 1, e.offset + e.stored_bytes});
  }
  image_.Write(damaged_);
  for (auto n = lengths.rbegin(); n != lengths.rend(); ++n) {  // from the longest on
    ASSERT_EQ(truncate(damaged_.c_str(), static_cast<off_t>(*n)), 0);
    const auto file = SluiceFile::Open(damaged_);
    EXPECT_EQ(file.status().code(), absl::StatusCode::kDataLoss) << *n << ": " << file.status();
    EXPECT_THAT(std::string(file.status().message()), StartsWith(damaged_)) << *n;
  }
}

TEST_F(DamageTest, AFileThatGrewIsRefused) {
  image_.bytes.push_back(std::byte{0});
  ExpectRefused(image_, absl::StatusCode::kDataLoss, "its header says");
}

TEST_F(DamageTest, EveryFlippedByteOfTheHeaderIsFound) {
  std::fstream raw(path_, std::ios::in | std::ios::out | std::ios::binary);
  const auto put = [&raw](uint32_t at, std::byte value) {
    raw.seekp(at);
    raw.put(static_cast<char>(value));
    raw.flush();
  };
  for (uint32_t at = 0; at < kHeaderBytes; ++at) {
    put(at, image_.bytes[at] ^ std::byte{1});
    const auto file = SluiceFile::Open(path_);
    ASSERT_FALSE(file.ok()) << "byte " << at;
    ASSERT_THAT(std::string(file.status().message()), StartsWith(path_)) << "byte " << at;
    put(at, image_.bytes[at]);
  }
  EXPECT_TRUE(SluiceFile::Open(path_).ok());
}

TEST_F(DamageTest, EveryFlippedByteOfTheSectionTableIsFound) {
  const auto table = LoadLe<uint64_t>(&image_.bytes[40]);
  for (uint64_t at = table; at < image_.bytes.size(); at += 3) {
    SluiceImage damaged = image_;
    damaged.bytes[at] ^= std::byte{0x10};
    ExpectRefused(damaged, absl::StatusCode::kDataLoss, "section table checksum");
  }
}

TEST_F(DamageTest, AFlippedByteOfASectionIsFoundAndTheSectionNamed) {
  const std::pair<SectionKind, const char*> sections[] = {
      {SectionKind::kConfig, "config section checksum"},
      {SectionKind::kDirectory, "directory section checksum"},
      {SectionKind::kVectors, "vectors section checksum"},
      {SectionKind::kTileSums, "tile checksums section checksum"},
      {SectionKind::kBundleSums, "bundle checksums section checksum"},
      {SectionKind::kProvenance, "provenance section checksum"},
  };
  for (const auto& [kind, message] : sections) {
    const SluiceImage::Entry e = image_.entry(kind);
    for (const uint64_t at :
         {e.offset, e.offset + e.stored_bytes / 2, e.offset + e.stored_bytes - 1}) {
      SluiceImage damaged = image_;
      damaged.bytes[at] ^= std::byte{0x80};
      ExpectRefused(damaged, absl::StatusCode::kDataLoss, message);
    }
  }
}

TEST_F(DamageTest, ADamagedTokenizerIsFoundWhenItIsLoaded) {
  const SluiceImage::Entry e = image_.entry(SectionKind::kTokenizer);
  image_.bytes[e.offset + e.stored_bytes / 2] ^= std::byte{4};
  const auto file = Open(image_);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto tokenizer = (*file)->LoadTokenizer();
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(tokenizer.status().message()), StartsWith(damaged_));
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("tokenizer section checksum"));
}

TEST_F(DamageTest, AGgufIsToldToBeRepacked) {
  std::ofstream(damaged_, std::ios::binary) << "GGUF" << std::string(5000, '\3');
  const auto file = SluiceFile::Open(damaged_);
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(file.status().message()), StartsWith(damaged_));
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("sluice repack"));
}

TEST_F(DamageTest, AFileOfAnotherKindIsSaidToBeNone) {
  for (const std::string& text :
       {std::string("<!DOCTYPE html><html><body>404</body></html>"), std::string(10000, '\0'),
        std::string("version https://git-lfs.github.com/spec/v1\noid sha256:00\n")}) {
    std::ofstream(damaged_, std::ios::binary) << text;
    const auto file = SluiceFile::Open(damaged_);
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(file.status().message()), HasSubstr("is not a .sluice file"));
  }
}

// A transfer in text mode: the 0A of the magic becomes 0D 0A.
TEST_F(DamageTest, ACopyInTextModeIsRefused) {
  image_.bytes.insert(image_.bytes.begin() + 7, std::byte{'\r'});
  ExpectRefused(image_, absl::StatusCode::kInvalidArgument, "wrong magic");
}

TEST_F(DamageTest, ANewerMajorVersionAsksForAnUpdate) {
  StoreLe<uint16_t>(&image_.bytes[8], kSluiceMajor + 1);
  image_.SealHeader();
  ExpectRefused(image_, absl::StatusCode::kFailedPrecondition, "update sluice");
}

TEST_F(DamageTest, AnUnknownIncompatibleFeatureIsRefusedAndNamed) {
  StoreLe<uint64_t>(&image_.bytes[16], uint64_t{1} << 40);
  image_.SealHeader();
  ExpectRefused(image_, absl::StatusCode::kFailedPrecondition, "0x10000000000");
}

TEST_F(DamageTest, NewerMinorVersionsCompatibleFeaturesAndUnknownSectionsAreIgnored) {
  StoreLe<uint16_t>(&image_.bytes[10], kSluiceMinor + 7);
  StoreLe<uint64_t>(&image_.bytes[24], ~uint64_t{0});
  for (const uint32_t kind : {0u, uint32_t{kSectionKinds}, 99u, UINT32_MAX}) {
    image_.entries.push_back({kind, UINT64_MAX, UINT64_MAX, UINT64_MAX, 5});
  }
  image_.Seal();
  const auto file = Open(image_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->config().name, "tiny");
}

TEST_F(DamageTest, EveryMissingSectionIsNamed) {
  const std::vector<SluiceImage::Entry> all = image_.entries;
  ASSERT_EQ(all.size(), 7u);
  std::set<std::string> messages;
  for (size_t i = 0; i < all.size(); ++i) {
    image_.entries = all;
    image_.entries.erase(image_.entries.begin() + static_cast<ptrdiff_t>(i));
    image_.Seal();
    ExpectRefused(image_, absl::StatusCode::kDataLoss, "has no ");
    messages.emplace(Open(image_).status().message());
  }
  EXPECT_EQ(messages.size(), all.size()) << "each names another section";
}

TEST_F(DamageTest, ASectionThatIsThereTwiceIsRefused) {
  image_.entries.push_back(image_.entry(SectionKind::kVectors));
  image_.Seal();
  ExpectRefused(image_, absl::StatusCode::kDataLoss, "two vectors sections");
}

TEST_F(DamageTest, WhatIsNoFileIsNamedAndNotWaitedFor) {
  const std::string fifo = dir_.File("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(std::string(SluiceFile::Open(fifo).status().message()),
              HasSubstr("not a regular file"));
  EXPECT_THAT(std::string(SluiceFile::Open(dir_.path()).status().message()),
              HasSubstr("is a directory"));
  EXPECT_EQ(SluiceFile::Open(dir_.File("missing")).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace sluice
