// Real vocabularies against the ids that their own tokenizers give.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "layout/tokenizer_import.h"
#include "runtime/tokenizer/text_stream.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

constexpr std::string_view kSeparator = "\n__ggml_vocab_test__\n";

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<std::string> ReadCases(const std::string& path) {
  const std::string text = ReadAll(path);
  std::vector<std::string> cases;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = text.find(kSeparator, pos);
    cases.push_back(text.substr(pos, end - pos));
    if (end == std::string::npos) break;
    pos = end + kSeparator.size();
  }
  return cases;
}

std::vector<std::vector<int32_t>> ReadExpected(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::vector<int32_t>> expected;
  for (std::string line; std::getline(in, line);) {
    std::istringstream numbers(line);
    expected.emplace_back();
    for (int32_t id; numbers >> id;) expected.back().push_back(id);
  }
  return expected;
}

class TokenizerVectorsTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto path = SharedPath(std::string("tokenizers/ggml-vocab-") + GetParam() + ".gguf");
    if (!path) GTEST_SKIP() << "the shared folder with the vocabularies is not there";
    path_ = *path;
    auto file = GgufFile::Open(path_);
    ASSERT_TRUE(file.ok()) << file.status();
    auto imported = ImportGgufTokenizer(**file);
    ASSERT_TRUE(imported.ok()) << imported.status();
    EXPECT_TRUE(imported->warnings.empty()) << imported->warnings[0];
    auto tokenizer = Tokenizer::Create(std::move(imported->data));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  std::string path_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(TokenizerVectorsTest, GivesThePublishedIds) {
  const auto cases = ReadCases(path_ + ".inp");
  const auto expected = ReadExpected(path_ + ".out");
  ASSERT_GE(cases.size(), 40u);
  ASSERT_EQ(cases.size(), expected.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(tokenizer_->Encode(cases[i], {.add_special = false}), expected[i])
        << "case " << i << ": \"" << cases[i] << "\"";
  }
}

TEST_P(TokenizerVectorsTest, DecodesTheCasesToTheirTexts) {
  for (const std::string& text : ReadCases(path_ + ".inp")) {
    EXPECT_EQ(tokenizer_->Decode(tokenizer_->Encode(text)), text);
  }
}

TEST_P(TokenizerVectorsTest, DecodesLongTextsToWhatWasEncoded) {
  for (const char* name : {"text/tinyshakespeare.txt", "text/wikitext2-test.txt"}) {
    const auto path = SharedPath(name);
    if (!path) GTEST_SKIP() << name << " is not in the shared folder";
    const std::string text = ReadAll(*path);
    const std::vector<int32_t> ids = tokenizer_->Encode(text);
    EXPECT_EQ(tokenizer_->Decode(ids), text);
    TextStream stream(*tokenizer_, /*begins_text=*/true);
    std::string streamed;
    for (const int32_t id : ids) stream.Append(id, streamed);
    stream.Flush(streamed);
    EXPECT_EQ(streamed, text);
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, TokenizerVectorsTest,
                         testing::Values("gpt-2", "llama-spm", "falcon", "deepseek-coder"),
                         [](const auto& suite) {
                           std::string name = suite.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace sluice
