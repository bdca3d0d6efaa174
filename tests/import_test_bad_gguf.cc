// Hand-made malformed GGUF files: each class gives an error that names the file and the field, in
// under a second and in bounded memory.
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/gguf.h"
#include "layout/model_source.h"
#include "tests/cost_bound.h"
#include "tests/import_test_files.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class BadGgufTest : public ::testing::Test {
 protected:
  // Opening it as a model costs no more, however far that gets.
  absl::Status Open(const std::string& bytes) {
    WriteFile(path_, bytes);
    {
      const CostBound bound;
      EXPECT_FALSE(OpenModelSource(path_, {}).ok());
    }
    const CostBound bound;
    return GgufFile::Open(path_).status();
  }

  // Expects an error of `code` whose message names the file and holds `what`.
  void ExpectError(const std::string& bytes, absl::StatusCode code, const std::string& what) {
    const absl::Status status = Open(bytes);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("bad.gguf"), HasSubstr(what)));
  }
  void ExpectDataLoss(const GgufBytes& file, const std::string& what) {
    ExpectError(file.bytes(), absl::StatusCode::kDataLoss, what);
  }

  TempDir dir_;
  std::string path_ = dir_.File("bad.gguf");
};

// One tensor `dims` of type `type` at `offset`, then 64 bytes of data.
GgufBytes OneTensor(const std::vector<uint64_t>& dims, uint32_t type = 0, uint64_t offset = 0) {
  return GgufBytes(1, 0).Tensor("weights", dims, type, offset).PadTo(32).Data(64);
}

TEST_F(BadGgufTest, AValidFileOfTheBuilderOpens) {
  EXPECT_TRUE(Open(OneTensor({16}).bytes()).ok());
  EXPECT_TRUE(Open(OneTensor({4, 2, 1, 2}).bytes()).ok());
}

TEST_F(BadGgufTest, SizeProductsThatOverflowAreRefused) {
  const uint64_t max = INT64_MAX;
  ExpectDataLoss(OneTensor({max, 2, 1, 1}), "\"weights\"");
  ExpectDataLoss(OneTensor({UINT64_MAX, 2, 1, 1}), "\"weights\"");
  ExpectDataLoss(OneTensor({(1ull << 42) + 1}), "\"weights\"");
  ExpectDataLoss(OneTensor({1ull << 32, 1ull << 32}), "\"weights\"");
  ExpectDataLoss(OneTensor({1ull << 62}), "\"weights\"");
  ExpectDataLoss(OneTensor({32, 1ull << 60}, 8), "\"weights\"");
}

TEST_F(BadGgufTest, DimensionCountAndZeroDimensionsAreRefused) {
  ExpectDataLoss(OneTensor({}), "0 dimensions");
  ExpectDataLoss(OneTensor({1, 1, 1, 1, 1}), "5 dimensions");
  ExpectDataLoss(GgufBytes(1, 0).String("weights").Put<uint32_t>(0xffffffff).Data(64),
                 "4294967295 dimensions");
  ExpectDataLoss(OneTensor({0}), "dimension of 0");
  ExpectDataLoss(OneTensor({4, 0}), "dimension of 0");
  ExpectDataLoss(OneTensor({static_cast<uint64_t>(-4)}), "dimension of -4");
}

TEST_F(BadGgufTest, RowsThatAreNotWholeBlocksAreRefused) {
  ExpectDataLoss(OneTensor({16}, 2), "whole blocks of 32");
  ExpectDataLoss(OneTensor({128, 2}, 12), "whole blocks of 256");
}

TEST_F(BadGgufTest, HugeCountsAndLengthsAreRefusedBeforeAllocating) {
  for (const uint64_t n :
       {uint64_t{1} << 63, UINT64_MAX, (uint64_t{1} << 48) - 1, uint64_t{1000}}) {
    ExpectDataLoss(GgufBytes(n, 0).Data(64), "tensor count");
    ExpectDataLoss(GgufBytes(0, n).Data(64), "metadata count");
    ExpectDataLoss(GgufBytes(0, 1).Length(n).Data(64), "metadata key 0");
    ExpectDataLoss(GgufBytes(1, 0).Length(n).Data(64), "tensor 0");
    ExpectDataLoss(GgufBytes(0, 1).String("key").Put<uint32_t>(8).Length(n).Data(64), "\"key\"");
    for (const uint32_t type : {0u, 7u, 8u, 12u}) {
      ExpectDataLoss(GgufBytes(0, 1).ArrayEntry("key", type, n).Data(64), "\"key\"");
    }
  }
}

