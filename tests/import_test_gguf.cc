// Well-formed GGUF files: what the writer writes, what others wrote, split files.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/gguf.h"
#include "layout/gguf_writer.h"
#include "tests/import_test_files.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<uint64_t> Shape(std::initializer_list<uint64_t> dims) { return dims; }

absl::Status OpenStatus(const std::string& path) { return GgufFile::Open(path).status(); }

std::vector<float> ReadFloats(const GgufFile& file, const GgufTensor& tensor) {
  std::vector<std::byte> raw(tensor.n_bytes);
  EXPECT_TRUE(file.ReadTensor(tensor, 0, raw).ok());
  std::vector<float> out(raw.size() / BlockBytes(tensor.type) * BlockElements(tensor.type));
  DecodeSource(tensor.type, raw, out);
  return out;
}

TEST(GgufTest, ReadsBackWhatTheWriterWrote) {
  const TempDir dir;
  GgufWriter writer;
  writer.AddString("general.architecture", "llama");
  writer.AddUint16("u16", 65535);
  writer.AddUint32("u32", 4000000000u);
  writer.AddInt32("i32", -7);
  writer.AddFloat32("f32", 0.5f);
  writer.AddBool("bool", true);
  writer.AddInt32Array("ints", std::vector<int32_t>{1, -2, 3});
  writer.AddFloat32Array("floats", std::vector<float>{0.25f, -1.0f});
  writer.AddStringArray("strings", std::vector<std::string>{"a", "", "a longer piece of text"});
  writer.DeclareTensor("a", SourceType::kF32, Shape({2, 3}));
  writer.DeclareTensor("b", SourceType::kQ8_0, Shape({1, 32}));
  const uint64_t promised = writer.FileBytes();
  ASSERT_TRUE(writer.Start(dir.File("m.gguf"), false).ok());
  ASSERT_TRUE(writer.WriteFloats(std::vector<float>{1, 2, 3, 4}).ok());
  ASSERT_TRUE(writer.WriteFloats(std::vector<float>{5, 6}).ok());
  ASSERT_TRUE(writer.WriteFloats(std::vector<float>(32, 127.0f)).ok());
  ASSERT_TRUE(writer.Finish().ok());
  EXPECT_EQ(ReadFile(dir.File("m.gguf")).size(), promised);

  const auto opened = GgufFile::Open(dir.File("m.gguf"));
  ASSERT_TRUE(opened.ok()) << opened.status();
  const GgufFile& file = **opened;
  EXPECT_EQ(file.GetString("general.architecture").value(), "llama");
  EXPECT_EQ(file.GetUint("u16").value(), 65535u);
  EXPECT_EQ(file.GetUint("u32").value(), 4000000000u);
  EXPECT_EQ(file.GetFloat("i32").value(), -7.0);
  EXPECT_EQ(file.GetFloat("f32").value(), 0.5);
  EXPECT_TRUE(file.GetBool("bool").value());
  EXPECT_THAT(file.GetIntArray("ints").value(), ElementsAre(1, -2, 3));
  EXPECT_THAT(file.GetFloatArray("ints").value(), ElementsAre(1.0, -2.0, 3.0));
  EXPECT_THAT(file.GetFloatArray("floats").value(), ElementsAre(0.25, -1.0));
  EXPECT_THAT(file.GetStringArray("strings").value(),
              ElementsAre("a", "", "a longer piece of text"));
  ASSERT_EQ(file.tensors().size(), 2u);
  const GgufTensor* a = file.FindTensor("a");
  const GgufTensor* b = file.FindTensor("b");
  ASSERT_TRUE(a != nullptr && b != nullptr);
  EXPECT_EQ(file.FindTensor("c"), nullptr);
  EXPECT_THAT(a->shape, ElementsAre(2, 3));
  EXPECT_THAT(ReadFloats(file, *a), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(ReadFloats(file, *b), std::vector<float>(32, 127.0f));
}

TEST(GgufTest, TypedAccessNamesKeyAndWantedType) {
  const TempDir dir;
  GgufWriter writer;
  writer.AddInt32("negative", -1);
  writer.AddString("text", "4");
  writer.AddFloat32Array("fractions", std::vector<float>{0.5f});
  ASSERT_TRUE(writer.Start(dir.File("m.gguf"), false).ok());
  ASSERT_TRUE(writer.Finish().ok());
  const auto file = GgufFile::Open(dir.File("m.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  for (const char* key : {"negative", "text", "fractions"}) {
    const absl::Status status = (*file)->GetUint(key).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("m.gguf"), HasSubstr(key)));
  }
  EXPECT_TRUE(absl::IsInvalidArgument((*file)->GetFloat("text").status()));
  EXPECT_TRUE(absl::IsInvalidArgument((*file)->GetBool("negative").status()));
  EXPECT_TRUE(absl::IsInvalidArgument((*file)->GetString("negative").status()));
  EXPECT_TRUE(absl::IsInvalidArgument((*file)->GetStringArray("text").status()));
  EXPECT_TRUE(absl::IsInvalidArgument((*file)->GetFloatArray("text").status()));
  EXPECT_TRUE(absl::IsInvalidArgument((*file)->GetIntArray("fractions").status()));
  EXPECT_TRUE(absl::IsNotFound((*file)->GetUint("absent").status()));
  EXPECT_TRUE((*file)->Has("text"));
  EXPECT_TRUE(absl::IsInvalidArgument((*file)->TakeStringArray("text").status()));
  (*file)->DropMetadata("text");
  EXPECT_FALSE((*file)->Has("text"));
  EXPECT_TRUE(absl::IsNotFound((*file)->TakeStringArray("text").status()));
}

