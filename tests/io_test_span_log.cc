// What goes into the picture of a token, and what is lost when there is too much of it.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "io/span_log.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<uint64_t> Ids(const SpanLog& log, size_t lane) {
  std::vector<uint64_t> ids;
  for (const Span& s : log.Spans(lane)) ids.push_back(s.id);
  return ids;
}

TEST(SpanLogTest, ALaneKeepsTheNewestInTheirOrder) {
  SpanLog log(2, 3);
  for (uint64_t i = 1; i <= 3; ++i) log.Add(0, {.begin_ns = i, .end_ns = 10 * i, .id = i});
  EXPECT_THAT(Ids(log, 0), ElementsAre(1, 2, 3));
  EXPECT_EQ(log.complete_since_ns(), 0u) << "nothing was overwritten";
  for (uint64_t i = 4; i <= 5; ++i) log.Add(0, {.begin_ns = i, .end_ns = 10 * i, .id = i});
  EXPECT_THAT(Ids(log, 0), ElementsAre(3, 4, 5));
  EXPECT_THAT(Ids(log, 1), IsEmpty());
  EXPECT_GE(log.complete_since_ns(), 20u) << "what ended then is gone";
  EXPECT_LE(log.complete_since_ns(), 30u) << "and what ended then is there";
}

TEST(SpanLogTest, AnInnerStageEndsBeforeTheOuterOneGoesOn) {
  SpanLog log(1, 8);
  const std::string before = log.stage();
  {
    const StageSpan outer(&log, "ffn", 7);
    {
      const StageSpan inner(&log, "down", 9);
      EXPECT_STREQ(log.stage(), "down");
    }
    EXPECT_STREQ(log.stage(), "ffn");
  }
  EXPECT_EQ(log.stage(), before);
  const std::vector<Span> spans = log.Spans(0);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_STREQ(spans[0].name, "down");
  EXPECT_STREQ(spans[1].name, "ffn");
  EXPECT_EQ(spans[1].id, 7u);
  EXPECT_LE(spans[1].begin_ns, spans[0].begin_ns);
  EXPECT_GE(spans[1].end_ns, spans[0].end_ns);
}

TEST(SpanLogTest, WithoutALogAStageLeavesNothing) { const StageSpan span(nullptr, "ffn", 0); }

}  // namespace
}  // namespace sluice
