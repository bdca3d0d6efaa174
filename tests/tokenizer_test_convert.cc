// Real vocabularies written in the formats of Hugging Face and read back: they must give the ids
// that they give as GGUF.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "layout/tokenizer_import.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/test_paths.h"
#include "tests/tokenizer_test_files.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr char kMark[] = "\xE2\x96\x81";

class TokenizerConvertTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!SharedPath("tokenizers") || !SharedPath("text/wikitext2-test.txt")) {
      GTEST_SKIP() << "the shared folder with vocabularies and texts is not there";
    }
    std::ostringstream text;
    text << std::ifstream(*SharedPath("text/wikitext2-test.txt"), std::ios::binary).rdbuf();
    text_ = text.str().substr(0, 300000);
    std::ostringstream cases;
    cases << std::ifstream(*SharedPath("tokenizers/ggml-vocab-gpt-2.gguf.inp"), std::ios::binary)
                 .rdbuf();
    text_ += cases.str();
  }

  static TokenizerData Load(const std::string& name) {
    const auto file = GgufFile::Open(*SharedPath("tokenizers/ggml-vocab-" + name + ".gguf"));
    EXPECT_TRUE(file.ok()) << file.status();
    auto imported = ImportGgufTokenizer(**file);
    EXPECT_TRUE(imported.ok()) << imported.status();
    return std::move(imported->data);
  }

  void ExpectSameIds(const TokenizerData& original, const HuggingFaceTokenizerFiles& files) {
    const auto imported = ImportHuggingFaceTokenizer(files, "folder");
    ASSERT_TRUE(imported.ok()) << imported.status();
    const auto a = Tokenizer::Create(original);
    const auto b = Tokenizer::Create(imported->data);
    ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
    const auto ids = (*b)->Encode(text_);
    EXPECT_TRUE((*a)->Encode(text_) == ids);
    EXPECT_EQ((*b)->Decode(ids), text_);
  }

  std::string text_;
};

json VocabOf(const TokenizerData& data) {
  json vocab = json::object();
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    if (data.types[id] != TokenType::kUserDefined) vocab[data.tokens[id]] = id;
  }
  return vocab;
}

json AddedTokensOf(const TokenizerData& data) {
  json added = json::array();
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    const TokenType type = data.types[id];
    if (type != TokenType::kUserDefined && type != TokenType::kControl) continue;
    added.push_back(
        {{"id", id}, {"content", data.tokens[id]}, {"special", type == TokenType::kControl}});
  }
  return added;
}

TEST_F(TokenizerConvertTest, ByteLevelBpeAsTokenizerJson) {
  const TokenizerData data = Load("gpt-2");
  const std::string text =
      json({{"model", {{"type", "BPE"}, {"vocab", VocabOf(data)}, {"merges", data.merges}}},
            {"added_tokens", AddedTokensOf(data)},
            {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}}})
          .dump();
  ExpectSameIds(data, {.tokenizer_json = text});
}

TEST_F(TokenizerConvertTest, DeepSeekCoderAsTokenizerJson) {
  const TokenizerData data = Load("deepseek-coder");
  json steps = json::array();
  for (const char* regex : {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+"}) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", regex}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  const std::string text =
      json({{"model", {{"type", "BPE"}, {"vocab", VocabOf(data)}, {"merges", data.merges}}},
            {"added_tokens", AddedTokensOf(data)},
            {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", steps}}}})
          .dump();
  const std::string config = json({{"bos_token", {{"content", data.tokens[data.bos]}}},
                                   {"eos_token", data.tokens[data.eos]},
                                   {"add_bos_token", true}})
                                 .dump();
  ExpectSameIds(data, {.tokenizer_json = text, .tokenizer_config = config});
}

// The merges that Hugging Face's converter derives from scores: for each token all pairs of tokens
// that make it, the tokens by falling score.
json MergesFromScores(const TokenizerData& data) {
  std::unordered_map<std::string, size_t> ids;
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    if (data.types[id] == TokenType::kNormal) ids.emplace(data.tokens[id], id);
  }
  std::vector<std::tuple<float, size_t, size_t>> merges;  // minus score, left, right
  for (const auto& [token, id] : ids) {
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut));
      const auto right = ids.find(token.substr(cut));
      if (left == ids.end() || right == ids.end()) continue;
      merges.emplace_back(-data.scores[id], left->second, right->second);
    }
  }
  std::sort(merges.begin(), merges.end());
  json list = json::array();
  for (const auto& [score, left, right] : merges) {
    list.push_back(json::array({data.tokens[left], data.tokens[right]}));
  }
  return list;
}

TEST_F(TokenizerConvertTest, SentencePieceAsTokenizerJson) {
  const TokenizerData data = Load("llama-spm");
  const std::string text =
      json({{"model",
             {{"type", "BPE"},
              {"byte_fallback", true},
              {"unk_token", "<unk>"},
              {"vocab", VocabOf(data)},
              {"merges", MergesFromScores(data)}}},
            {"added_tokens", AddedTokensOf(data)},
            {"normalizer",
             {{"type", "Sequence"},
              {"normalizers",
               {{{"type", "Prepend"}, {"prepend", kMark}},
                {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kMark}}}}}}})
          .dump();
  const std::string config = R"({"bos_token": "<s>", "eos_token": "</s>"})";
  ExpectSameIds(data, {.tokenizer_json = text, .tokenizer_config = config});
}

TEST_F(TokenizerConvertTest, SentencePieceAsTokenizerModel) {
  const TokenizerData data = Load("llama-spm");
  const std::string model = SentencePieceModel(data);
  ExpectSameIds(data, {.tokenizer_model = model});
}

}  // namespace
}  // namespace sluice
