// Prediction of attention heads: which are left out is the predictor's choice; all else, above all
// keys and values that are made later than their tokens, is as if they had been made at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "runtime/predictor_meter.h"
#include "tests/predicted_model.h"

namespace sluice {
namespace {

constexpr size_t kPrompt = 13;
constexpr size_t kDecoded = 40;
constexpr float kAll = -1e30f, kNone = 1e30f;
constexpr PredictorInput kInputs[] = {PredictorInput::kNormed, PredictorInput::kResidual,
                                      PredictorInput::kPrevious};

Way Heads() {
  Way way;
  way.mode = DecodeMode::kPredicted;
  way.predict_heads = true;
  return way;
}
Way NoHeads() {
  Way way = Heads();
  way.predict_heads = false;
  return way;
}

// Eight query heads on four KV heads; Q, K and V biases as in Qwen2.
ToyModel ManyHeads() {
  ToyModel toy = WideToy();
  toy.architecture = "qwen2";
  toy.n_heads = 8;
  toy.n_kv_heads = 4;
  return toy;
}

class HeadsTest : public testing::Test {
 protected:
  HeadsTest()
      : plain_(ManyHeads(), WeightType::kQ8), tokens_(RandomTokens(kPrompt + kDecoded, 300)) {}

  static PredictedModel Model(const PackedModel& plain, MadeUpHeads heads) {
    return PredictedModel(plain.file(), PredictorInput::kResidual, 0.0f, /*shuffled=*/true, heads);
  }
  Logits Run(const SluiceFile& file, const Way& way) {
    return Must(RunTokens(file, way, tokens_, kPrompt));
  }
  // Logits when somebody looks, for whom K and V of all heads are made at once.
  Logits RunWatched(const SluiceFile& file) {
    PredictorMeter meter(file.config());
    Way way = Heads();
    way.observer = &meter;
    return Run(file, way);
  }