TEST(GgufTest, ReadTensorRefusesRangesOutsideAndReportsAShrunkFile) {
  const TempDir dir;
  const std::string bytes = GgufBytes(1, 0).Tensor("t", {8}, 0, 0).PadTo(32).Data(32).bytes();
  WriteFile(dir.File("m.gguf"), bytes);
  const auto file = GgufFile::Open(dir.File("m.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  const GgufTensor& tensor = (*file)->tensors()[0];
  std::vector<std::byte> dst(16);
  EXPECT_TRUE((*file)->ReadTensor(tensor, 16, dst).ok());
  EXPECT_TRUE(absl::IsOutOfRange((*file)->ReadTensor(tensor, 17, dst)));
  EXPECT_TRUE(absl::IsOutOfRange((*file)->ReadTensor(tensor, UINT64_MAX, dst)));
  std::filesystem::resize_file(dir.File("m.gguf"), bytes.size() - 1);
  const absl::Status status = (*file)->ReadTensor(tensor, 16, dst);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("m.gguf"), HasSubstr("\"t\"")));
}

TEST(GgufTest, HonoursTheAlignmentOfTheFile) {
  const TempDir dir;
  WriteFile(dir.File("m.gguf"), GgufBytes(2, 1, 2)
                                    .Entry<uint32_t>("general.alignment", 4, 256)
                                    .Tensor("a", {1}, 0, 0)
                                    .Tensor("b", {1}, 0, 256)
                                    .PadTo(256)
                                    .Data(260)
                                    .bytes());
  const auto file = GgufFile::Open(dir.File("m.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors()[1].offset, 512u);
}

TEST(GgufTest, RealModelAndVocabulariesOpen) {
  const auto model = SharedPath("models/stories260K/stories260K.gguf");
  if (!model) GTEST_SKIP() << "the shared folder is not there (set SLUICE_SHARED)";
  const auto file = GgufFile::Open(*model);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 47u);
  EXPECT_THAT((*file)->FindTensor("blk.4.ffn_down.weight")->shape, ElementsAre(64, 172));
  struct Vocabulary {
    const char* name;
    size_t tokens;
  };
  for (const Vocabulary& v : {Vocabulary{"deepseek-coder", 32256},
                              {"falcon", 65024},
                              {"gpt-2", 50257},
                              {"llama-spm", 32000}}) {
    const auto path = SharedPath(absl::StrCat("tokenizers/ggml-vocab-", v.name, ".gguf"));
    ASSERT_TRUE(path);
    const auto vocabulary = GgufFile::Open(*path);
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
    EXPECT_EQ((*vocabulary)->GetStringArray("tokenizer.ggml.tokens").value().size(), v.tokens);
  }
}

TEST(GgufTest, AVocabularyLargerThanAnyInUseOpens) {
  const TempDir dir;
  std::vector<std::string> tokens, merges;
  for (int i = 0; i < 262144; ++i) tokens.push_back(absl::StrCat("token", i));
  for (int i = 0; i < 500000; ++i) merges.push_back(absl::StrCat("t", i, " s"));
  GgufWriter writer;
  writer.AddStringArray("tokenizer.ggml.tokens", tokens);
  writer.AddStringArray("tokenizer.ggml.merges", merges);
  writer.AddFloat32Array("tokenizer.ggml.scores", std::vector<float>(tokens.size()));
  ASSERT_TRUE(writer.Start(dir.File("m.gguf"), false).ok());
  ASSERT_TRUE(writer.Finish().ok());
  const auto file = GgufFile::Open(dir.File("m.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto read = (*file)->GetStringArray("tokenizer.ggml.merges");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(std::equal(read->begin(), read->end(), merges.begin(), merges.end()));
}

// Writes part `no` of `count` with one tensor, under the name of part `named`.
void WritePart(const TempDir& dir, int no, int count, int named, int total_tensors,
               const std::string& tensor) {
  GgufWriter writer;
  if (no == 0) writer.AddString("general.architecture", "llama");
  writer.AddUint16("split.no", static_cast<uint16_t>(no));
  writer.AddUint16("split.count", static_cast<uint16_t>(count));
  writer.AddInt32("split.tensors.count", total_tensors);
  writer.DeclareTensor(tensor, SourceType::kF32, Shape({1}));
  const std::string name = absl::StrCat("m-0000", named, "-of-00003.gguf");
  ASSERT_TRUE(writer.Start(dir.File(name), true).ok());
  ASSERT_TRUE(writer.WriteFloats(std::vector<float>{static_cast<float>(no)}).ok());
  ASSERT_TRUE(writer.Finish().ok());
}

class SplitGgufTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 3; ++i) WritePart(dir_, i, 3, i + 1, 3, absl::StrCat("t", i));
  }
  std::string Part(int n) const { return dir_.File(absl::StrCat("m-0000", n, "-of-00003.gguf")); }

  TempDir dir_;
};