TEST_F(BadGgufTest, MoreMetadataThanMemoryAllowsIsRefused) {
  // Real bytes stand behind the count: 4 million empty strings would take 128 MiB of objects.
  ExpectDataLoss(GgufBytes(0, 1).ArrayEntry("key", 8, 4u << 20).Raw(std::string(32 << 20, '\0')),
                 "more than 40960 KiB");
  ExpectDataLoss(GgufBytes(0, 1).ArrayEntry("key", 0, 32u << 20).Raw(std::string(32 << 20, '\0')),
                 "more than 40960 KiB");
}

// A million empty strings, which take 32 MiB.
void PutManyStrings(GgufBytes& file, std::string_view key) {
  file.ArrayEntry(key, 8, 1 << 20).Raw(std::string(8 << 20, '\0'));
}

TEST_F(BadGgufTest, MoreTokensThanTheEmbeddingHasRowsAreRefusedBeforeTheyAreCopied) {
  GgufBytes file(1, 9);
  file.StringEntry("general.architecture", "llama").StringEntry("tokenizer.ggml.model", "llama");
  const std::pair<const char*, uint32_t> sizes[] = {{"block_count", 1},
                                                    {"embedding_length", 32},
                                                    {"feed_forward_length", 32},
                                                    {"context_length", 32},
                                                    {"attention.head_count", 1}};
  for (const auto& [key, value] : sizes) file.Entry(absl::StrCat("llama.", key), 4, value);
  PutManyStrings(file, "tokenizer.ggml.tokens");
  file.Entry("llama.attention.layer_norm_rms_epsilon", 6, 1e-5f);
  WriteFile(path_, file.Tensor("token_embd.weight", {32, 8}, 0, 0).PadTo(32).Data(1024).bytes());
  const CostBound bound;
  const absl::Status status = OpenModelSource(path_, {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("1048576 tokens"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("8 rows"));
}

TEST_F(BadGgufTest, PartsOfASplitTogetherTakeNoMoreThanOneFile) {
  constexpr uint16_t kParts = 3;
  for (uint16_t part = 0; part < kParts; ++part) {
    GgufBytes file(0, 3);
    file.Entry("split.no", 2, part).Entry("split.count", 2, kParts);
    PutManyStrings(file, "tokenizer.ggml.tokens");
    WriteFile(dir_.File(absl::StrCat("bad-0000", part + 1, "-of-00003.gguf")), file.bytes());
  }
  const CostBound bound;
  const auto file = GgufFile::Open(dir_.File("bad-00001-of-00003.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Has("tokenizer.ggml.tokens"));
}

TEST_F(BadGgufTest, ALaterPartIsCheckedLikeTheFirst) {
  const auto open = [&](const GgufBytes& second) {
    for (const int part : {1, 2}) {
      GgufBytes file(0, 2);
      file.Entry<uint16_t>("split.no", 2, 0).Entry<uint16_t>("split.count", 2, 2);
      WriteFile(dir_.File(absl::StrCat("bad-0000", part, "-of-00002.gguf")),
                part == 1 ? file.bytes() : second.bytes());
    }
    const CostBound bound;
    const absl::Status status = GgufFile::Open(dir_.File("bad-00001-of-00002.gguf")).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("bad-00002-of-00002.gguf"));
    return std::string(status.message());
  };
  EXPECT_THAT(open(GgufBytes(0, 1).Entry<uint64_t>("key", 13, 0)), HasSubstr("unknown type 13"));
  EXPECT_THAT(open(GgufBytes(0, 1).ArrayEntry("key", 9, 1)), HasSubstr("array of arrays"));
  EXPECT_THAT(open(GgufBytes(0, 1).ArrayEntry("key", 12, 1ull << 61)), HasSubstr("\"key\""));
  EXPECT_THAT(open(GgufBytes(0, 1).ArrayEntry("key", 8, 1ull << 61).Data(64)),
              HasSubstr("\"key\""));
  EXPECT_THAT(open(GgufBytes(0, 1).String("key").Put<uint32_t>(8).Length(100).Data(8)),
              HasSubstr("\"key\""));
  EXPECT_THAT(open(GgufBytes(0, 1).ArrayEntry("split.x", 0, 1 << 20).Data(1 << 20)),
              HasSubstr("more than 64 KiB"));
}

TEST_F(BadGgufTest, BadKeysAndValueTypesAreRefused) {
  ExpectDataLoss(GgufBytes(0, 1).StringEntry("", "value").Data(64), "metadata key 0 is empty");
  ExpectDataLoss(GgufBytes(0, 1).Entry<uint64_t>("key", 13, 0).Data(64), "unknown type 13");
  ExpectDataLoss(GgufBytes(0, 1).Entry<uint64_t>("key", 0xffffffff, 0).Data(64), "unknown type");
  ExpectDataLoss(GgufBytes(0, 1).ArrayEntry("key", 13, 0).Data(64), "unknown type 13");
  ExpectDataLoss(GgufBytes(0, 1).ArrayEntry("key", 9, 1).Data(64), "array of arrays");
  ExpectDataLoss(GgufBytes(0, 1).Entry<uint8_t>("key", 7, 2).Data(64), "bool of 2");
}

TEST_F(BadGgufTest, DuplicateKeysAndTensorNamesAreRefused) {
  ExpectDataLoss(GgufBytes(0, 2).StringEntry("key", "a").StringEntry("key", "b"),
                 "\"key\" is given twice");
  ExpectDataLoss(
      GgufBytes(2, 0).Tensor("weights", {8}, 0, 0).Tensor("weights", {8}, 0, 32).PadTo(32).Data(64),
      "\"weights\" is listed twice");
  ExpectDataLoss(GgufBytes(1, 0).Tensor("", {8}, 0, 0).PadTo(32).Data(64),
                 "the name of tensor 0 is empty");
}

TEST_F(BadGgufTest, AlignmentMustBeAnUnsignedPowerOfTwo) {
  for (const uint32_t a : {0u, 1u, 4u, 33u, 1u << 30, 1u << 21, 0xffffffffu}) {
    ExpectDataLoss(GgufBytes(0, 1).Entry<uint32_t>("general.alignment", 4, a),
                   absl::StrCat("\"general.alignment\" is ", a));
  }
  ExpectDataLoss(GgufBytes(0, 1).Entry<int32_t>("general.alignment", 5, 32), "unsigned integer");
  ExpectDataLoss(GgufBytes(0, 1).Entry<float>("general.alignment", 6, 32.0f), "unsigned integer");
  ExpectDataLoss(GgufBytes(0, 1).StringEntry("general.alignment", "32"), "unsigned integer");
}

TEST_F(BadGgufTest, TensorRangesMustBeAlignedInsideTheFileAndApart) {
  ExpectDataLoss(OneTensor({4}, 0, 4), "not a multiple of the alignment 32");
  ExpectDataLoss(OneTensor({17}), "truncated or damaged");
  ExpectDataLoss(OneTensor({16}, 0, 32), "truncated or damaged");
  ExpectDataLoss(OneTensor({1}, 0, 1ull << 40), "truncated or damaged");
  ExpectDataLoss(OneTensor({1}, 0, UINT64_MAX - 31), "truncated or damaged");
  ExpectDataLoss(GgufBytes(2, 0).Tensor("a", {16}, 0, 0).Tensor("b", {8}, 0, 32).PadTo(32).Data(64),
                 "\"a\" and \"b\" overlap");
  ExpectDataLoss(GgufBytes(2, 0).Tensor("a", {8}, 0, 0).Tensor("b", {8}, 0, 0).PadTo(32).Data(64),
                 "overlap");
  // The header ends right at the end of the file: no data section at all.
  ExpectDataLoss(GgufBytes(1, 0).Tensor("a", {1}, 0, 0), "truncated or damaged");
}

TEST_F(BadGgufTest, UnknownElementTypesAreNamed) {
  ExpectError(OneTensor({256}, 16).bytes(), absl::StatusCode::kUnimplemented,
              "\"weights\" has element type 16 (IQ2_XXS)");
  ExpectError(OneTensor({256}, 200).bytes(), absl::StatusCode::kUnimplemented,
              "\"weights\" has element type 200");
}

TEST_F(BadGgufTest, AFileCutAnywhereIsRefused) {
  const std::string whole = GgufBytes(2, 3)
                                .StringEntry("general.architecture", "llama")
                                .ArrayEntry("list", 8, 2)
                                .String("one")
                                .String("two")
                                .Entry<float>("f", 6, 1.0f)
                                .Tensor("a", {8}, 0, 0)
                                .Tensor("b", {8}, 0, 32)
                                .PadTo(32)
                                .Data(64)
                                .bytes();
  ASSERT_TRUE(Open(whole).ok());
  for (size_t n = 0; n < whole.size(); ++n) {
    const absl::Status status = Open(whole.substr(0, n));
    EXPECT_TRUE(absl::IsDataLoss(status)) << n << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("bad.gguf"));
  }
}

TEST_F(BadGgufTest, OtherVersionsAndByteOrdersAreNamed) {
  ExpectError(GgufBytes(0, 0, 1).bytes(), absl::StatusCode::kUnimplemented, "GGUF version 1");
  ExpectError(GgufBytes(0, 0, 4).bytes(), absl::StatusCode::kFailedPrecondition, "version 4");
  ExpectError(GgufBytes(0, 0, 0).bytes(), absl::StatusCode::kFailedPrecondition, "version 0");
  ExpectError(GgufBytes(0, 0, 3u << 24).bytes(), absl::StatusCode::kUnimplemented, "big-endian");
}

TEST_F(BadGgufTest, WhatIsNoModelAtAllIsSaidPlainly) {
  const auto expect = [&](std::string_view bytes, const std::string& what) {
    ExpectError(std::string(bytes), absl::StatusCode::kDataLoss, what);
  };
  using namespace std::string_view_literals;
  expect("", "is empty");
  expect("G", "is not a GGUF file");
  expect("<!DOCTYPE html><html>", "web page");
  expect("\r\n  <HTML lang=en>", "web page");
  expect("{\"error\":\"Repository not found\"}", "error message");
  expect("version https://git-lfs.github.com/spec/v1\noid sha256:0", "git-lfs pointer");
  for (const auto magic : {"lmgg"sv, "fmgg"sv, "tjgg"sv, "ggml"sv, "ggjt"sv}) {
    expect(std::string(magic) + "\1\0\0\0 old", "old GGML file");
  }
  expect("PK\3\4 archive/data.pkl"sv, "zip archive");
  expect("\x80\2}q\0X"sv, "pickle");
  expect("\x40\0\0\0\0\0\0\0{\"__metadata__\":{}}"sv, "safetensors");
  expect("\x1f\x8b\x08 gzip"sv, "gzip");
  expect("\x89SLUICE\n"sv, ".sluice");
  expect(
      "\x7f"
      "ELF\2\1\1"sv,
      "7f 45 4c 46");
}

TEST_F(BadGgufTest, WhatIsNoRegularFileIsRefusedWithoutWaiting) {
  const std::string fifo = dir_.File("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(std::string(GgufFile::Open(fifo).status().message()), HasSubstr("is a FIFO"));
  EXPECT_THAT(std::string(GgufFile::Open(dir_.path()).status().message()),
              HasSubstr("is a directory"));
  EXPECT_THAT(std::string(GgufFile::Open("/dev/zero").status().message()), HasSubstr("a device"));
  EXPECT_TRUE(absl::IsNotFound(GgufFile::Open(dir_.File("absent")).status()));
}

}  // namespace
}  // namespace sluice