  PackedModel plain_;
  std::vector<int32_t> tokens_;
};

TEST_F(HeadsTest, ChoosingEveryHeadGivesTheLogitsOfPredictedMode) {
  for (const WeightType type : {WeightType::kQ8, WeightType::kF16, WeightType::kQ4}) {
    const PackedModel plain(ManyHeads(), type);
    for (const PredictorInput input : kInputs) {
      const PredictedModel model = Model(plain, {input, kAll});
      EXPECT_TRUE(SameBits(Run(model.file(), Heads()), Run(model.file(), NoHeads())));
    }
  }
}

TEST_F(HeadsTest, ChoosingNoneLeavesAttentionOutAfterThePrompt) {
  const PredictedModel model = Model(plain_, {PredictorInput::kResidual, kNone});
  auto decoder = Must(OpenDecoder(model.file(), Heads()));
  const Logits none = Must(RunTokens(*decoder, tokens_, kPrompt));
  const Logits all = Run(model.file(), NoHeads());
  EXPECT_TRUE(SameBits({none[0]}, {all[0]})) << "prompts compute all heads";
  EXPECT_GT(MaxError(none.back(), all.back()), 1e-3f);
  EXPECT_EQ(decoder->stats().chosen_heads, 0u);
  EXPECT_EQ(decoder->stats().heads, kDecoded * 8 * plain_.file().config().n_layers);
  // Without attention nothing of the tokens before is seen.
  Must(RunTokens(*decoder, std::span(tokens_).last(1), 1));
  EXPECT_TRUE(SameBits({none.back()}, {{decoder->logits().begin(), decoder->logits().end()}}));
}

TEST_F(HeadsTest, KeysAndValuesThatAreMadeLaterAreThoseMadeAtOnce) {
  for (const WeightType type : {WeightType::kQ8, WeightType::kF16, WeightType::kQ4}) {
    const PackedModel plain(ManyHeads(), type);
    for (const PredictorInput input : kInputs) {
      for (const float threshold : {0.0f, 2.0f}) {
        const PredictedModel model = Model(plain, {input, threshold});
        auto decoder = Must(OpenDecoder(model.file(), Heads()));
        const Logits logits = Must(RunTokens(*decoder, tokens_, kPrompt));
        const DecoderStats stats = decoder->stats();
        EXPECT_GT(stats.late_keys, 0u) << "the test is void";
        EXPECT_GT(stats.chosen_heads, 0u);
        EXPECT_LT(stats.chosen_heads, stats.heads);
        EXPECT_TRUE(SameBits(logits, RunWatched(model.file())));
        EXPECT_GT(MaxError(logits.back(), Run(model.file(), NoHeads()).back()), 0.0f);
      }
    }
  }
}

// A gap of more positions than are made up together, which a prompt closes.
TEST_F(HeadsTest, ALongGapIsMadeUp) {
  const PredictedModel model = Model(plain_, {PredictorInput::kResidual, kNone});
  constexpr size_t kGap = 100;
  const auto tokens = RandomTokens(kPrompt + kGap + 9, 300);
  const auto run = [&](FfnObserver* observer, uint64_t* late_keys) {
    Way way = Heads();
    way.context = 256;
    way.threads = 2;
    way.observer = observer;
    auto decoder = Must(OpenDecoder(model.file(), way));
    Must(RunTokens(*decoder, std::span(tokens).first(kPrompt + kGap), kPrompt));
    MustBeOk(decoder->Forward(std::span(tokens).last(9)));
    *late_keys = decoder->stats().late_keys;
    return Logits{{decoder->logits().begin(), decoder->logits().end()}};
  };
  PredictorMeter meter(model.file().config());
  uint64_t late = 0, late_if_watched = 0;
  EXPECT_TRUE(SameBits(run(nullptr, &late), run(&meter, &late_if_watched)));
  EXPECT_EQ(late, kGap * 4 * 4);  // KV heads, layers
  EXPECT_EQ(late_if_watched, 0u);
}

TEST_F(HeadsTest, BudgetsEnginesThreadsAndChunksGiveTheSameBits) {
  tokens_.resize(kPrompt + 20);
  for (const PredictorInput input : {PredictorInput::kResidual, PredictorInput::kPrevious}) {
    const PredictedModel model = Model(plain_, {input, 1.0f});
    const Logits expected = Run(model.file(), Heads());
    ExpectSameBitsEveryWay(model.file(), Heads(), tokens_, kPrompt, expected);
    Way scalar = Heads();
    scalar.kernels = &ScalarKernels();
    EXPECT_TRUE(SameBits(Run(model.file(), scalar), expected));
  }
}

TEST_F(HeadsTest, SmallBudgetsStreamSomeLayersWhole) {
  const PredictedModel model = Model(plain_, {PredictorInput::kResidual, 1.0f});
  const auto note = [&](uint64_t budget) {
    Way way = Heads();
    way.budget = budget;
    return Must(OpenDecoder(model.file(), way))->Notes().back();
  };
  const auto budgets = Budgets(model.file(), Heads());
  EXPECT_THAT(note(budgets.front()),
              testing::HasSubstr("heads predicted too; Q, K and V of 4 of 4 layers are streamed"));
  EXPECT_THAT(note(budgets.back()), testing::EndsWith("heads predicted too"));
}

TEST_F(HeadsTest, OtherTokensMayFollowARewind) {
  const PredictedModel model = Model(plain_, {PredictorInput::kResidual, 2.0f});
  auto decoder = Must(OpenDecoder(model.file(), Heads()));
  Must(RunTokens(*decoder, RandomTokens(60, 300, 99), 9));
  for (const size_t prompt : {kPrompt, size_t{1}, size_t{3}}) {
    decoder->Rewind();
    EXPECT_TRUE(SameBits(Must(RunTokens(*decoder, tokens_, prompt)),
                         Must(RunTokens(model.file(), Heads(), tokens_, prompt))));
  }
}

// A prompt computes all heads: they see positions that have no K and V yet.
TEST_F(HeadsTest, APromptMayFollowSkippedHeads) {
  const PredictedModel model = Model(plain_, {PredictorInput::kResidual, 2.0f});
  const auto run = [&](const Way& way) {
    auto decoder = Must(OpenDecoder(model.file(), way));
    Logits logits;
    for (size_t at = 0; at < tokens_.size();) {
      const size_t n = std::min(at % 3 == 0 ? size_t{9} : size_t{1}, tokens_.size() - at);
      MustBeOk(decoder->Forward(std::span(tokens_).subspan(at, n)));
      logits.emplace_back(decoder->logits().begin(), decoder->logits().end());
      at += n;
    }
    return logits;
  };
  PredictorMeter meter(model.file().config());
  Way watched = Heads();
  watched.observer = &meter;
  EXPECT_TRUE(SameBits(run(Heads()), run(watched)));
}

// Sets a flag once something is read.
class FlaggingEngine final : public ReadEngine {
 public:
  FlaggingEngine(std::unique_ptr<ReadEngine> inner, std::atomic<int>* flag)
      : inner_(std::move(inner)), flag_(flag) {}
  const std::string& description() const override { return inner_->description(); }
  uint32_t depth() const override { return inner_->depth(); }
  absl::StatusOr<uint32_t> Submit(std::span<const ReadOp> ops) override {
    *flag_ = 1;
    return inner_->Submit(ops);
  }
  absl::StatusOr<uint32_t> Reap(std::span<ReadResult> results, bool wait) override {
    return inner_->Reap(results, wait);
  }
  void Wake() override { inner_->Wake(); }