TEST_F(SplitGgufTest, AnyPartOpensTheWholeModel) {
  for (int n = 1; n <= 3; ++n) {
    const auto file = GgufFile::Open(Part(n));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->GetString("general.architecture").value(), "llama");
    ASSERT_EQ((*file)->tensors().size(), 3u);
    for (size_t t = 0; t < 3; ++t) {
      EXPECT_THAT(ReadFloats(**file, (*file)->tensors()[t]), ElementsAre(static_cast<float>(t)));
    }
  }
}

TEST_F(SplitGgufTest, NamesTheMissingPart) {
  std::filesystem::remove(Part(2));
  const absl::Status status = OpenStatus(Part(1));
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("m-00002-of-00003.gguf"), HasSubstr("part 2 of 3 is missing")));
}

TEST_F(SplitGgufTest, RefusesPartsThatDoNotBelongTogether) {
  WritePart(dir_, 2, 3, 2, 3, "t1");  // part 3 under the name of part 2
  EXPECT_TRUE(absl::IsDataLoss(OpenStatus(Part(1))));
  WritePart(dir_, 1, 4, 2, 3, "t1");  // another count
  EXPECT_TRUE(absl::IsDataLoss(OpenStatus(Part(1))));
  WritePart(dir_, 1, 3, 2, 3, "t0");  // a tensor twice
  EXPECT_THAT(std::string(OpenStatus(Part(1)).message()), HasSubstr("\"t0\""));
  WritePart(dir_, 0, 3, 1, 4, "t0");  // fewer tensors than promised
  WritePart(dir_, 1, 3, 2, 3, "t1");
  EXPECT_THAT(std::string(OpenStatus(Part(1)).message()), HasSubstr("split.tensors.count"));
}

TEST_F(SplitGgufTest, NamesThePatternWhenAPartWasRenamed) {
  std::filesystem::rename(Part(1), dir_.File("model.gguf"));
  const absl::Status status = OpenStatus(dir_.File("model.gguf"));
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("-00001-of-00003.gguf"));
}

