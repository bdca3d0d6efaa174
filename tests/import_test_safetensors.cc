// safetensors files: good ones, and every way in which header and data can disagree.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/safetensors.h"
#include "tests/cost_bound.h"
#include "tests/import_test_files.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// A file with this header text and `data_bytes` bytes of data.
std::string FileOf(const std::string& header, size_t data_bytes) {
  char length[8];
  StoreLe<uint64_t>(length, header.size());
  return absl::StrCat(absl::string_view(length, 8), header, std::string(data_bytes, '\1'));
}

// One entry of a header.
std::string Entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":[", shape,
                      "],\"data_offsets\":[", offsets, "]}");
}

class SafetensorsTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& bytes) {
    WriteFile(path_, bytes);
    const CostBound bound;
    return SafetensorsFile::Open(path_);
  }
  void ExpectError(const std::string& bytes, absl::StatusCode code, const std::string& what) {
    const absl::Status status = Open(bytes).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("bad.safetensors"), HasSubstr(what)));
  }
  // Entries in braces, with 16 bytes of data.
  void ExpectBadHeader(const std::string& entries, const std::string& what) {
    ExpectError(FileOf(absl::StrCat("{", entries, "}"), 16), absl::StatusCode::kDataLoss, what);
  }

  TempDir dir_;
  std::string path_ = dir_.File("bad.safetensors");
};

TEST_F(SafetensorsTest, TensorsOfEveryFloatTypeAreListedInDataOrder) {
  const std::string header = absl::StrCat(
      "{\"__metadata__\":{\"format\":\"pt\",\"a\\\"b\":\"\"},", Entry("b", "BF16", "2,1", "12,16"),
      ",", Entry("h", "F16", "4", "4,12"), ",", Entry("f", "F32", "1,1,1", "0,4"), "}   ");
  const auto file = Open(FileOf(header, 16));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto& tensors = (*file)->tensors();
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].name, "f");
  EXPECT_EQ(tensors[0].type, SourceType::kF32);
  EXPECT_EQ(tensors[1].name, "h");
  EXPECT_EQ(tensors[1].type, SourceType::kF16);
  EXPECT_EQ(tensors[2].name, "b");
  EXPECT_EQ(tensors[2].type, SourceType::kBF16);
  EXPECT_THAT(tensors[2].shape, ElementsAre(2, 1));
  EXPECT_EQ(tensors[2].offset, 8 + header.size() + 12);
}

TEST_F(SafetensorsTest, ReadTensorRefusesRangesOutsideAndReportsAShrunkFile) {
  const auto file = Open(FileOf(absl::StrCat("{", Entry("t", "F32", "4", "0,16"), "}"), 16));
  ASSERT_TRUE(file.ok()) << file.status();
  const SafetensorsTensor& tensor = (*file)->tensors()[0];
  std::vector<std::byte> dst(8);
  EXPECT_TRUE((*file)->ReadTensor(tensor, 8, dst).ok());
  EXPECT_EQ(dst[7], std::byte{1});
  EXPECT_TRUE(absl::IsOutOfRange((*file)->ReadTensor(tensor, 9, dst)));
  EXPECT_TRUE(absl::IsOutOfRange((*file)->ReadTensor(tensor, UINT64_MAX, dst)));
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 1);
  EXPECT_TRUE(absl::IsDataLoss((*file)->ReadTensor(tensor, 8, dst)));
}

TEST_F(SafetensorsTest, HeaderLengthIsBoundedByTheFileAndACap) {
  for (const uint64_t n : {UINT64_MAX, uint64_t{1} << 40, uint64_t{100}}) {
    char length[8];
    StoreLe<uint64_t>(length, n);
    ExpectError(absl::StrCat(absl::string_view(length, 8), "{}      "), absl::StatusCode::kDataLoss,
                absl::StrCat("header length is ", n));
  }
  const std::string large = "{" + std::string(17 << 20, ' ') + "}";
  ExpectError(FileOf(large, 0), absl::StatusCode::kDataLoss, "header length is");
}

TEST_F(SafetensorsTest, DuplicateKeysAreRefused) {
  const std::string entry = Entry("t", "F32", "4", "0,16");
  ExpectBadHeader(absl::StrCat(entry, ",", entry), "\"t\" is listed twice");
  ExpectBadHeader(R"("t":{"dtype":"F32","dtype":"F16","shape":[4],"data_offsets":[0,16]})",
                  "dtype is given twice");
  ExpectBadHeader(R"("t":{"dtype":"F32","shape":[4],"shape":[2],"data_offsets":[0,16]})",
                  "shape is given twice");
  ExpectBadHeader(R"("__metadata__":{},"__metadata__":{})", "listed twice");
}

TEST_F(SafetensorsTest, RangesMustCoverTheDataExactly) {
  const auto two = [](const std::string& a, const std::string& b) {
    return absl::StrCat(Entry("a", "F32", "2", a), ",", Entry("b", "F32", "2", b));
  };
  ExpectBadHeader(two("0,8", "4,12"), "an overlap");
  ExpectBadHeader(two("0,8", "0,8"), "an overlap");
  ExpectBadHeader(Entry("a", "F32", "2", "8,16"), "an unused hole");
  ExpectBadHeader(absl::StrCat(Entry("a", "F32", "1", "0,4"), ",", Entry("b", "F32", "2", "8,16")),
                  "an unused hole");
  ExpectBadHeader(Entry("a", "F32", "2", "0,8"), "8 bytes follow the last tensor");
  ExpectBadHeader("", "16 bytes follow the last tensor");
}

