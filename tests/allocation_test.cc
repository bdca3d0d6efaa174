// Steady-state decoding allocates nothing. This binary replaces the allocation functions of the C
// library, below operator new, by ones that count the calls.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/decoder_harness.h"
#include "tests/io_test_files.h"
#include "tests/predicted_model.h"

#if defined(SLUICE_SANITIZED) || !defined(__GLIBC__)
#define SLUICE_COUNTS_ALLOCATIONS 0
#else
#define SLUICE_COUNTS_ALLOCATIONS 1
#endif

namespace {

thread_local uint64_t g_allocations = 0;
std::atomic<uint64_t> g_allocations_of_all = 0;  // threads

[[maybe_unused]] void Count() {
  ++g_allocations;
  g_allocations_of_all.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

#if SLUICE_COUNTS_ALLOCATIONS
extern "C" {

void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* p, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) {
  Count();
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  Count();
  return __libc_calloc(count, size);
}
void* realloc(void* p, size_t size) {
  Count();
  return __libc_realloc(p, size);
}
void* memalign(size_t alignment, size_t size) {
  Count();
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  Count();
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** p, size_t alignment, size_t size) {
  Count();
  *p = __libc_memalign(alignment, size);
  return *p != nullptr ? 0 : ENOMEM;
}

}  // extern "C"
#endif

namespace sluice {
namespace {

class AllocationTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!SLUICE_COUNTS_ALLOCATIONS) {
      GTEST_SKIP() << "a sanitizer or another C library replaces the allocation functions";
    }
  }

  // Allocations of any thread in single tokens after a warm-up that also grows and shrinks the
  // context.
  uint64_t CountWhileDecoding(const SluiceFile& file, const Way& way) {
    const auto decoder = Must(OpenDecoder(file, way));
    const auto tokens = RandomTokens(40, 300);
    MustBeOk(decoder->Forward(std::span(tokens).first(12)));
    MustBeOk(decoder->Forward(std::span(tokens).subspan(12, 1)));
    const uint64_t before = g_allocations_of_all;
    for (size_t t = 13; t < tokens.size(); ++t) {
      MustBeOk(decoder->Forward(std::span(tokens).subspan(t, 1)));
    }
    return g_allocations_of_all - before;
  }
};

TEST_F(AllocationTest, TheCounterCounts) {
  const uint64_t before = g_allocations;
  std::vector<int> v(100);
  EXPECT_NE(v.data(), nullptr);
  EXPECT_GE(g_allocations - before, 1u);
}

TEST_F(AllocationTest, DecodingAllocatesNothingWhateverTheBudgetModeAndEngine) {
  const PackedModel model(ToyModel(), WeightType::kF16);
  for (const DecodeMode mode : {DecodeMode::kDense, DecodeMode::kExact}) {
    for (const EngineKind engine : Engines()) {
      for (const int threads : {1, 3}) {
        Way way;
        way.mode = mode;
        way.engine = engine;
        way.threads = threads;
        const auto budgets = Budgets(model.file(), way);
        for (const uint64_t budget : {budgets.front(), budgets[2], budgets.back()}) {
          way.budget = budget;
          EXPECT_EQ(CountWhileDecoding(model.file(), way), 0u) << Describe(way);
        }
      }
    }
  }
}

TEST_F(AllocationTest, PredictingAllocatesNothing) {
  const PackedModel plain(WideToy(), WeightType::kQ8);
  for (const PredictorInput input :
       {PredictorInput::kNormed, PredictorInput::kResidual, PredictorInput::kPrevious}) {
    const PredictedModel model(plain.file(), input, 0.0f);
    for (const EngineKind engine : Engines()) {
      Way way;
      way.mode = DecodeMode::kPredicted;
      way.engine = engine;
      way.miss_skip = engine == EngineKind::kUring ? 0.0 : 0.3;
      const auto budgets = Budgets(model.file(), way);
      for (const uint64_t budget : {budgets.front(), budgets[4], budgets.back()}) {
        way.budget = budget;
        EXPECT_EQ(CountWhileDecoding(model.file(), way), 0u) << Describe(way);
      }
    }
  }
}

TEST_F(AllocationTest, PredictingHeadsAllocatesNothing) {
  const PackedModel plain(WideToy(), WeightType::kQ8);
  for (const PredictorInput input : {PredictorInput::kResidual, PredictorInput::kPrevious}) {
    const PredictedModel model(plain.file(), PredictorInput::kResidual, 0.0f, /*shuffled=*/false,
                               MadeUpHeads{input, 1.0f});
    Way way;
    way.mode = DecodeMode::kPredicted;
    way.predict_heads = true;
    const auto budgets = Budgets(model.file(), way);
    for (const uint64_t budget : {budgets.front(), budgets[4], budgets.back()}) {
      way.budget = budget;
      EXPECT_EQ(CountWhileDecoding(model.file(), way), 0u) << Describe(way);
    }
  }
}

TEST_F(AllocationTest, MergedReadsAllocateNothing) {
  const PackedModel model(ToyModel(), WeightType::kF16);
  for (const EngineKind engine : Engines()) {
    Way way;
    way.engine = engine;
    way.profile = std::make_shared<const DeviceProfile>(SlowOperations());
    const auto budgets = Budgets(model.file(), way);
    for (const uint64_t budget : {budgets.front(), budgets[2]}) {
      way.budget = budget;
      EXPECT_EQ(CountWhileDecoding(model.file(), way), 0u) << Describe(way);
    }
  }
}

TEST_F(AllocationTest, PromptChunksAllocateNothing) {
  const PackedModel model(ToyModel(), WeightType::kQ8);
  for (const uint32_t chunk : {3u, 64u}) {
    Way way;
    way.chunk = chunk;
    way.budget = Budgets(model.file(), way)[2];
    const auto decoder = Must(OpenDecoder(model.file(), way));
    const auto tokens = RandomTokens(40, 300);
    const uint64_t before = g_allocations;
    MustBeOk(decoder->Forward(tokens));
    EXPECT_EQ(g_allocations - before, 0u) << Describe(way);
  }
}

TEST_F(AllocationTest, MappedWeightsAllocateNothing) {
  const PackedModel model(ToyModel(), WeightType::kF16);
  Way way;
  way.mapped = true;
  EXPECT_EQ(CountWhileDecoding(model.file(), way), 0u);
}

}  // namespace
}  // namespace sluice
