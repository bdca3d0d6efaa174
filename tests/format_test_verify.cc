// `sluice verify`: damage anywhere in the weights is found, counted and named.
#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/verify.h"
#include "tests/format_test_files.h"

namespace sluice {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

class VerifyTest : public TinyFileTest {
 protected:
  void SetUp() override {
    TinyFileTest::SetUp();
    image_ = SluiceImage::Load(path_);
  }
  VerifyReport VerifyImage() {
    image_.Write(path_);
    const auto report = Verify(path_, nullptr);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.value_or(VerifyReport());
  }
  std::byte& At(uint64_t offset) { return image_.bytes[offset]; }

  SluiceImage image_;
  const BundleLayout& bundles_ = model_.directory.bundles;
};

TEST_F(VerifyTest, AGoodFileHasNoFindingsAndEverythingIsChecked) {
  uint64_t done = 0, total = 0;
  const auto report = Verify(path_, [&](uint64_t d, uint64_t t) {
    EXPECT_GT(d, done);
    done = d;
    total = t;
  });
  ASSERT_TRUE(report.ok()) << report.status();
  uint64_t tiles = 0;
  for (const MatrixEntry& m : model_.directory.matrices) tiles += m.n_tiles();
  EXPECT_EQ(report->tiles, tiles);
  EXPECT_EQ(report->bundles, 2u * 96);
  EXPECT_EQ(report->damaged, 0u);
  EXPECT_THAT(report->findings, SizeIs(0));
  EXPECT_EQ(done, total);
}

TEST_F(VerifyTest, ADamagedBundleIsNamedByItsNeuron) {
  const uint64_t offset = bundles_.BundleOffset(1, 17);
  At(offset + bundles_.payload_bytes() - 1) ^= std::byte{1};
  const VerifyReport report = VerifyImage();
  EXPECT_EQ(report.damaged, 1u);
  EXPECT_THAT(report.findings,
              ElementsAre(AllOf(HasSubstr("layer 1"),
                                HasSubstr("neuron " + std::to_string(TinyNeuron(1, 17))),
                                HasSubstr("offset " + std::to_string(offset)))));
}

TEST_F(VerifyTest, ADamagedTileIsNamedByItsMatrix) {
  const MatrixEntry& m = model_.directory.matrices[7];  // V of layer 1
  At(m.offset + m.row_bytes() + 3) ^= std::byte{0x40};
  const VerifyReport report = VerifyImage();
  EXPECT_EQ(report.damaged, 1u);
  EXPECT_THAT(report.findings, ElementsAre(AllOf(HasSubstr("matrix v of layer 1"),
                                                 HasSubstr("offset " + std::to_string(m.offset)))));
}

TEST_F(VerifyTest, TwoBundlesInEachOthersPlaceAreBothFound) {
  const uint64_t a = bundles_.BundleOffset(0, 3), b = bundles_.BundleOffset(0, 90);
  std::swap_ranges(&At(a), &At(a) + bundles_.stride, &At(b));
  const VerifyReport report = VerifyImage();
  EXPECT_EQ(report.damaged, 2u);
  EXPECT_THAT(report.findings,
              ElementsAre(HasSubstr("neuron " + std::to_string(TinyNeuron(0, 3))),
                          HasSubstr("neuron " + std::to_string(TinyNeuron(0, 90)))));
}

TEST_F(VerifyTest, ALayerInThePlaceOfAnotherIsFound) {
  std::copy_n(&At(bundles_.layer_offsets[0]), bundles_.layer_bytes(),
              &At(bundles_.layer_offsets[1]));
  EXPECT_EQ(VerifyImage().damaged, 96u);
}

TEST_F(VerifyTest, OfManyDamagedPartsTheFirstFewAreNamedAndAllCounted) {
  std::fill_n(&At(bundles_.layer_offsets[0]), bundles_.layer_bytes(), std::byte{0});
  const VerifyReport report = VerifyImage();
  EXPECT_EQ(report.damaged, 96u);
  EXPECT_THAT(report.findings, SizeIs(10));
}

TEST_F(VerifyTest, ADamagedTokenizerIsAnError) {
  At(image_.entry(SectionKind::kTokenizer).offset + 9) ^= std::byte{1};
  image_.Write(path_);
  const auto report = Verify(path_, nullptr);
  EXPECT_EQ(report.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(report.status().message()), StartsWith(path_));
}

TEST_F(VerifyTest, ATruncatedFileIsAnError) {
  image_.bytes.resize(image_.bytes.size() / 2);
  image_.Write(path_);
  EXPECT_EQ(Verify(path_, nullptr).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace sluice
