// Vocabularies in GGUF metadata, made by hand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "layout/gguf_writer.h"
#include "layout/tokenizer_import.h"
#include "tests/test_paths.h"
#include "tests/tokenizer_test_data.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<int32_t> TypesOf(const TokenizerData& data) {
  std::vector<int32_t> types;
  for (const TokenType type : data.types) types.push_back(static_cast<int32_t>(type));
  return types;
}

void AddSentencePiece(const TokenizerData& data, GgufWriter& writer) {
  writer.AddString("tokenizer.ggml.model", "llama");
  writer.AddStringArray("tokenizer.ggml.tokens", data.tokens);
  writer.AddFloat32Array("tokenizer.ggml.scores", data.scores);
  writer.AddInt32Array("tokenizer.ggml.token_type", TypesOf(data));
}

void AddByteBpe(const TokenizerData& data, GgufWriter& writer) {
  writer.AddString("tokenizer.ggml.model", "gpt2");
  writer.AddStringArray("tokenizer.ggml.tokens", data.tokens);
  writer.AddStringArray("tokenizer.ggml.merges", data.merges);
  writer.AddInt32Array("tokenizer.ggml.token_type", TypesOf(data));
}

// Imports the file that has the metadata which `add` gives.
absl::StatusOr<ImportedTokenizer> Import(const std::function<void(GgufWriter&)>& add) {
  const TempDir dir;
  const std::string path = dir.File("vocabulary.gguf");
  GgufWriter writer;
  writer.AddString("general.architecture", "llama");
  add(writer);
  absl::Status written = writer.Start(path, /*overwrite=*/false);
  if (written.ok()) written = writer.Finish();
  EXPECT_TRUE(written.ok()) << written;
  const auto file = GgufFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  return ImportGgufTokenizer(**file);
}

TEST(GgufTokenizerTest, FillsInWhatSentencePieceFilesLeaveOut) {
  const TokenizerData data = SmallSentencePiece();
  const auto imported = Import([&](GgufWriter& w) { AddSentencePiece(data, w); });
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data.tokens, data.tokens);
  EXPECT_EQ(imported->data.scores, data.scores);
  EXPECT_EQ(imported->data.types, data.types);
  EXPECT_EQ(imported->data.bos, 1);
  EXPECT_EQ(imported->data.eos, 2);
  EXPECT_EQ(imported->data.unk, 0);
  EXPECT_TRUE(imported->data.add_bos);
  EXPECT_FALSE(imported->data.add_eos);
  EXPECT_EQ(imported->data.space_prefix, SpacePrefix::kEachPart);
  EXPECT_THAT(imported->data.end_ids, ElementsAre(IdOf(data, "<|end|>")));  // known by its text
  EXPECT_THAT(imported->warnings, IsEmpty());
}

TEST(GgufTokenizerTest, FollowsWhatTheFileSays) {
  const TokenizerData data = SmallSentencePiece();
  const auto imported = Import([&](GgufWriter& w) {
    AddSentencePiece(data, w);
    w.AddUint32("tokenizer.ggml.bos_token_id", 5);
    w.AddInt32("tokenizer.ggml.eos_token_id", 6);
    w.AddUint32("tokenizer.ggml.unknown_token_id", 0xFFFFFFFF);
    w.AddUint32("tokenizer.ggml.eot_token_id", 7);
    w.AddUint32("tokenizer.ggml.eom_token_id", 8);
    w.AddBool("tokenizer.ggml.add_bos_token", false);
    w.AddBool("tokenizer.ggml.add_eos_token", true);
    w.AddBool("tokenizer.ggml.add_space_prefix", false);
  });
  ASSERT_TRUE(imported.ok()) << imported.status();
  const TokenizerData& read = imported->data;
  EXPECT_EQ(std::vector({read.bos, read.eos, read.unk}), (std::vector<int32_t>{5, 6, kNoToken}));
  EXPECT_EQ(std::vector({read.add_bos, read.add_eos}), (std::vector<bool>{false, true}));
  EXPECT_EQ(read.space_prefix, SpacePrefix::kNone);
  EXPECT_THAT(read.end_ids, ElementsAre(7, 8, IdOf(data, "<|end|>")));
}

