// What the tests of the `.sluice` format share: a folder with one tiny model in it.
#ifndef SLUICE_TESTS_FORMAT_TEST_FILES_H_
#define SLUICE_TESTS_FORMAT_TEST_FILES_H_

#include <functional>
#include <string>

#include "gtest/gtest.h"
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

}  // namespace sluice

#endif  // SLUICE_TESTS_FORMAT_TEST_FILES_H_
