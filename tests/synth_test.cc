#include "layout/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "layout/gguf.h"
#include "layout/model_source.h"
#include "layout/synth_measure.h"
#include "layout/synth_plan.h"
#include "layout/synth_vocab.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;

SynthOptions TinyOptions() {
  SynthOptions options;
  options.shape = *FindSynthPreset("tiny");
  return options;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class SynthTest : public ::testing::Test {
 protected:
  // Plans and writes a model; `plan_` and `path_` are its.
  void Write(const SynthOptions& options, SynthWriteOptions write = {}) {
    uint64_t done = 0, total = 0;
    write.progress = [&](uint64_t d, uint64_t t) {
      EXPECT_GT(d, done);
      done = d;
      total = t;
      return true;
    };
    auto plan = SynthPlan::Make(options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    plan_ = std::make_unique<SynthPlan>(*std::move(plan));
    const auto bytes = WriteSynthModel(*plan_, path_, write);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(*bytes, std::filesystem::file_size(path_));
    EXPECT_EQ(done, total);
    EXPECT_GT(done, 0u);
  }

  SynthMeasurement Measure(uint32_t n_tokens) {
    const auto measurement = MeasureSynthModel(*plan_, path_, n_tokens, 2);
    EXPECT_TRUE(measurement.ok()) << measurement.status();
    return measurement.ok() ? *measurement : SynthMeasurement{};
  }

  TempDir dir_;
  const std::string path_ = dir_.File("synth.gguf");
  std::unique_ptr<SynthPlan> plan_;
};

#ifdef SLUICE_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
// What takes long and is code that another test walks over too.
constexpr char kWalked[] = "to a sanitizer this is the same as AchievesTheDefaultActivity";

TEST_F(SynthTest, OpensAsAnOrdinaryLlamaModelThatSaysItIsGenerated) {
  Write(TinyOptions());
  const auto source = OpenModelSource(path_, {});
  ASSERT_TRUE(source.ok()) << source.status();
  const ModelConfig& config = (*source)->config();
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.name, "sluice synth tiny (generated)");
  EXPECT_EQ(config.d_model, 256u);
  EXPECT_EQ(config.d_ff, 1024u);
  EXPECT_EQ(config.n_layers, 4u);
  EXPECT_EQ(config.n_kv_heads, 4u);
  EXPECT_EQ(config.activation, Activation::kRelu);
  EXPECT_EQ(config.activation_origin, ActivationOrigin::kMetadata);
  EXPECT_FALSE(config.tied_head);
  EXPECT_EQ((*source)->Find("blk.0.ffn_gate.weight")->type, SourceType::kQ4_0);
  EXPECT_EQ((*source)->tokenizer().tokens, MakeSynthVocabulary(2048).tokens);

  const auto file = GgufFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(*(*file)->GetBool("sluice.generated"));
}

TEST_F(SynthTest, GivesTheSameBytesForASeedWithAnyNumberOfThreads) {
  Write(TinyOptions(), {.n_threads = 1});
  const std::string one_thread = ReadAll(path_);
  Write(TinyOptions(), {.overwrite = true, .n_threads = 3});
  EXPECT_TRUE(one_thread == ReadAll(path_));

  SynthOptions other = TinyOptions();
  other.seed = 2;
  Write(other, {.overwrite = true});
  EXPECT_EQ(one_thread.size(), ReadAll(path_).size());
  EXPECT_FALSE(one_thread == ReadAll(path_));
}

TEST_F(SynthTest, AchievesTheDefaultActivity) {
  Write(TinyOptions());
  const SynthMeasurement m = Measure(256);
  EXPECT_NEAR(m.active_mean, 0.10, 0.01);
  EXPECT_GE(m.active_min, 0.085);
  EXPECT_LE(m.active_max, 0.115);
  EXPECT_NEAR(m.neurons_for_80_percent, 0.26, 0.04);
  EXPECT_NEAR(m.cold_overlap, 0.50, 0.03);
  EXPECT_GT(m.overlap, m.cold_overlap);  // hot neurons persist by themselves
  EXPECT_GT(m.coactivation_within, 2.0 * m.coactivation_across);
  EXPECT_LT(m.coactivation_within, 0.20);  // of cold neurons, as published
}

TEST_F(SynthTest, AchievesOtherActivityThatWasAskedFor) {
  if (kSanitized) GTEST_SKIP() << kWalked;
  SynthOptions options = TinyOptions();
  options.active = 0.25;
  options.zipf = 0.5;
  options.groups = 8;
  options.persistence = 0.35;
  options.seed = 7;
  Write(options);
  const SynthMeasurement m = Measure(256);
  EXPECT_NEAR(m.active_mean, 0.25, 0.02);
  EXPECT_NEAR(m.cold_overlap, 0.35, 0.03);
  EXPECT_GT(m.neurons_for_80_percent, 0.55);  // flat heat needs many neurons
  EXPECT_GT(m.coactivation_within, 1.3 * m.coactivation_across);
}

TEST_F(SynthTest, WithoutGroupsOrContextNeuronsAreIndependent) {
  if (kSanitized) GTEST_SKIP() << kWalked;
  SynthOptions options = TinyOptions();
  options.zipf = 0.0;
  options.groups = 0;
  options.persistence = 0.1;  // of equally hot neurons, what chance gives at 10 % active
  Write(options);
  const SynthMeasurement m = Measure(256);
  EXPECT_NEAR(m.active_mean, 0.10, 0.01);
  EXPECT_NEAR(m.neurons_for_80_percent, 0.80, 0.02);
  EXPECT_NEAR(m.cold_overlap, 0.10, 0.02);
  EXPECT_EQ(m.coactivation_within, 0.0);
}

TEST_F(SynthTest, NeuronsOfACloselyCorrelatedGroupFireTogether) {
  if (kSanitized) GTEST_SKIP() << kWalked;
  SynthOptions options = TinyOptions();
  options.group_correlation = 0.95;
  Write(options);
  const SynthMeasurement m = Measure(256);
  EXPECT_NEAR(m.active_mean, 0.10, 0.02);
  EXPECT_GT(m.coactivation_within, 0.35);
  EXPECT_GT(m.coactivation_within, 5.0 * m.coactivation_across);
}

TEST_F(SynthTest, GreedyDecodingDoesNotRepeatItselfInAnyType) {
  if (kSanitized) GTEST_SKIP() << kWalked;
  for (const char* name : {"q4_0", "f16", "f32"}) {
    SCOPED_TRACE(name);
    SynthOptions options = TinyOptions();
    options.type = *ParseSynthType(name);
    Write(options, {.overwrite = true});
    const SynthMeasurement m = Measure(64);
    ASSERT_GE(m.walk.size(), 64u);
    EXPECT_EQ(std::set<uint32_t>(m.walk.begin(), m.walk.end()).size(), m.walk.size());
    EXPECT_EQ(m.walk.front(), kSynthBosToken);
    EXPECT_GT(m.least_margin, 1.0f);
  }
}

TEST_F(SynthTest, MeasuringNoticesThatTheFileIsNotWhatWasPlanned) {
  Write(TinyOptions());
  SynthOptions other = TinyOptions();
  other.seed = 2;
  const auto plan = SynthPlan::Make(other);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto measurement = MeasureSynthModel(*plan, path_, 8, 1);
  EXPECT_EQ(measurement.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(measurement.status().message()), HasSubstr("planted walk"));

  other.shape.d_ff = 2048;
  const auto wider = SynthPlan::Make(other);
  ASSERT_TRUE(wider.ok()) << wider.status();
  EXPECT_EQ(MeasureSynthModel(*wider, path_, 8, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SynthTest, RefusesToMeasureNoTokensOrTooMany) {
  Write(TinyOptions());
  EXPECT_EQ(MeasureSynthModel(*plan_, path_, 0, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MeasureSynthModel(*plan_, path_, kMaxMeasuredTokens + 1, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SynthTest, RefusesToReplaceAFileUnlessAsked) {
  std::ofstream(path_) << "precious";
  const auto plan = SynthPlan::Make(TinyOptions());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(WriteSynthModel(*plan, path_, {}).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadAll(path_), "precious");
}

TEST_F(SynthTest, LeavesNothingBehindWhenTheFileCannotBeWrittenWhole) {
  const auto plan = SynthPlan::Make(TinyOptions());
  ASSERT_TRUE(plan.ok()) << plan.status();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    _exit(WriteSynthModel(*plan, path_, {.n_threads = 1}).ok() ? 0 : 42);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 42);
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

TEST_F(SynthTest, WritesInMemoryThatDoesNotGrowWithTheFile) {
#ifdef SLUICE_SANITIZED
  GTEST_SKIP() << "sanitizers keep freed memory";
#endif
  SynthOptions options = TinyOptions();
  options.type = SourceType::kF32;
  options.shape.vocab_size = 60000;
  const auto plan = SynthPlan::Make(options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(WriteSynthModel(*plan, path_, {}).ok() ? 0 : 42);
  int status = 0;
  rusage usage = {};
  ASSERT_EQ(wait4(child, &status, 0, &usage), child);
  ASSERT_TRUE(WIFEXITED(status));
  ASSERT_EQ(WEXITSTATUS(status), 0);
  EXPECT_GT(std::filesystem::file_size(path_), 128u << 20);
  EXPECT_LT(usage.ru_maxrss, 64 << 10);  // KiB
}

TEST(SynthPresetTest, AllPresetsCanBePlanned) {
  ASSERT_FALSE(SynthPresets().empty());
  for (const SynthShape& shape : SynthPresets()) {
    SCOPED_TRACE(shape.name);
    SynthOptions options;
    options.shape = shape;
    const auto plan = SynthPlan::Make(options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_THAT(plan->heat(), Each(AllOf(Ge(0.0), Le(0.98))));
    double sum = 0.0, hottest = 0.0;
    for (const double p : plan->heat()) sum += p;
    for (size_t rank = 0; rank < plan->heat().size() * 26 / 100; ++rank) {
      hottest += plan->heat()[rank];
    }
    EXPECT_NEAR(sum / shape.d_ff, 0.10, 1e-6);
    EXPECT_NEAR(hottest / sum, 0.80, 0.01);
  }
}

TEST(SynthPresetTest, RefusesAnUnknownNameAndListsTheKnown) {
  const absl::Status status = FindSynthPreset("70b").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tiny, 1b, 3b, 7b"));
  EXPECT_EQ(ParseSynthType("q4_k").status().code(), absl::StatusCode::kInvalidArgument);
}

// The message of the refusal, or nothing if the options are accepted.
std::string Refusal(const SynthOptions& options) {
  const auto plan = SynthPlan::Make(options);
  return plan.ok() ? "" : std::string(plan.status().message());
}

TEST(SynthPlanTest, NamesTheOptionThatIsOutOfRange) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {-0.1, 0.0, 0.6, 1.0, kNan}) {
    SynthOptions options = TinyOptions();
    options.active = bad;
    EXPECT_THAT(Refusal(options), HasSubstr("--active"));
  }
  for (const double bad : {-1.0, 4.0, kNan}) {
    SynthOptions options = TinyOptions();
    options.zipf = bad;
    EXPECT_THAT(Refusal(options), HasSubstr("--zipf"));
  }
  for (const double bad : {-1.0, 0.05, 0.9, 1.0, kNan}) {
    SynthOptions options = TinyOptions();
    options.persistence = bad;
    EXPECT_THAT(Refusal(options), HasSubstr("--persistence"));
  }
  for (const double bad : {-0.1, 1.0, kNan}) {
    SynthOptions options = TinyOptions();
    options.group_correlation = bad;
    EXPECT_THAT(Refusal(options), HasSubstr("--group-correlation"));
  }
  SynthOptions even = TinyOptions();  // all neurons alike, and none below kColdShare
  even.active = 0.5;
  even.zipf = 0.0;
  EXPECT_THAT(Refusal(even), testing::Not(HasSubstr("nan")));
  SynthOptions options = TinyOptions();
  options.groups = 1000000;
  EXPECT_THAT(Refusal(options), HasSubstr("--groups"));
}

TEST(SynthPlanTest, RefusesShapesThatCannotHoldTheStructure) {
  const SynthOptions good = TinyOptions();
  ASSERT_THAT(Refusal(good), IsEmpty());
  SynthOptions bad = good;
  bad.shape.d_model = 128;
  EXPECT_NE(Refusal(bad), "");
  bad = good;
  bad.shape.n_heads = 16;  // heads of 16
  EXPECT_NE(Refusal(bad), "");
  bad = good;
  bad.shape.vocab_size = 300;
  EXPECT_NE(Refusal(bad), "");
  bad = good;
  bad.shape.n_heads = 0;
  EXPECT_NE(Refusal(bad), "");
  bad = good;
  bad.type = SourceType::kQ6_K;
  EXPECT_NE(Refusal(bad), "");
}

TEST(SynthPlanTest, AcceptsEveryActivityInRangeWithItsDefaults) {
  for (const double active : {0.005, 0.02, 0.3, 0.5}) {
    for (const double zipf : {0.0, 1.25, 3.0}) {
      SynthOptions options = TinyOptions();
      options.active = active;
      options.zipf = zipf;
      const auto plan = SynthPlan::Make(options);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_TRUE(plan->context_share() >= 0.0 && plan->context_share() <= 1.0);
    }
  }
}

TEST(SynthPlanTest, TheGreedyCycleVisitsEveryOrdinaryTokenOnce) {
  const auto plan = SynthPlan::Make(TinyOptions());
  ASSERT_TRUE(plan.ok()) << plan.status();
  const uint32_t n = 2048 - kFirstSynthOrdinaryToken;
  std::set<uint32_t> seen;
  uint32_t token = kFirstSynthOrdinaryToken;
  for (uint32_t i = 0; i < n; ++i) {
    EXPECT_TRUE(token >= kFirstSynthOrdinaryToken && token < 2048);
    EXPECT_EQ(plan->Predecessor(plan->Successor(token)), token);
    seen.insert(token);
    token = plan->Successor(token);
  }
  EXPECT_EQ(seen.size(), n);
  EXPECT_EQ(token, kFirstSynthOrdinaryToken);
}

TEST(SynthVocabularyTest, HoldsDistinctPiecesThatMergesCanReach) {
  for (const uint32_t size : {kMinSynthVocabulary, 2048u, 32000u, kMaxSynthVocabulary}) {
    SCOPED_TRACE(size);
    const TokenizerData data = MakeSynthVocabulary(size);
    EXPECT_TRUE(ValidateTokenizer(data).ok()) << ValidateTokenizer(data);
    ASSERT_EQ(data.tokens.size(), size);
    const std::set<std::string> pieces(data.tokens.begin(), data.tokens.end());
    EXPECT_EQ(pieces.size(), size);
    // A piece of more than one character is two other pieces, joined.
    for (size_t id = kFirstSynthOrdinaryToken; id < size; ++id) {
      const std::string& piece = data.tokens[id];
      if (piece.size() == 1 || piece == "\u2581") continue;
      bool joined = false;
      for (size_t cut = 1; cut < piece.size(); ++cut) {
        joined |= pieces.contains(piece.substr(0, cut)) && pieces.contains(piece.substr(cut));
      }
      EXPECT_TRUE(joined) << piece;
    }
  }
}

}  // namespace
}  // namespace sluice