 private:
  std::unique_ptr<ReadEngine> inner_;
  std::atomic<int>* flag_;
};

TEST_F(HeadsTest, OtherTokensMayFollowAPassThatFailedHalfway) {
  ToyModel toy = ManyHeads();
  toy.tied_head = true;  // so that nothing is read before the first layer
  const PackedModel plain(toy, WeightType::kQ8);
  const PredictedModel model = Model(plain, {PredictorInput::kResidual, 1.0f});
  Way way = Heads();
  way.budget = Budgets(model.file(), way)[3];  // attention stays in DRAM, bundles do not all
  const MemoryPlan plan = Must(PlanMemory(model.file(), way.request()));
  std::atomic<int> has_read = 0;
  DecoderOptions options;
  options.engine = EngineKind::kPread;
  options.look_ahead = false;
  options.wrap_engine = [&](std::unique_ptr<ReadEngine> engine, const StorageFile&) {
    return std::make_unique<FlaggingEngine>(std::move(engine), &has_read);
  };
  auto decoder = Must(Decoder::Create(model.file(), plan, options));
  ASSERT_THAT(decoder->Notes().back(), testing::EndsWith("heads predicted too"));
  const auto others = RandomTokens(tokens_.size(), 300, 5);
  const Logits expected = Run(model.file(), Heads());
  MustBeOk(decoder->Forward(std::span(tokens_).first(kPrompt)));
  Logits logits = {{decoder->logits().begin(), decoder->logits().end()}};
  size_t n_stopped = 0;
  for (size_t i = kPrompt; i < tokens_.size(); ++i) {
    const uint64_t before = decoder->stats().heads;
    has_read = 0;
    const absl::Status status = decoder->Forward({&others[i], 1}, &has_read);
    ASSERT_TRUE(absl::IsCancelled(status)) << status;
    n_stopped += decoder->stats().heads > before;
    MustBeOk(decoder->Forward({&tokens_[i], 1}));
    logits.emplace_back(decoder->logits().begin(), decoder->logits().end());
  }
  EXPECT_GT(n_stopped, kDecoded / 2) << "stopped before any layer was done: the test is void";
  EXPECT_TRUE(SameBits(logits, expected));
}

TEST_F(HeadsTest, TheMeterSeesWhatTheDecoderCounts) {
  const PredictedModel model = Model(plain_, {PredictorInput::kResidual, 0.0f});
  PredictorMeter meter(model.file().config());
  meter.MeasureHeads(Must(HeadNeeds::Create(model.file(), 0, 4, 0.9)));
  Way way = Heads();
  way.observer = &meter;
  auto decoder = Must(OpenDecoder(model.file(), way));
  Must(RunTokens(*decoder, tokens_, kPrompt));
  ASSERT_EQ(meter.head_layers().size(), 4u);
  const PredictorQuality all = SumOf(meter.head_layers());
  EXPECT_EQ(all.n_neurons, decoder->stats().heads);
  EXPECT_EQ(all.n_predicted, decoder->stats().chosen_heads);
  EXPECT_GT(all.n_hits, 0u);
  EXPECT_GT(all.n_active, all.n_hits) << "made-up predictors miss some";
  EXPECT_LT(all.n_active, all.n_neurons);
}

TEST_F(HeadsTest, WhatIsKeptIsPlannedAndOnlyOnRequest) {
  const PredictedModel model = Model(plain_, {PredictorInput::kResidual, 0.0f});
  const MemoryPlan with = Must(PlanMemory(model.file(), Heads().request()));
  const MemoryPlan without = Must(PlanMemory(model.file(), NoHeads().request()));
  // 64 positions of 4 layers, 96 quants and 3 scales and sums of blocks.
  EXPECT_GE(with.minimum, without.minimum + 64 * 4 * (96 + 3 * 8));
  const auto is_kept = [](const PlanItem& i) { return i.name == "inputs of skipped heads"; };
  EXPECT_EQ(std::count_if(with.items.begin(), with.items.end(), is_kept), 1);
  EXPECT_EQ(std::count_if(without.items.begin(), without.items.end(), is_kept), 0);
  Way exact = Heads();
  exact.mode = DecodeMode::kExact;
  EXPECT_LT(Must(PlanMemory(model.file(), exact.request())).minimum, with.minimum);
}

TEST_F(HeadsTest, AModelWithoutPredictorsOfHeadsIsToldWhatToDo) {
  const PredictedModel model(plain_.file(), PredictorInput::kResidual, 0.0f);
  const auto plan = PlanMemory(model.file(), Heads().request());
  EXPECT_TRUE(absl::IsFailedPrecondition(plan.status()));
  EXPECT_THAT(plan.status().message(), testing::HasSubstr("sluice train --heads"));
}

}  // namespace
}  // namespace sluice
