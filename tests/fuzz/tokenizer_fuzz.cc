// Fuzzes what takes bytes from outside around tokenizers. The first byte of an input chooses: text
// to encode with one of the small vocabularies, a stored record, or a file to import.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "layout/byte_io.h"
#include "layout/tokenizer_import.h"
#include "runtime/tokenizer/text_encoder.h"
#include "runtime/tokenizer/text_stream.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/unicode.h"
#include "tests/tokenizer_test_data.h"

namespace sluice {
namespace {

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char c = DecodeUtf8(text);
    if (c.status != Utf8Status::kValid) return false;
    text.remove_prefix(c.length);
  }
  return true;
}

std::unique_ptr<Tokenizer> Make(const TokenizerData& data) {
  auto tokenizer = Tokenizer::Create(data);
  Require(tokenizer.ok(), "a small vocabulary is valid");
  return *std::move(tokenizer);
}

std::unique_ptr<Tokenizer> MakeByteBpe(PreTokenizer pre, bool ignore_merges) {
  TokenizerData data = SmallByteBpe();
  data.pre = pre;
  data.ignore_merges = ignore_merges;
  return Make(data);
}

void CheckStream(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  TextStream stream(tokenizer, /*begins_text=*/true);
  std::string out;
  for (const int32_t id : ids) {
    out.clear();
    stream.Append(id, out);
    Require(IsUtf8(out), "streamed text is UTF-8 at every token");
  }
  out.clear();
  stream.Flush(out);
  Require(IsUtf8(out), "streamed text is UTF-8 at its end");
}

void CheckRoundTrip(const Tokenizer& tokenizer, std::string_view text, std::string_view expected) {
  const auto ids = tokenizer.Encode(text);
  for (const int32_t id : ids) {
    Require(id >= 0 && static_cast<size_t>(id) < tokenizer.vocab_size(), "ids are in range");
  }
  Require(tokenizer.Decode(ids) == expected, "decoding gives the text back");
  CheckStream(tokenizer, ids);
  // With control tokens parsed the text need not come back, but must stay printable.
  CheckStream(tokenizer, tokenizer.Encode(text, {.parse_special = true}));
}

std::unique_ptr<Tokenizer> MakeSentencePiece(SpacePrefix prefix) {
  TokenizerData data = SmallSentencePiece();
  data.space_prefix = prefix;
  return Make(data);
}

void FuzzSentencePiece(std::string_view text) {
  static const auto plain = MakeSentencePiece(SpacePrefix::kNone);
  CheckRoundTrip(*plain, text, ReplaceSpaceMarks(text));
  // What is put between the parts of a text stays there, so these do not give it back.
  static const std::unique_ptr<Tokenizer> prefixing[] = {
      MakeSentencePiece(SpacePrefix::kEachPart),
      MakeSentencePiece(SpacePrefix::kFirstPartUnlessSpace),
      MakeSentencePiece(SpacePrefix::kEachPartUnlessSpace)};
  for (const auto& tokenizer : prefixing) CheckStream(*tokenizer, tokenizer->Encode(text));
}

void FuzzByteBpe(std::string_view text) {
  static const auto tokenizers = [] {
    std::vector<std::unique_ptr<Tokenizer>> all;
    for (uint8_t pre = 0; pre <= static_cast<uint8_t>(PreTokenizer::kQwen2); ++pre) {
      all.push_back(MakeByteBpe(static_cast<PreTokenizer>(pre), pre % 2 == 0));
    }
    return all;
  }();
  for (const auto& tokenizer : tokenizers) CheckRoundTrip(*tokenizer, text, text);
}

void Use(TokenizerData data) {
  const auto tokenizer = Tokenizer::Create(std::move(data));
  if (!tokenizer.ok()) return;
  const auto ids = (*tokenizer)->Encode("Hello <s> \xFF world 123", {.parse_special = true});
  CheckStream(**tokenizer, ids);
}

void FuzzRecord(std::string_view bytes) {
  ByteReader in(std::as_bytes(std::span(bytes)));
  auto data = ReadTokenizer(in);
  if (!data.ok()) return;
  ByteWriter out;
  WriteTokenizer(*data, out);
  ByteReader again(out.bytes());
  Require(ReadTokenizer(again).ok(), "a record that was read can be written and read");
  Use(*std::move(data));
}

void FuzzImport(const HuggingFaceTokenizerFiles& files) {
  auto imported = ImportHuggingFaceTokenizer(files, "folder");
  if (imported.ok()) Use(std::move(imported->data));
}

constexpr std::string_view kSmallJson =
    R"({"model": {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
        "pre_tokenizer": {"type": "ByteLevel"}})";

}  // namespace
}  // namespace sluice

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 8) {
    case 0:
      sluice::FuzzSentencePiece(rest);
      break;
    case 1:
      sluice::FuzzByteBpe(rest);
      break;
    case 2:
      sluice::FuzzRecord(rest);
      break;
    case 3:
      sluice::FuzzImport({.tokenizer_json = rest});
      break;
    case 4:
      sluice::FuzzImport({.tokenizer_model = rest});
      break;
    case 5:
      sluice::FuzzImport({.tokenizer_json = sluice::kSmallJson, .tokenizer_config = rest});
      break;
    case 6:
      sluice::FuzzImport({.tokenizer_json = sluice::kSmallJson, .generation_config = rest});
      break;
    default:
      sluice::FuzzImport({.tokenizer_json = sluice::kSmallJson, .special_tokens_map = rest});
      break;
  }
  return 0;
}
