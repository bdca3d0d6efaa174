// tokenizer.json, tokenizer.model and the files beside them, made by hand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "layout/tokenizer_import.h"
#include "tests/test_paths.h"
#include "tests/tokenizer_test_data.h"
#include "tests/tokenizer_test_files.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kMark[] = "\xE2\x96\x81";

absl::StatusOr<ImportedTokenizer> ImportJson(const json& root,
                                             HuggingFaceTokenizerFiles files = {}) {
  const std::string text = root.dump();
  files.tokenizer_json = text;
  return ImportHuggingFaceTokenizer(files, "folder");
}

// Byte-level BPE with ids for a, b, ab and the byte of a space.
json ByteLevelJson() {
  return {
      {"model",
       {{"type", "BPE"},
        {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}, {"Ġ", 3}}},
        {"merges", {"a b"}}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"added_tokens",
       {{{"id", 4}, {"content", "<|end|>"}, {"special", true}},
        {{"id", 6}, {"content", "<tool>"}, {"special", false}}}},
  };
}

// Like the file of a Llama 2: byte fallback, marks for spaces.
json ByteFallbackJson() {
  return {
      {"model",
       {{"type", "BPE"},
        {"byte_fallback", true},
        {"unk_token", "<unk>"},
        {"vocab",
         {{"<unk>", 0},
          {"<s>", 1},
          {"</s>", 2},
          {"<0x41>", 3},
          {kMark, 4},
          {"a", 5},
          {"b", 6},
          {"ab", 7},
          {std::string(kMark) + "ab", 8},
          {"ba", 9}}},
        {"merges", json::array({"a b", json::array({kMark, "ab"})})}}},
      {"normalizer",
       {{"type", "Sequence"},
        {"normalizers",
         {{{"type", "Prepend"}, {"prepend", kMark}},
          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kMark}}}}}},
      {"added_tokens",
       {{{"id", 0}, {"content", "<unk>"}, {"special", true}},
        {{"id", 1}, {"content", "<s>"}, {"special", true}},
        {{"id", 2}, {"content", "</s>"}, {"special", true}}}},
  };
}

TEST(TokenizerJsonTest, ReadsByteLevelBpe) {
  const auto imported = ImportJson(ByteLevelJson());
  ASSERT_TRUE(imported.ok()) << imported.status();
  const TokenizerData& data = imported->data;
  EXPECT_EQ(data.kind, TokenizerKind::kByteBpe);
  EXPECT_EQ(data.pre, PreTokenizer::kGpt2);
  EXPECT_THAT(data.tokens, ElementsAre("a", "b", "ab", "Ġ", "<|end|>", "[PAD5]", "<tool>"));
  EXPECT_THAT(data.types, ElementsAre(TokenType::kNormal, TokenType::kNormal, TokenType::kNormal,
                                      TokenType::kNormal, TokenType::kControl, TokenType::kUnused,
                                      TokenType::kUserDefined));
  EXPECT_THAT(data.merges, ElementsAre("a b"));
  EXPECT_EQ(data.eot, 4);
  EXPECT_FALSE(data.add_bos);
  EXPECT_THAT(imported->warnings, IsEmpty());
}

TEST(TokenizerJsonTest, ReadsMergesAsPairs) {
  json root = ByteLevelJson();
  root["model"]["merges"] = json::array({json::array({"a", "b"})});
  const auto imported = ImportJson(root);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_THAT(imported->data.merges, ElementsAre("a b"));
}

TEST(TokenizerJsonTest, TurnsByteFallbackBpeIntoScores) {
  const auto imported = ImportJson(ByteFallbackJson());
  ASSERT_TRUE(imported.ok()) << imported.status();
  const TokenizerData& data = imported->data;
  EXPECT_EQ(data.kind, TokenizerKind::kSentencePiece);
  EXPECT_TRUE(data.add_space_prefix);
  EXPECT_TRUE(data.add_bos);
  EXPECT_EQ(data.unk, 0);
  EXPECT_EQ(data.types[0], TokenType::kUnknown);
  EXPECT_EQ(data.types[1], TokenType::kControl);
  EXPECT_EQ(data.types[3], TokenType::kByte);
  EXPECT_EQ(data.types[5], TokenType::kNormal);
  EXPECT_GT(data.scores[7], data.scores[8]);
  // No merge gives "ba", so text never becomes it.
  EXPECT_EQ(data.types[9], TokenType::kUnused);
  EXPECT_THAT(data.merges, IsEmpty());
  EXPECT_THAT(imported->warnings, IsEmpty());
}

