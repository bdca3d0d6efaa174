#include "layout/printable.h"

#include <string>

#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(PrintableTest, TextStaysAsItIs) {
  for (const char* text :
       {"", "plain text", "h\u00e9llo \u4e16\u754c", "\U0001F600", "a\\b \u00a0"}) {
    EXPECT_EQ(Printable(text), text);
  }
}

TEST(PrintableTest, ControlCharactersAreEscaped) {
  EXPECT_EQ(Printable("a\x1b[31mb"), "a\\x1b[31mb");
  EXPECT_EQ(Printable(std::string("\0\n\r\t\x7f", 5)), "\\x00\\x0a\\x0d\\x09\\x7f");
  EXPECT_EQ(Printable("\u009b1m"), "\\xc2\\x9b1m");  // C1's way to begin an escape sequence
}

TEST(PrintableTest, BytesThatAreNotUtf8AreEscaped) {
  EXPECT_EQ(Printable("\xff\x80"), "\\xff\\x80");
  EXPECT_EQ(Printable("\xc3"), "\\xc3");
  EXPECT_EQ(Printable("\xe2\x82"), "\\xe2\\x82");
  EXPECT_EQ(Printable("\xc0\xaf"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
}

TEST(PrintableTest, CutsBetweenCharacters) {
  EXPECT_EQ(Printable("abc", 2), "ab");
  EXPECT_EQ(Printable("a\u00e9b", 2), "a");
  EXPECT_EQ(Printable("a\u00e9b", 3), "a\u00e9");
  EXPECT_EQ(Printable("a\nb", 4), "a");
}

TEST(PrintableTest, AStatusKeepsItsCode) {
  EXPECT_TRUE(Printable(absl::OkStatus()).ok());
  const absl::Status status = Printable(absl::DataLossError("key \"\x07\""));
  EXPECT_EQ(status, absl::DataLossError("key \"\\x07\""));
  EXPECT_LE(Printable(absl::DataLossError(std::string(1 << 20, 'k'))).message().size(), 4096u);
}

}  // namespace
}  // namespace sluice