TEST(GgufTokenizerTest, KnownEndTextsCountWhateverTheirTypeAndOnlyOnce) {
  for (const TokenType type : {TokenType::kControl, TokenType::kUserDefined, TokenType::kNormal}) {
    TokenizerData data = SmallSentencePiece();
    const int32_t end = AddToken(data, "<|im_end|>", type);
    const auto imported = Import([&](GgufWriter& w) {
      AddSentencePiece(data, w);
      w.AddUint32("tokenizer.ggml.eot_token_id", static_cast<uint32_t>(end));
    });
    ASSERT_TRUE(imported.ok()) << imported.status();
    EXPECT_THAT(imported->data.end_ids, ElementsAre(end, IdOf(data, "<|end|>")));
    EXPECT_EQ(imported->data.types[end], type);
  }
}

TEST(GgufTokenizerTest, SaysThatNothingEndsGeneration) {
  TokenizerData data = SmallSentencePiece();
  data.tokens[IdOf(data, "<|end|>")] = "<|other|>";
  const auto imported = Import([&](GgufWriter& w) {
    AddSentencePiece(data, w);
    w.AddUint32("tokenizer.ggml.eos_token_id", 0xFFFFFFFF);
  });
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_THAT(imported->warnings, ElementsAre(HasSubstr("ends generation")));
}

TEST(GgufTokenizerTest, LeavesOutMergesThatAreNotBetweenTokensAndCountsThem) {
  TokenizerData data = SmallByteBpe();
  const std::vector<std::string> good = data.merges;
  data.merges.insert(data.merges.begin(), "x y");       // "xy" is no token
  data.merges.insert(data.merges.begin() + 3, "zz h");  // nor is "zz"
  data.merges.push_back("o nothing");
  const auto imported = Import([&](GgufWriter& w) {
    AddByteBpe(data, w);
    w.AddString("tokenizer.ggml.pre", "gpt-2");
  });
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data.merges, good);
  EXPECT_THAT(imported->warnings, ElementsAre(HasSubstr("3 of 11 merges")));
}

TEST(GgufTokenizerTest, TakesTheUndefinedTypeForAnOrdinaryToken) {
  TokenizerData data = SmallSentencePiece();
  const int32_t id = IdOf(data, "hello");
  data.types[id] = static_cast<TokenType>(0);
  const auto imported = Import([&](GgufWriter& w) { AddSentencePiece(data, w); });
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data.types[id], TokenType::kNormal);
}

TEST(GgufTokenizerTest, KnowsThePreTokenizersByName) {
  const std::pair<const char*, PreTokenizer> names[] = {
      {"default", PreTokenizer::kDefault},
      {"gpt-2", PreTokenizer::kGpt2},
      {"llama-bpe", PreTokenizer::kLlamaBpe},
      {"llama3", PreTokenizer::kLlamaBpe},
      {"llama-v3", PreTokenizer::kLlamaBpe},
      {"deepseek-llm", PreTokenizer::kDeepSeekLlm},
      {"deepseek-coder", PreTokenizer::kDeepSeekCoder},
      {"falcon", PreTokenizer::kFalcon},
      {"qwen2", PreTokenizer::kQwen2},
  };
  for (const auto& [name, pre] : names) {
    const auto imported = Import([&, n = name](GgufWriter& w) {
      AddByteBpe(SmallByteBpe(), w);
      w.AddString("tokenizer.ggml.pre", n);
    });
    ASSERT_TRUE(imported.ok()) << imported.status();
    EXPECT_EQ(imported->data.pre, pre) << name;
    EXPECT_EQ(imported->data.ignore_merges, pre == PreTokenizer::kLlamaBpe);
    EXPECT_EQ(imported->data.add_bos, pre == PreTokenizer::kLlamaBpe);
    EXPECT_EQ(imported->data.space_prefix, SpacePrefix::kNone);
    EXPECT_EQ(imported->data.bos, kNoToken);
    EXPECT_THAT(imported->warnings, IsEmpty());
  }
}

