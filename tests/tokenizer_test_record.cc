// Validation and the stored record.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
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
  EXPECT_EQ(std::vector({a.bos, a.eos, a.eot, a.unk}), std::vector({b.bos, b.eos, b.eot, b.unk}));
  EXPECT_EQ(std::vector({a.add_bos, a.add_eos, a.add_space_prefix, a.ignore_merges}),
            std::vector({b.add_bos, b.add_eos, b.add_space_prefix, b.ignore_merges}));
}

std::vector<TokenizerData> SmallVocabularies() {
  TokenizerData sp = SmallSentencePiece();
  sp.add_eos = true;
  TokenizerData bpe = SmallByteBpe();
  bpe.ignore_merges = true;
  bpe.end_ids = {3, 7};
  return {sp, bpe};
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
      {"end-of-turn token has id", [](auto& d) { d.eot = 1 << 30; }},
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