TEST_F(SafetensorsTest, ShapeTimesDtypeMustBeTheRange) {
  ExpectBadHeader(Entry("t", "F32", "4", "0,12"), "\"t\" has 12 bytes");
  ExpectBadHeader(Entry("t", "F16", "4", "0,16"), "need 8");
  ExpectBadHeader(Entry("t", "F32", "4", "16,0"), "lies at 16..0");
  ExpectBadHeader(Entry("t", "F32", "5", "0,20"), "truncated or damaged");
  ExpectBadHeader(Entry("t", "F32", "4294967296,4294967296", "0,16"), "too large");
  ExpectBadHeader(Entry("t", "F32", "18446744073709551615", "0,16"), "too large");
  ExpectBadHeader(Entry("t", "F32", "0", "0,0"), "with a zero");
  ExpectBadHeader(Entry("t", "F32", "", "0,4"), "shape []");
}

TEST_F(SafetensorsTest, UnknownDtypesAreRefusedByName) {
  for (const char* dtype : {"F64", "I8", "F8_E4M3", "BOOL", "f32", ""}) {
    ExpectError(FileOf(absl::StrCat("{", Entry("t", dtype, "4", "0,16"), "}"), 16),
                absl::StatusCode::kUnimplemented, absl::StrCat("\"t\" has dtype ", dtype));
  }
}

TEST_F(SafetensorsTest, HeadersOfAnotherFormAreRefused) {
  for (const char* bad : {
           R"("t":1)",
           R"("t":null)",
           R"("t":[1])",
           R"("t":"text")",
           R"("t":{})",
           R"("t":{"dtype":"F32","shape":[4]})",
           R"("t":{"dtype":["F32"],"shape":[4],"data_offsets":[0,16]})",
           R"("t":{"dtype":1,"shape":[4],"data_offsets":[0,16]})",
           R"("t":{"dtype":"F32","shape":4,"data_offsets":[0,16]})",
           R"("t":{"dtype":"F32","shape":"4","data_offsets":[0,16]})",
           R"("t":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]})",
           R"("t":{"dtype":"F32","shape":[4.0],"data_offsets":[0,16]})",
           R"("t":{"dtype":"F32","shape":[[4]],"data_offsets":[0,16]})",
           R"("t":{"dtype":"F32","shape":[{}],"data_offsets":[0,16]})",
           R"("t":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,16]})",
           R"("t":{"dtype":"F32","shape":[4],"data_offsets":[0]})",
           R"("t":{"dtype":"F32","shape":[4],"data_offsets":[0,16,16]})",
           R"("t":{"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551616]})",
           R"("t":{"dtype":"F32","shape":[4],"data_offsets":[0,16],"extra":1})",
           R"("t":{"dtype":{},"shape":[4],"data_offsets":[0,16]})",
           R"("__metadata__":{"a":{}})",
           R"("__metadata__":{"a":1})",
           R"("__metadata__":[])",
           R"("__metadata__":"x")",
           R"("":{"dtype":"F32","shape":[4],"data_offsets":[0,16]})",
           R"("t")",
       }) {
    const absl::Status status = Open(FileOf(absl::StrCat("{", bad, "}"), 16)).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << bad << ": " << status;
  }
  for (const char* bad : {"{", "{}{}", "{\"a\"}", "{} x", "{\"\xff\":1}", "{]"}) {
    ExpectError(FileOf(bad, 16), absl::StatusCode::kDataLoss, "JSON");
  }
}

TEST_F(SafetensorsTest, AFileCutAnywhereIsRefused) {
  const std::string whole = FileOf(absl::StrCat("{", Entry("t", "F32", "4", "0,16"), "}"), 16);
  ASSERT_TRUE(Open(whole).ok());
  for (size_t n = 0; n < whole.size(); ++n) {
    const absl::Status status = Open(whole.substr(0, n)).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << n << ": " << status;
  }
}

TEST_F(SafetensorsTest, OtherFilesAreNamed) {
  ExpectError("<!DOCTYPE html><html></html>", absl::StatusCode::kDataLoss, "web page");
  ExpectError("version https://git-lfs.github.com/spec/v1\n", absl::StatusCode::kDataLoss,
              "git-lfs pointer");
  ExpectError(GgufBytes(0, 0).bytes(), absl::StatusCode::kDataLoss, "GGUF");
}

TEST(SafetensorsIndexTest, GivesTheFileOfEachTensor) {
  const auto map = ParseSafetensorsIndex(
      R"({"metadata":{"total_size":12,"note":null,"f":1.5},"weight_map":{"a":"m1","b":"m2"}})",
      "i");
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_THAT(*map, ElementsAre(Pair("a", "m1"), Pair("b", "m2")));
}

TEST(SafetensorsIndexTest, RefusesAnotherForm) {
  for (const char* bad : {
           "",
           "[]",
           "{}",
           "1",
           "\"text\"",
           "null",
           R"({"weight_map":{}})",
           R"({"weight_map":[]})",
           R"({"weight_map":"a"})",
           R"({"weight_map":1})",
           R"({"weight_map":{"a":1}})",
           R"({"weight_map":{"a":{}}})",
           R"({"weight_map":{"a":["f"]}})",
           R"({"weight_map":{"a":"f","a":"g"}})",
           R"({"weight_map":{"a":"f"},"weight_map":{"b":"g"}})",
           R"({"weight_map":{"a":"../f"}})",
           R"({"weight_map":{"a":"/etc/f"}})",
           R"({"weight_map":{"a":".."}})",
           R"({"weight_map":{"a":""}})",
           R"({"weight_map":{"":"f"}})",
           R"({"other":{"a":"f"}})",
       }) {
    const absl::Status status = ParseSafetensorsIndex(bad, "folder/index").status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << bad << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("folder/index"));
  }
}

}  // namespace
}  // namespace sluice
