#include "layout/pre_tokenizer_names.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace sluice {
namespace {

constexpr NamedPreTokenizer kLlama3 = {PreTokenizer::kLlamaBpe, true, true};

// Several names stand for the same splitting; the list follows llama.cpp's.
constexpr std::pair<std::string_view, NamedPreTokenizer> kGgufNames[] = {
    {"default", {PreTokenizer::kDefault}},
    {"llama3", kLlama3},
    {"llama-v3", kLlama3},
    {"llama-bpe", kLlama3},
    {"falcon3", kLlama3},
    {"dbrx", {PreTokenizer::kLlamaBpe}},
    {"smaug-bpe", {PreTokenizer::kLlamaBpe}},
    {"deepseek-llm", {PreTokenizer::kDeepSeekLlm}},
    {"deepseek-coder", {PreTokenizer::kDeepSeekCoder}},
    {"falcon", {PreTokenizer::kFalcon}},
    {"gpt-2", {PreTokenizer::kGpt2}},
    {"phi-2", {PreTokenizer::kGpt2}},
    {"mpt", {PreTokenizer::kGpt2}},
    {"olmo", {PreTokenizer::kGpt2}},
    {"jais", {PreTokenizer::kGpt2}},
    {"qwen2", {PreTokenizer::kQwen2}},
    {"deepseek-r1-qwen", {PreTokenizer::kQwen2}},
    {"stablelm2", {PreTokenizer::kQwen2}},
};

constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepSeekCjkRegex = "[一-龥ࠀ-一가-퟿]+";
constexpr std::string_view kDeepSeekLlmLettersStart = R"(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿ)";

}  // namespace

std::optional<NamedPreTokenizer> PreTokenizerByGgufName(std::string_view name) {
  for (const auto& [known, pre] : kGgufNames) {
    if (name == known) return pre;
  }
  return std::nullopt;
}

std::optional<PreTokenizer> PreTokenizerBySteps(const std::vector<std::string>& steps) {
  const auto are = [&steps](std::initializer_list<std::string_view> wanted) {
    return std::equal(steps.begin(), steps.end(), wanted.begin(), wanted.end());
  };
  if (are({"ByteLevel regex"}) || are({kGpt2Regex})) return PreTokenizer::kGpt2;
  if (are({kLlama3Regex})) return PreTokenizer::kLlamaBpe;
  if (are({kQwen2Regex})) return PreTokenizer::kQwen2;
  if (are({"Punctuation", "ByteLevel regex", "Digits", "[0-9][0-9][0-9]"})) {
    return PreTokenizer::kFalcon;
  }
  // The newline class is written with the characters themselves, or with escapes.
  const bool splits_newlines = !steps.empty() && (steps[0] == "[\r\n]" || steps[0] == R"([\r\n])");
  if (splits_newlines && steps.size() == 5 && steps[1] == R"(\s?\p{L}+)" &&
      steps[2] == R"(\s?\p{P}+)" && steps[3] == kDeepSeekCjkRegex &&
      steps[4] == "Digits individual") {
    return PreTokenizer::kDeepSeekCoder;
  }
  if (splits_newlines && steps.size() == 6 && steps[1].starts_with(kDeepSeekLlmLettersStart) &&
      steps[3] == R"(\s+$)" && steps[4] == kDeepSeekCjkRegex && steps[5].starts_with("Digits")) {
    return PreTokenizer::kDeepSeekLlm;
  }
  return std::nullopt;
}

}  // namespace sluice