TEST(TokenizerJsonTest, FollowsTheMetaspaceSchemeForTheSpacePrefix) {
  const auto prefix_with = [](json pre_tokenizer) {
    json root = ByteFallbackJson();
    root["normalizer"] = nullptr;
    pre_tokenizer["type"] = "Metaspace";
    root["pre_tokenizer"] = pre_tokenizer;
    const auto imported = ImportJson(root);
    EXPECT_TRUE(imported.ok()) << imported.status();
    return imported->data.add_space_prefix;
  };
  EXPECT_TRUE(prefix_with({{"prepend_scheme", "first"}}));
  EXPECT_TRUE(prefix_with({{"prepend_scheme", "always"}}));
  EXPECT_FALSE(prefix_with({{"prepend_scheme", "never"}}));
  EXPECT_FALSE(prefix_with({{"add_prefix_space", false}}));
  EXPECT_TRUE(prefix_with(json::object()));
}

json Split(const std::string& regex) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", regex}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

TEST(TokenizerJsonTest, RecognisesThePreTokenizers) {
  const json quiet = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const json gpt2 = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  const json digits = {{"type", "Digits"}, {"individual_digits", true}};
  const std::string cjk = "[一-龥ࠀ-一가-퟿]+";
  const std::string tail = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const std::string head = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})";
  const std::pair<PreTokenizer, json> cases[] = {
      {PreTokenizer::kGpt2, json::array({gpt2})},
      {PreTokenizer::kLlamaBpe, {Split(head + "{1,3}" + tail), quiet}},
      {PreTokenizer::kQwen2, {Split(head + tail), quiet}},
      {PreTokenizer::kFalcon,
       {{{"type", "Punctuation"}, {"behavior", "Contiguous"}},
        gpt2,
        {{"type", "Digits"}, {"individual_digits", false}},
        Split("[0-9][0-9][0-9]")}},
      {PreTokenizer::kDeepSeekCoder,
       {Split("[\r\n]"), Split(R"(\s?\p{L}+)"), Split(R"(\s?\p{P}+)"), Split(cjk), digits, quiet}},
      {PreTokenizer::kDeepSeekLlm,
       {Split("[\r\n]"), Split(R"(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓ]+)"), Split(R"(\s?[!-/:-~]+)"),
        Split(R"(\s+$)"), Split(cjk), digits, quiet}},
  };
  for (const auto& [pre, steps] : cases) {
    json root = ByteLevelJson();
    root["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
    const auto imported = ImportJson(root);
    ASSERT_TRUE(imported.ok()) << imported.status();
    EXPECT_EQ(imported->data.pre, pre) << steps;
    EXPECT_THAT(imported->warnings, IsEmpty());
  }
}

TEST(TokenizerJsonTest, SaysWhatItDoesNotFollow) {
  json root = ByteLevelJson();
  root["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", {Split("[a-z]+"), root["pre_tokenizer"]}}};
  root["normalizer"] = {{"type", "NFC"}};
  const auto imported = ImportJson(root);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data.pre, PreTokenizer::kDefault);
  EXPECT_THAT(imported->warnings, ElementsAre(HasSubstr("pre_tokenizer"), HasSubstr("\"NFC\"")));
}