TEST(GgufTokenizerTest, SaysThatItDoesNotKnowAPreTokenizer) {
  const auto unknown = Import([](GgufWriter& w) {
    AddByteBpe(SmallByteBpe(), w);
    w.AddString("tokenizer.ggml.pre", "from-the-future");
  });
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  EXPECT_EQ(unknown->data.pre, PreTokenizer::kDefault);
  EXPECT_THAT(unknown->warnings, ElementsAre(HasSubstr("\"from-the-future\"")));
  const auto absent = Import([](GgufWriter& w) { AddByteBpe(SmallByteBpe(), w); });
  ASSERT_TRUE(absent.ok()) << absent.status();
  EXPECT_THAT(absent->warnings, ElementsAre(HasSubstr("does not name")));
}

TEST(GgufTokenizerTest, RefusesWhatIsMalformedAndNamesTheFile) {
  const TokenizerData good = SmallSentencePiece();
  const auto with = [&good](const std::function<void(TokenizerData&)>& damage) {
    TokenizerData data = good;
    damage(data);
    return [data](GgufWriter& w) { AddSentencePiece(data, w); };
  };
  const auto with_key = [&good](const std::function<void(GgufWriter&)>& add) {
    return [&good, add](GgufWriter& w) {
      AddSentencePiece(good, w);
      add(w);
    };
  };
  const std::pair<const char*, std::function<void(GgufWriter&)>> cases[] = {
      {"tokenizer.ggml.model", [](GgufWriter&) {}},
      {"\"bert\"",
       [](GgufWriter& w) {
         w.AddString("tokenizer.ggml.model", "bert");
         w.AddStringArray("tokenizer.ggml.tokens", std::vector<std::string>{"a"});
       }},
      {"tokens", [](GgufWriter& w) { w.AddString("tokenizer.ggml.model", "llama"); }},
      {"tokens",
       [](GgufWriter& w) {
         w.AddString("tokenizer.ggml.model", "llama");
         w.AddString("tokenizer.ggml.tokens", "abc");
       }},
      {"merges",
       [](GgufWriter& w) {
         w.AddString("tokenizer.ggml.model", "gpt2");
         w.AddStringArray("tokenizer.ggml.tokens", std::vector<std::string>{"a"});
       }},
      {"token_type has", with([](auto& d) { d.types.pop_back(); })},
      {"type 255", with([](auto& d) { d.types[3] = static_cast<TokenType>(255); })},
      {"type 7", with([](auto& d) { d.types[3] = static_cast<TokenType>(7); })},
      {"scores", with([](auto& d) { d.scores.pop_back(); })},
      {"<0xZZ>", with([](auto& d) { d.tokens[3] = "<0xZZ>"; })},
      {"<0x-1>", with([](auto& d) { d.tokens[3] = "<0x-1>"; })},
      {"bos", with_key([](auto& w) { w.AddInt32("tokenizer.ggml.bos_token_id", -5); })},
      {"BOS", with_key([](auto& w) { w.AddUint32("tokenizer.ggml.bos_token_id", 100000); })},
      {"eos", with_key([](auto& w) { w.AddUint32("tokenizer.ggml.eos_token_id", 0x80000000); })},
      {"eos", with_key([](auto& w) { w.AddString("tokenizer.ggml.eos_token_id", "2"); })},
      {"add_bos", with_key([](auto& w) { w.AddString("tokenizer.ggml.add_bos_token", "yes"); })},
  };
  for (const auto& [message, add] : cases) {
    const auto imported = Import(add);
    ASSERT_FALSE(imported.ok()) << message;
    EXPECT_THAT(std::string(imported.status().message()), HasSubstr(message));
    EXPECT_THAT(std::string(imported.status().message()), HasSubstr("vocabulary.gguf"));
  }
}

}  // namespace
}  // namespace sluice
