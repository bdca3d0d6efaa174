// Validation and the stored record.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "layout/byte_io.h"
#include "layout/tokenizer_data.h"
#include "tests/tokenizer_test_data.h"

namespace sluice {
namespace {

using testing::HasSubstr;

void ExpectEqual(const TokenizerData& a, const TokenizerData& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.pre, b.pre);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.scores, b.scores);
  EXPECT_EQ(a.types, b.types);
  EXPECT_EQ(a.merges, b.merges);
  EXPECT_EQ(a.end_ids, b.end_ids);
  EXPECT_EQ(std::vector({a.bos, a.eos, a.unk}), std::vector({b.bos, b.eos, b.unk}));
  EXPECT_EQ(std::vector({a.add_bos, a.add_eos, a.ignore_merges}),
            std::vector({b.add_bos, b.add_eos, b.ignore_merges}));
  EXPECT_EQ(a.space_prefix, b.space_prefix);
}

std::vector<TokenizerData> SmallVocabularies() {
  TokenizerData sp = SmallSentencePiece();
  sp.add_eos = true;
  TokenizerData first = sp;
  first.space_prefix = SpacePrefix::kFirstPartUnlessSpace;
  TokenizerData each = sp;
  each.space_prefix = SpacePrefix::kEachPartUnlessSpace;
  TokenizerData bpe = SmallByteBpe();
  bpe.ignore_merges = true;
  bpe.end_ids = {3, 7};
  return {sp, first, each, bpe};
}

TEST(TokenizerRecordTest, ReadsBackWhatWasWritten) {
  for (const TokenizerData& data : SmallVocabularies()) {
    ByteWriter out;
    WriteTokenizer(data, out);
    ByteReader in(out.bytes());
    const auto read = ReadTokenizer(in);
    ASSERT_TRUE(read.ok()) << read.status();
    ExpectEqual(*read, data);
    EXPECT_EQ(in.remaining(), 0u);
  }
}

TEST(TokenizerRecordTest, RefusesARecordCutShortAtAnyByte) {
  for (const TokenizerData& data : SmallVocabularies()) {
    ByteWriter out;
    WriteTokenizer(data, out);
    const std::span<const std::byte> bytes = out.bytes();
    for (size_t n = 0; n < bytes.size(); ++n) {
      ByteReader in(bytes.first(n));
      ASSERT_FALSE(ReadTokenizer(in).ok()) << "cut at byte " << n;
    }
  }
}