TEST(TokenizerJsonTest, LearnsBosFromThePostProcessor) {
  json root = ByteLevelJson();
  root["added_tokens"].push_back({{"id", 7}, {"content", "<bos>"}, {"special", true}});
  root["post_processor"] = {{"type", "Sequence"},
                            {"processors",
                             {{{"type", "ByteLevel"}},
                              {{"type", "TemplateProcessing"},
                               {"single",
                                {{{"SpecialToken", {{"id", "<bos>"}, {"type_id", 0}}}},
                                 {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}}}}};
  const auto imported = ImportJson(root);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_TRUE(imported->data.add_bos);
  EXPECT_FALSE(imported->data.add_eos);
  EXPECT_EQ(imported->data.bos, 7);
}

TEST(TokenizerJsonTest, RefusesWhatItCannotRead) {
  struct Case {
    const char* pointer;
    json value;
    const char* message;
  };
  const Case cases[] = {
      {"/model", 7, "\"model\""},
      {"/model/type", "WordPiece", "\"WordPiece\""},
      {"/model/type", "Unigram", "\"Unigram\""},
      {"/model/end_of_word_suffix", "</w>", "end_of_word_suffix"},
      {"/model/vocab", json::array(), "vocab"},
      {"/model/vocab/a", "0", "token id"},
      {"/model/vocab/a", -1, "-1"},
      {"/model/vocab/a", 1.5, "token id"},
      {"/model/vocab/a", 16777216, "token ids are"},
      {"/model/vocab/a", 1000000, "largest token id"},
      {"/model/merges", "a b", "merges"},
      {"/model/merges", {1}, "a merge"},
      {"/model/merges", {{"a", "b", "c"}}, "merge"},
      {"/model/merges", {"ab"}, "merge 0"},
      {"/pre_tokenizer", nullptr, "ByteLevel"},
      {"/added_tokens", "none", "added_tokens"},
      {"/added_tokens/0", 5, "added_tokens"},
      {"/added_tokens/0/special", "yes", "special"},
  };
  for (const Case& c : cases) {
    json root = ByteLevelJson();
    root[json::json_pointer(c.pointer)] = c.value;
    const auto imported = ImportJson(root);
    ASSERT_FALSE(imported.ok()) << c.pointer;
    EXPECT_THAT(std::string(imported.status().message()), HasSubstr(c.message));
    EXPECT_THAT(std::string(imported.status().message()), HasSubstr("folder"));
  }
}

TEST(TokenizerJsonTest, RefusesWhatIsNotJson) {
  const std::string deep(1 << 24, '[');
  std::string wide = "{\"a\": [";
  for (int i = 0; i < 3'000'000; ++i) wide += "[],[],";
  wide += "0]}";
  for (const std::string& text : {std::string("<html>"), std::string("{"), std::string("[]"),
                                  std::string("{\"a\": \"\xFF\"}"), deep, wide}) {
    EXPECT_EQ(ImportHuggingFaceTokenizer({.tokenizer_json = text}, "folder").status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(TokenizerJsonTest, RefusesAFileCutShortAtAnyByte) {
  const std::string text = ByteFallbackJson().dump();
  for (size_t n = 1; n < text.size(); ++n) {
    EXPECT_FALSE(
        ImportHuggingFaceTokenizer({.tokenizer_json = std::string_view(text).substr(0, n)}, "f")
            .ok());
  }
}

TEST(TokenizerSettingsTest, NameTheSpecialTokensByTextOrById) {
  const auto imported = ImportJson(
      ByteLevelJson(),
      {.tokenizer_config = R"({"bos_token": {"content": "<tool>"}, "add_bos_token": true})",
       .special_tokens_map = R"({"bos_token": "a", "eos_token": "<|end|>"})",
       .generation_config = R"({"bos_token_id": 1, "eos_token_id": [2, 4]})"});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data.bos, 6);
  EXPECT_EQ(imported->data.eos, 4);
  EXPECT_TRUE(imported->data.add_bos);
  EXPECT_THAT(imported->data.end_ids, testing::IsSupersetOf({2, 4}));
}

TEST(TokenizerSettingsTest, IdsOfTheGenerationConfigStandInForTexts) {
  const auto imported = ImportJson(
      ByteLevelJson(), {.generation_config = R"({"bos_token_id": 1, "eos_token_id": 2})"});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data.bos, 1);
  EXPECT_EQ(imported->data.eos, 2);
}

TEST(TokenizerSettingsTest, SayThatATokenIsNotInTheVocabulary) {
  const auto imported =
      ImportJson(ByteLevelJson(), {.tokenizer_config = R"({"eos_token": "</missing>"})"});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data.eos, kNoToken);
  EXPECT_THAT(imported->warnings, ElementsAre(HasSubstr("</missing>")));
}

TEST(TokenizerSettingsTest, RefuseWrongTypesAndIds) {
  for (const char* config :
       {R"({"add_bos_token": 1})", "[1]", "{", R"({"added_tokens_decoder": []})",
        R"({"added_tokens_decoder": {"x": {"content": "y"}}})",
        R"({"added_tokens_decoder": {"-1": {"content": "y"}}})",
        R"({"added_tokens_decoder": {"1": {}}})"}) {
    EXPECT_FALSE(ImportJson(ByteLevelJson(), {.tokenizer_config = config}).ok()) << config;
  }
  for (const char* config : {R"({"eos_token_id": -3})", R"({"eos_token_id": ["a"]})",
                             R"({"bos_token_id": 99999999999})", R"({"eos_token_id": 500})"}) {
    EXPECT_FALSE(ImportJson(ByteLevelJson(), {.generation_config = config}).ok()) << config;
  }
}

TEST(SentencePieceModelTest, ReadsBackWhatWasWritten) {
  const TokenizerData data = SmallSentencePiece();
  const std::string model = SentencePieceModel(data);
  const auto imported = ImportHuggingFaceTokenizer({.tokenizer_model = model}, "folder");
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data.kind, TokenizerKind::kSentencePiece);
  EXPECT_EQ(imported->data.tokens, data.tokens);
  EXPECT_EQ(imported->data.scores, data.scores);
  EXPECT_EQ(imported->data.types, data.types);
  EXPECT_EQ(imported->data.bos, data.bos);
  EXPECT_EQ(imported->data.eos, data.eos);
  EXPECT_EQ(imported->data.unk, data.unk);
  EXPECT_EQ(imported->data.eot, data.eot);
  EXPECT_TRUE(imported->data.add_bos);
  EXPECT_TRUE(imported->data.add_space_prefix);
  EXPECT_THAT(imported->warnings, IsEmpty());
}

TEST(SentencePieceModelTest, TakesAddedTokensAndSettingsFromTheFilesBesideIt) {
  const TokenizerData data = SmallSentencePiece();
  const auto n = static_cast<int32_t>(data.tokens.size());
  const std::string model = SentencePieceModel(data);
  const std::string added = json({{"<|im_end|>", n}, {"word", n + 1}}).dump();
  const std::string config =
      json({{"add_bos_token", false},
            {"eos_token", "<|im_end|>"},
            {"added_tokens_decoder",
             {{std::to_string(n + 2), {{"content", "<x>"}, {"special", false}}}}}})
          .dump();
  const auto imported = ImportHuggingFaceTokenizer(
      {.tokenizer_model = model, .tokenizer_config = config, .added_tokens = added}, "folder");
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_FALSE(imported->data.add_bos);
  EXPECT_EQ(imported->data.eos, n);
  EXPECT_EQ(imported->data.types[n], TokenType::kControl);
  EXPECT_EQ(imported->data.types[n + 1], TokenType::kUserDefined);
  EXPECT_EQ(imported->data.tokens[n + 2], "<x>");
}

TEST(SentencePieceModelTest, SkipsFieldsThatItDoesNotKnow) {
  std::string model = SentencePieceModel(SmallSentencePiece());
  absl::StrAppend(&model, VarintField(77, ~uint64_t{0}), BytesField(78, "future"),
                  FloatField(79, 1.0f), Varint(80 << 3 | 1), "8 bytes.");
  EXPECT_TRUE(ImportHuggingFaceTokenizer({.tokenizer_model = model}, "folder").ok());
}

TEST(SentencePieceModelTest, RefusesHostileWireData) {
  const std::string good = SentencePieceModel(SmallSentencePiece());
  const std::string huge = Varint(~uint64_t{0});
  const std::string bpe = VarintField(3, 2);
  // What each appends to a good model.
  const std::pair<const char*, std::string> cases[] = {
      {"length past the end", absl::StrCat(Varint(1 << 3 | 2), huge)},
      {"length of 2^62", absl::StrCat(Varint(1 << 3 | 2), Varint(uint64_t{1} << 62), "abc")},
      {"varint without end", std::string(11, '\xFF')},
      {"varint cut short", "\x80"},
      {"group", Varint(1 << 3 | 3)},
      {"end of a group", Varint(1 << 3 | 4)},
      {"wire type 6", Varint(1 << 3 | 6)},
      {"field 0", absl::StrCat(Varint(0), "a")},
      {"fixed32 cut short", absl::StrCat(Varint(9 << 3 | 5), "abc")},
      {"fixed64 cut short", absl::StrCat(Varint(9 << 3 | 1), "abcdefg")},
      {"piece cut short", BytesField(1, absl::StrCat(Varint(1 << 3 | 2), huge))},
      {"type of a piece out of range", BytesField(1, VarintField(3, 0))},
      {"type of a piece huge", BytesField(1, VarintField(3, ~uint64_t{0}))},
      {"score not a number",
       Piece("z", std::numeric_limits<float>::quiet_NaN(), TokenType::kNormal)},
      {"byte token out of range", Piece("<0x-1>", 0, TokenType::kByte)},
      {"byte token not hexadecimal", Piece("<0xZZ>", 0, TokenType::kByte)},
      {"BOS out of range", BytesField(2, absl::StrCat(bpe, VarintField(41, 1 << 30)))},
      {"BOS beyond 32 bits", BytesField(2, absl::StrCat(bpe, VarintField(41, 1ULL << 40)))},
      {"unigram", BytesField(2, VarintField(3, 1))},
  };
  ASSERT_TRUE(ImportHuggingFaceTokenizer({.tokenizer_model = good}, "folder").ok());
  for (const auto& [name, bytes] : cases) {
    const std::string model = absl::StrCat(good, bytes);
    const auto imported = ImportHuggingFaceTokenizer({.tokenizer_model = model}, "folder");
    ASSERT_FALSE(imported.ok()) << name;
    EXPECT_THAT(std::string(imported.status().message()), HasSubstr("folder")) << name;
  }
}

TEST(SentencePieceModelTest, DoesNotFollowNesting) {
  std::string nested;
  for (int i = 0; i < 1000; ++i) nested = BytesField(1, nested);
  const std::string model = absl::StrCat(SentencePieceModel(SmallSentencePiece()), nested);
  const auto imported = ImportHuggingFaceTokenizer({.tokenizer_model = model}, "folder");
  ASSERT_TRUE(imported.ok()) << imported.status();
  // The second level is the text of a piece, whatever it looks like.
  EXPECT_GT(imported->data.tokens.back().size(), 1000u);
}

TEST(SentencePieceModelTest, RefusesWhatIsNoModel) {
  for (const std::string& text : {BytesField(2, VarintField(3, 2)), std::string("git-lfs pointer"),
                                  std::string("<!DOCTYPE html><html></html>")}) {
    EXPECT_EQ(ImportHuggingFaceTokenizer({.tokenizer_model = text}, "folder").status().code(),
              absl::StatusCode::kDataLoss);
  }
}

TEST(SentencePieceModelTest, SurvivesBeingCutShortAtAnyByte) {
  const std::string model = SentencePieceModel(SmallSentencePiece());
  const size_t trailing = 1 + 1 + 1 + 1 + 8 + 2 + 2;  // the normaliser, which may be absent
  for (size_t n = 1; n + trailing < model.size(); ++n) {
    const auto imported = ImportHuggingFaceTokenizer(
        {.tokenizer_model = std::string_view(model).substr(0, n)}, "folder");
    EXPECT_FALSE(imported.ok()) << n;
  }
}

TEST(PadVocabularyTest, AddsUnusedTokensUpToTheRowsOfTheModel) {
  for (TokenizerData data : {SmallSentencePiece(), SmallByteBpe()}) {
    const size_t n = data.tokens.size();
    ASSERT_TRUE(PadVocabulary(data, n + 2).ok());
    EXPECT_EQ(data.tokens.size(), n + 2);
    EXPECT_EQ(data.types.back(), TokenType::kUnused);
    EXPECT_TRUE(ValidateTokenizer(data).ok());
    EXPECT_EQ(PadVocabulary(data, n).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(HuggingFaceFolderTest, PrefersTokenizerJsonAndReadsItsNeighbours) {
  const TempDir dir;
  const auto write = [&dir](const char* name, const std::string& text) {
    std::ofstream(dir.File(name), std::ios::binary) << text;
  };
  EXPECT_EQ(ImportHuggingFaceTokenizer(dir.path()).status().code(), absl::StatusCode::kNotFound);
  write("tokenizer.model", SentencePieceModel(SmallSentencePiece()));
  auto imported = ImportHuggingFaceTokenizer(dir.path());
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data.kind, TokenizerKind::kSentencePiece);
  write("tokenizer.json", ByteLevelJson().dump());
  write("generation_config.json", R"({"eos_token_id": 4})");
  imported = ImportHuggingFaceTokenizer(dir.path());
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data.kind, TokenizerKind::kByteBpe);
  EXPECT_EQ(imported->data.eos, 4);
}

}  // namespace
}  // namespace sluice
