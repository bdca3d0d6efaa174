// tokenizer.json and the files beside it, made by hand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "layout/tokenizer_import.h"
#include "tests/cost_bound.h"
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
  EXPECT_THAT(data.end_ids, ElementsAre(4));
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

// What the file beside a vocabulary says of its end, so that no warning says that nothing does.
constexpr HuggingFaceTokenizerFiles kNamesEos = {.tokenizer_config = R"({"eos_token": "</s>"})"};

TEST(TokenizerJsonTest, TurnsByteFallbackBpeIntoScores) {
  const auto imported = ImportJson(ByteFallbackJson(), kNamesEos);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const TokenizerData& data = imported->data;
  EXPECT_EQ(data.kind, TokenizerKind::kSentencePiece);
  EXPECT_EQ(data.space_prefix, SpacePrefix::kEachPart);
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
    return imported->data.space_prefix;
  };
  EXPECT_EQ(prefix_with({{"prepend_scheme", "first"}}), SpacePrefix::kFirstPartUnlessSpace);
  EXPECT_EQ(prefix_with({{"prepend_scheme", "always"}}), SpacePrefix::kEachPartUnlessSpace);
  EXPECT_EQ(prefix_with({{"prepend_scheme", "never"}}), SpacePrefix::kNone);
  EXPECT_EQ(prefix_with({{"add_prefix_space", false}}), SpacePrefix::kNone);
  EXPECT_EQ(prefix_with(json::object()), SpacePrefix::kEachPartUnlessSpace);
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

json StepsOf(const char* key, json steps) { return {{"type", "Sequence"}, {key, steps}}; }

TEST(TokenizerJsonTest, SaysOnceWhichFieldsOfAddedTokensItDoesNotFollow) {
  json root = ByteLevelJson();
  for (json& token : root["added_tokens"]) token["rstrip"] = token["single_word"] = true;
  const auto imported = ImportJson(root);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_THAT(imported->warnings,
              ElementsAre(HasSubstr("rstrip with \"<|end|>\""), HasSubstr("single_word")));
}

TEST(TokenizerJsonTest, LooksIntoSequencesOfSequences) {
  json root = ByteLevelJson();
  const json nfc = {{"type", "NFC"}};
  root["normalizer"] =
      StepsOf("normalizers", json::array({StepsOf("normalizers", json::array({nfc}))}));
  root["pre_tokenizer"] =
      StepsOf("pretokenizers",
              json::array({StepsOf("pretokenizers", json::array({root["pre_tokenizer"]}))}));
  const auto imported = ImportJson(root);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data.pre, PreTokenizer::kGpt2);
  EXPECT_THAT(imported->warnings, ElementsAre(HasSubstr("\"NFC\"")));
}

json Template(const std::vector<std::string>& front, const std::vector<std::string>& behind) {
  json single = json::array();
  const auto add = [&single](const std::vector<std::string>& tokens) {
    for (const std::string& t : tokens) single.push_back({{"SpecialToken", {{"id", t}}}});
  };
  add(front);
  single.push_back({{"Sequence", {{"id", "A"}}}});
  add(behind);
  return {{"type", "TemplateProcessing"}, {"single", single}};
}

TEST(TokenizerJsonTest, SaysWhatOfThePostProcessorItDoesNotFollow) {
  json root = ByteLevelJson();
  root["post_processor"] = Template({"a"}, {"<|end|>"});
  EXPECT_THAT(ImportJson(root)->warnings, IsEmpty());
  root["post_processor"] = Template({"a", "b"}, {});
  auto imported = ImportJson(root);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data.bos, 1);
  EXPECT_THAT(imported->warnings, ElementsAre(HasSubstr("several special tokens")));
  root["post_processor"] = {{"type", "RobertaProcessing"}};
  imported = ImportJson(root);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_THAT(imported->warnings, ElementsAre(HasSubstr("\"RobertaProcessing\"")));
}