TEST(TokenizerRecordTest, RefusesCountsThatTheRecordCannotHold) {
  ByteWriter out;
  WriteTokenizer(SmallByteBpe(), out);
  std::vector<std::byte> bytes = out.bytes();
  // Version, kind, pre-tokenizer, four flags and four ids come before the two counts.
  for (const size_t at : {size_t{26}, size_t{30}}) {
    std::vector<std::byte> bad = bytes;
    StoreLe<uint32_t>(bad.data() + at, 0xFFFFFFFF);
    ByteReader in(bad);
    EXPECT_EQ(ReadTokenizer(in).status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST(TokenizerRecordTest, RefusesNewerVersionsAndUnknownEnumerators) {
  ByteWriter out;
  WriteTokenizer(SmallByteBpe(), out);
  const auto status_with = [&](size_t at, uint8_t value) {
    std::vector<std::byte> bad = out.bytes();
    bad[at] = std::byte{value};
    ByteReader in(bad);
    return ReadTokenizer(in).status().code();
  };
  EXPECT_EQ(status_with(0, 2), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status_with(4, 2), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status_with(5, 7), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status_with(8, 4), absl::StatusCode::kDataLoss);  // the space prefix
}

// Offsets in a record: bos at 10, eos at 14, end of turn at 18, unk at 22, the count of end ids at
// 26.
TEST(TokenizerRecordTest, AnEndOfTurnOfFormat10BecomesAnEndId) {
  TokenizerData data = SmallByteBpe();
  data.end_ids = {3};
  ByteWriter out;
  WriteTokenizer(data, out);
  std::vector<std::byte> bytes = out.bytes();
  const std::pair<int32_t, std::vector<int32_t>> cases[] = {
      {9, {3, 9}}, {3, {3}}, {data.eos, {3}}, {kNoToken, {3}}};
  for (const auto& [end_of_turn, expected] : cases) {
    StoreLe(bytes.data() + 18, end_of_turn);
    ByteReader in(bytes);
    const auto read = ReadTokenizer(in);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->end_ids, expected);
  }
}

TEST(TokenizerRecordTest, RefusesAnotherNumberOfTokensThanTheModelHas) {
  const TokenizerData data = SmallByteBpe();
  ByteWriter out;
  WriteTokenizer(data, out);
  for (const size_t vocab_size : {data.tokens.size() - 1, data.tokens.size() + 1}) {
    ByteReader in(out.bytes());
    EXPECT_EQ(ReadTokenizer(in, vocab_size).status().code(), absl::StatusCode::kDataLoss);
  }
  ByteReader in(out.bytes());
  EXPECT_TRUE(ReadTokenizer(in, data.tokens.size()).ok());
}

TEST(TokenizerRecordTest, RefusesMoreMergesThanTokensCanHave) {
  TokenizerData data = SmallByteBpe();
  data.merges.assign(kMaxMergesPerToken * data.tokens.size(), "a b");
  EXPECT_TRUE(ValidateTokenizer(data).ok());
  data.merges.push_back("a b");
  EXPECT_EQ(ValidateTokenizer(data).code(), absl::StatusCode::kInvalidArgument);
  ByteWriter out;
  WriteTokenizer(data, out);
  ByteReader in(out.bytes());
  const absl::Status status = ReadTokenizer(in).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("merges"));
}

TEST(TokenizerDataTest, ParsesByteTokensAndNothingElse) {
  EXPECT_EQ(ParseByteToken("<0x00>"), 0);
  EXPECT_EQ(ParseByteToken("<0xfF>"), 255);
  for (const char* bad : {"", "<0x>", "<0x0>", "<0xZZ>", "<0x-1>", "<0x+1>", "<0x 1>", "<0X41>",
                          "<0x041>", "<0x41", "0x41>>", "<0x41>>"}) {
    EXPECT_EQ(ParseByteToken(bad), -1) << bad;
  }
}

TEST(TokenizerDataTest, NamesWhatIsWrong) {
  struct Case {
    const char* message;
    std::function<void(TokenizerData&)> damage;
  };
  const Case cases[] = {
      {"0 tokens", [](auto& d) { d.tokens.clear(); }},
      {"token types", [](auto& d) { d.types.pop_back(); }},
      {"token scores", [](auto& d) { d.scores.pop_back(); }},
      {"merges", [](auto& d) { d.merges.push_back("a b"); }},
      {"BOS token has id", [](auto& d) { d.bos = static_cast<int32_t>(d.tokens.size()); }},
      {"EOS token has id -2", [](auto& d) { d.eos = -2; }},
      {"unknown token has id", [](auto& d) { d.unk = -7; }},
      {"end-of-generation token has id -1",
       [](auto& d) {
         d.end_ids = {0, kNoToken};
       }},
      {"at most", [](auto& d) { d.end_ids.assign(1000, 0); }},
      {"\"<0xZZ>\"", [](auto& d) { d.tokens[5] = "<0xZZ>"; }},
      {"\"<0x-1>\"", [](auto& d) { d.tokens[6] = "<0x-1>"; }},
      {"unknown type", [](auto& d) { d.types[9] = static_cast<TokenType>(0); }},
      {"unknown type", [](auto& d) { d.types[9] = static_cast<TokenType>(7); }},
      {"not finite", [](auto& d) { d.scores[9] = std::numeric_limits<float>::quiet_NaN(); }},
      {"not finite", [](auto& d) { d.scores[9] = std::numeric_limits<float>::infinity(); }},
      {"bytes long", [](auto& d) { d.tokens[260] = std::string(kMaxTokenBytes + 1, 'x'); }},
      {"bytes long", [](auto& d) { d.tokens[1] = std::string(kMaxSpecialBytes + 1, 'x'); }},
  };
  ASSERT_TRUE(ValidateTokenizer(SmallSentencePiece()).ok());
  for (const Case& c : cases) {
    TokenizerData data = SmallSentencePiece();
    c.damage(data);
    const absl::Status status = ValidateTokenizer(data);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

TEST(TokenizerDataTest, EndIdsAreAddedOnceAndInBounds) {
  TokenizerData data = SmallSentencePiece();
  data.end_ids.clear();
  for (const int32_t id : {kNoToken, data.eos, 5, 6, 5}) AddEndId(data, id);
  EXPECT_EQ(data.end_ids, (std::vector<int32_t>{5, 6}));
  for (int32_t id = 0; id < 200; ++id) AddEndId(data, id);
  EXPECT_EQ(data.end_ids.size(), kMaxEndIds);
  EXPECT_TRUE(ValidateTokenizer(data).ok());
}

TEST(TokenizerDataTest, MergesResolveToOrdinaryTokensFirstThenToTheLowestId) {
  TokenizerData data = SmallByteBpe();
  data.merges = {"o h", "o n", "z z"};
  const int32_t control = AddToken(data, "oh", TokenType::kControl);
  std::vector<MergeIds> ids = ResolveMerges(data);
  EXPECT_TRUE(ids[0].resolved());
  EXPECT_EQ(ids[0].result, control) << "as llama.cpp has it";
  EXPECT_EQ(ids[0].left, 'o');
  EXPECT_FALSE(ids[1].resolved());
  EXPECT_EQ(ids[1].result, kNoToken);
  EXPECT_FALSE(ids[2].resolved());
  const int32_t ordinary = AddToken(data, "oh");
  AddToken(data, "oh");
  ids = ResolveMerges(data);
  EXPECT_EQ(ids[0].result, ordinary);
}

TEST(TokenizerDataTest, RefusesMergesThatAreNotTwoParts) {
  for (const char* merge : {"", " ", "ab", "a ", " b", "a  b", "a b c"}) {
    TokenizerData data = SmallByteBpe();
    data.merges.push_back(merge);
    EXPECT_EQ(ValidateTokenizer(data).code(), absl::StatusCode::kInvalidArgument)
        << "\"" << merge << "\"";
  }
}

}  // namespace
}  // namespace sluice
