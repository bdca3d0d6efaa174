// What the tests of the `.sluice` format share: a folder with one tiny model in it.
#ifndef SLUICE_TESTS_FORMAT_TEST_FILES_H_
#define SLUICE_TESTS_FORMAT_TEST_FILES_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/sluice_file.h"
#include "tests/cost_bound.h"
#include "tests/sluice_image.h"
#include "tests/test_paths.h"
#include "tests/tiny_sluice.h"

namespace sluice {

// Changes the directory record of an image.
inline void EditDirectoryOf(SluiceImage& image, const std::function<void(Directory&)>& edit) {
  const auto raw = image.ReadSection(SectionKind::kDirectory);
  ByteReader reader(raw);
  Directory directory = ReadDirectory(reader).value();
  edit(directory);
  ByteWriter out;
  WriteDirectory(directory, out);
  image.ReplaceSection(SectionKind::kDirectory, out.bytes());
}

class TinyFileTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto size = WriteTinySluice(model_, path_);
    ASSERT_TRUE(size.ok()) << size.status();
  }

  const TinySluice model_ = MakeTinySluice(WeightType::kQ4);
  TempDir dir_;
  const std::string path_ = dir_.File("tiny.sluice");
};

// A good file and its image, which a test edits.
class EditedFileTest : public testing::Test {
 protected:
  explicit EditedFileTest(TinySluice model) : model_(std::move(model)) { WriteGood(); }

  void EditDirectory(const std::function<void(Directory&)>& edit) { EditDirectoryOf(image_, edit); }
  template <typename T>
  void Store(SectionKind kind, size_t at, T value) {
    auto raw = image_.ReadSection(kind);
    StoreLe<T>(&raw[at], value);
    image_.ReplaceSection(kind, raw);
  }
  // Expects that the image as it was edited is refused, and brings back the good one.
  void ExpectRefused(const std::string& what) {
    image_.Seal();
    image_.Write(path_);
    {
      const CostBound bound;
      const absl::Status status = SluiceFile::Open(path_).status();
      EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(std::string(status.message()), testing::StartsWith(path_));
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr(what));
    }
    WriteGood();
  }
  void Drop(SectionKind kind) {
    std::erase_if(image_.entries, [kind](const SluiceImage::Entry& e) {
      return e.kind == static_cast<uint32_t>(kind);
    });
  }
  absl::StatusOr<std::unique_ptr<SluiceFile>> OpenWithout(SectionKind kind) {
    Drop(kind);
    image_.Seal();
    image_.Write(path_);
    return SluiceFile::Open(path_);
  }

  const TinySluice model_;
  TempDir dir_;
  const std::string path_ = dir_.File("edited.sluice");
  SluiceImage image_;

 private:
  void WriteGood() {
    const auto size = WriteTinySluice(model_, path_);
    EXPECT_TRUE(size.ok()) << size.status();
    image_ = SluiceImage::Load(path_);
  }
};

}  // namespace sluice

#endif  // SLUICE_TESTS_FORMAT_TEST_FILES_H_