TEST(TokenizerJsonTest, LeavesOutMergesThatGiveNoTokenAndCountsThem) {
  json byte_level = ByteLevelJson();
  byte_level["model"]["merges"] = {"b a", "a b", "a zz"};
  auto imported = ImportJson(byte_level);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_THAT(imported->data.merges, ElementsAre("a b"));
  EXPECT_THAT(imported->warnings, ElementsAre(HasSubstr("2 of 3 merges")));
  json fallback = ByteFallbackJson();
  fallback["model"]["merges"].push_back("ab ab");
  imported = ImportJson(fallback, kNamesEos);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_THAT(imported->warnings, ElementsAre(HasSubstr("1 of 3 merges")));
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
      {"/model/merges", {"ab", "a b"}, "merge 0"},
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
  for (const std::string& text : {std::string("<html>"), std::string("{"), std::string("[]"),
                                  std::string("{\"a\": \"\xFF\"}")}) {
    EXPECT_EQ(ImportHuggingFaceTokenizer({.tokenizer_json = text}, "folder").status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(TokenizerJsonTest, RefusesWhatWouldGrowWhenParsedWithoutParsingIt) {
  const auto repeated = [](const char* what) {
    std::string text = "{\"a\": [";
    while (text.size() < (16 << 20)) text += what;
    return text + "0]}";
  };
  const std::string cases[] = {std::string(1 << 24, '['), repeated("[],"), repeated("[[],[]],"),
                               repeated("\"\","), repeated("{\"\":0},")};
  for (const std::string& text : cases) {
    const CostBound bound;
    const auto imported = ImportHuggingFaceTokenizer({.tokenizer_json = text}, "folder");
    EXPECT_EQ(imported.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(imported.status().message()), HasSubstr("nests more than"));
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
  EXPECT_THAT(imported->data.end_ids, ElementsAre(2));  // and eos, which is named only once
}

TEST(TokenizerSettingsTest, IdsOfTheGenerationConfigStandInForTexts) {
  const auto imported = ImportJson(
      ByteLevelJson(), {.generation_config = R"({"bos_token_id": 1, "eos_token_id": 2})"});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data.bos, 1);
  EXPECT_EQ(imported->data.eos, 2);
}

TEST(TokenizerSettingsTest, IdsOfTheModelConfigAreALastResort) {
  constexpr char kIds[] = R"({"bos_token_id": 0, "eos_token_id": [2, 3, 2, -1, 900, "x"]})";
  auto imported = ImportJson(ByteLevelJson(), {.model_config = kIds});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data.bos, 0);
  EXPECT_EQ(imported->data.eos, 2);
  EXPECT_THAT(imported->data.end_ids, ElementsAre(3, 4));
  imported = ImportJson(
      ByteLevelJson(),
      {.generation_config = R"({"bos_token_id": 1, "eos_token_id": 6})", .model_config = kIds});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data.bos, 1);
  EXPECT_EQ(imported->data.eos, 6);
  EXPECT_THAT(imported->data.end_ids, ElementsAre(4));
}

TEST(TokenizerSettingsTest, ManyEndIdsAreKeptWithinTheLimitOfTheRecord) {
  json root = ByteLevelJson();
  json ids = json::array();
  for (int id = 0; id < 200; ++id) {
    root["model"]["vocab"][absl::StrCat("word", id)] = id + 10;
    ids.push_back(id + 10);
  }
  const std::string config = json({{"eos_token_id", ids}}).dump();
  const auto imported = ImportJson(root, {.generation_config = config});
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data.end_ids.size(), kMaxEndIds);
}

TEST(TokenizerSettingsTest, SayThatNothingEndsGeneration) {
  json root = ByteLevelJson();
  root["added_tokens"][0]["content"] = "<|other|>";
  const auto imported = ImportJson(root);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_THAT(imported->warnings, ElementsAre(HasSubstr("ends generation")));
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
  write("config.json", R"({"eos_token_id": 6})");
  imported = ImportHuggingFaceTokenizer(dir.path());
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data.eos, 6);
  write("generation_config.json", R"({"eos_token_id": 4})");
  imported = ImportHuggingFaceTokenizer(dir.path());
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->data.kind, TokenizerKind::kByteBpe);
  EXPECT_EQ(imported->data.eos, 4);
}

}  // namespace
}  // namespace sluice
