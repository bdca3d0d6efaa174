// What a budget buys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/memory_plan.h"
#include "tests/decoder_harness.h"

namespace sluice {
namespace {

using testing::HasSubstr;

class PlanTest : public testing::Test {
 protected:
  static ToyModel DeepToy() {
    ToyModel toy;
    toy.n_layers = 8;
    toy.d_model = 64;
    toy.d_ff = 96;
    toy.n_heads = 4;
    return toy;
  }

  PlanTest() : model_(DeepToy(), WeightType::kF16) {
    way_.context = 32;
    unlimited_ = Must(PlanMemory(model_.file(), way_.request()));
  }

  MemoryPlan Plan(uint64_t budget) {
    way_.budget = budget;
    return Must(PlanMemory(model_.file(), way_.request()));
  }

  // Every budget of interest, in rising order.
  std::vector<uint64_t> ManyBudgets() {
    std::vector<uint64_t> budgets;
    // Closer where there is little.
    for (uint64_t b = unlimited_.minimum; b < 2 * unlimited_.everything; b += b / 100) {
      budgets.push_back(b);
    }
    return budgets;
  }

  // What a token that finds nothing in the cache has to read.
  uint64_t StreamedBytes(const MemoryPlan& plan) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan.resident.size(); ++i) {
      if (!plan.resident[i] && model_.file().matrix(i).role != MatrixRole::kEmbedding) {
        bytes += model_.file().matrix(i).n_bytes();
      }
    }
    return bytes;
  }

  PackedModel model_;
  Way way_;
  MemoryPlan unlimited_;
};

TEST_F(PlanTest, BelowTheMinimumIsRefusedNamingTheMinimum) {
  for (const uint64_t budget : {uint64_t{0}, uint64_t{1}, unlimited_.minimum - 1}) {
    way_.budget = budget;
    const absl::Status status = PlanMemory(model_.file(), way_.request()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(unlimited_.minimum)));
  }
}

TEST_F(PlanTest, MappedWeightsAreNotInTheBudgetButTheRestIs) {
  way_.mapped = true;
  way_.budget = UINT64_MAX;
  const MemoryPlan plan = Must(PlanMemory(model_.file(), way_.request()));
  EXPECT_LT(plan.total, unlimited_.everything);
  EXPECT_EQ(plan.total, plan.minimum);
  way_.budget = plan.minimum - 1;
  EXPECT_EQ(PlanMemory(model_.file(), way_.request()).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(PlanTest, TheMinimumIsEnoughToDecode) {
  const auto tokens = RandomTokens(12, 300);
  const Logits plain = Must(RunTokens(model_.file(), way_, tokens, 10));
  way_.budget = unlimited_.minimum;
  EXPECT_TRUE(SameBits(Must(RunTokens(model_.file(), way_, tokens, 10)), plain));
}

TEST_F(PlanTest, TheTotalIsTheSumOfTheItemsAndNeverAboveTheBudget) {
  for (const uint64_t budget : ManyBudgets()) {
    const MemoryPlan plan = Plan(budget);
    uint64_t sum = 0;
    for (const PlanItem& item : plan.items) sum += item.bytes;
    EXPECT_EQ(plan.total, sum);
    EXPECT_LE(plan.total, budget);
    EXPECT_EQ(plan.minimum, unlimited_.minimum);
    EXPECT_GE(plan.n_slots, 1u);
    EXPECT_GE(plan.n_buffers, 2u);
    EXPECT_GE(plan.chunk, 1u);
  }
}

TEST_F(PlanTest, NothingIsReadTwiceFromTheBudgetThatSaysSo) {
  const uint32_t all = model_.file().config().n_layers * model_.file().bundles().d_ff;
  for (const uint64_t budget : ManyBudgets()) {
    const MemoryPlan plan = Plan(std::max(budget, unlimited_.everything));
    EXPECT_EQ(plan.n_slots, all) << plan.request.budget;
    EXPECT_EQ(std::count(plan.resident.begin(), plan.resident.end(), false), 0);
    EXPECT_EQ(Plan(budget).everything, unlimited_.everything) << budget;
  }
}

TEST_F(PlanTest, ALargerBudgetStreamsNoMoreOfTheMatrices) {
  uint64_t streamed = UINT64_MAX;
  uint32_t buffers_and_chunk = 0;
  for (const uint64_t budget : ManyBudgets()) {
    const MemoryPlan plan = Plan(budget);
    // Where scratch or stream buffers grow, they take what a matrix could have had.
    const uint32_t now = plan.n_buffers + plan.chunk;
    if (now == buffers_and_chunk) {
      EXPECT_LE(StreamedBytes(plan), streamed) << budget;
    }
    buffers_and_chunk = now;
    streamed = StreamedBytes(plan);
  }
  EXPECT_EQ(streamed, 0u);
}

TEST_F(PlanTest, ResidentGateMatricesAreSpreadOverTheLayers) {
  const SluiceFile& file = model_.file();
  const uint32_t n_layers = file.config().n_layers;
  bool seen_half = false;
  for (const uint64_t budget : ManyBudgets()) {
    const MemoryPlan plan = Plan(budget);
    std::vector<uint32_t> resident;
    for (uint32_t l = 0; l < n_layers; ++l) {
      if (plan.resident[file.MatrixIndex(MatrixRole::kGate, l)]) resident.push_back(l);
    }
    if (resident.size() != n_layers / 2) continue;
    seen_half = true;
    for (size_t i = 1; i < resident.size(); ++i) EXPECT_EQ(resident[i] - resident[i - 1], 2u);
  }
  EXPECT_TRUE(seen_half);
}

TEST_F(PlanTest, ALongerContextAndMoreThreadsCostMore) {
  const uint64_t minimum = unlimited_.minimum;
  way_.context = 64;
  const uint64_t longer = Must(PlanMemory(model_.file(), way_.request())).minimum;
  EXPECT_GE(longer - minimum, Attention::KvBytes(model_.file().config(), 32));
  way_.threads = 8;
  EXPECT_GT(Must(PlanMemory(model_.file(), way_.request())).minimum, longer);
}

TEST(FormatBytesTest, UsesBinaryUnits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.50 KiB");
  EXPECT_EQ(FormatBytes(uint64_t{3} << 30), "3.00 GiB");
}

}  // namespace
}  // namespace sluice