TEST_F(SplitGgufTest, RefusesAWholeModelNamedLikeAPart) {
  WriteFile(Part(1), GgufBytes(0, 0).bytes());
  EXPECT_THAT(std::string(OpenStatus(Part(1)).message()), HasSubstr("rename it"));
}

TEST(GgufWriterTest, RefusesWhatWouldNotBeAGgufFile) {
  const TempDir dir;
  const auto start = [&](const std::function<void(GgufWriter&)>& declare) {
    GgufWriter writer;
    declare(writer);
    const absl::Status status = writer.Start(dir.File("m.gguf"), false);
    EXPECT_FALSE(std::filesystem::exists(dir.File("m.gguf")));
    return status;
  };
  EXPECT_TRUE(absl::IsInvalidArgument(start([](GgufWriter& w) {
    w.AddBool("k", true);
    w.AddUint32("k", 1);
  })));
  EXPECT_TRUE(absl::IsInvalidArgument(start([](GgufWriter& w) { w.AddBool("", true); })));
  EXPECT_TRUE(absl::IsInvalidArgument(start([](GgufWriter& w) {
    w.DeclareTensor("t", SourceType::kF32, Shape({1}));
    w.DeclareTensor("t", SourceType::kF32, Shape({1}));
  })));
  EXPECT_TRUE(absl::IsInvalidArgument(start([](GgufWriter& w) {
    w.DeclareTensor("t", SourceType::kQ4_0, Shape({4, 33}));
  })));
  EXPECT_TRUE(absl::IsInvalidArgument(start([](GgufWriter& w) {
    w.DeclareTensor("t", SourceType::kF32, Shape({1, 1, 1, 1, 1}));
  })));
}

TEST(GgufWriterTest, RefusesTooMuchAndTooLittleData) {
  const TempDir dir;
  GgufWriter writer;
  writer.DeclareTensor("first", SourceType::kF32, Shape({2}));
  writer.DeclareTensor("second", SourceType::kF32, Shape({2}));
  ASSERT_TRUE(writer.Start(dir.File("m.gguf"), false).ok());
  ASSERT_TRUE(writer.WriteFloats(std::vector<float>{1, 2, 3}).ok());
  const absl::Status status = writer.Finish();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("second"), HasSubstr("4 of 8")));
  EXPECT_FALSE(std::filesystem::exists(dir.File("m.gguf")));
  EXPECT_TRUE(absl::IsInvalidArgument(writer.WriteFloats(std::vector<float>{4, 5})));
}

TEST(GgufWriterTest, RefusesDataBeforeStartAndAfterFinish) {
  const TempDir dir;
  GgufWriter writer;
  writer.DeclareTensor("t", SourceType::kF32, Shape({1}));
  EXPECT_TRUE(absl::IsFailedPrecondition(writer.WriteFloats(std::vector<float>{1})));
  EXPECT_TRUE(absl::IsFailedPrecondition(writer.Finish()));
  ASSERT_TRUE(writer.Start(dir.File("m.gguf"), false).ok());
  ASSERT_TRUE(writer.WriteFloats(std::vector<float>{1}).ok());
  ASSERT_TRUE(writer.Finish().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(writer.Write(std::vector<std::byte>(4))));
}

TEST(GgufWriterTest, BytesMayComeInPiecesOfAnySize) {
  const TempDir dir;
  std::vector<std::byte> data(3 << 20);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 31 >> 8);
  GgufWriter writer;
  writer.DeclareTensor("a", SourceType::kF32, Shape({1 << 18}));
  writer.DeclareTensor("b", SourceType::kF32, Shape({2 << 18}));
  ASSERT_TRUE(writer.Start(dir.File("m.gguf"), false).ok());
  size_t piece = 1;
  for (size_t at = 0; at < data.size(); at += piece, piece = piece * 3 % 1000003) {
    ASSERT_TRUE(writer.Write(std::span(data).subspan(at, std::min(piece, data.size() - at))).ok());
  }
  ASSERT_TRUE(writer.Finish().ok());
  const auto file = GgufFile::Open(dir.File("m.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<std::byte> read(2 << 20);
  ASSERT_TRUE((*file)->ReadTensor(*(*file)->FindTensor("b"), 0, read).ok());
  EXPECT_TRUE(std::equal(read.begin(), read.end(), data.begin() + (1 << 20)));
}

}  // namespace
}  // namespace sluice
