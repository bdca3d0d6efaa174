// Profiles of toy models against a plain recomputation from their gates.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "predictor/profile_figures.h"
#include "runtime/profile_run.h"
#include "runtime/tensor_ops.h"
#include "tests/decoder_harness.h"
#include "tests/predicted_model.h"
#include "tests/reference_decoder.h"

namespace sluice {
namespace {

using Gates = std::vector<std::vector<std::vector<float>>>;  // [token][layer][neuron]

// The gates of tokens that go through a model one by one.
class GateRecorder : public FfnObserver {
 public:
  void Observe(const FfnObservation& o) override {
    if (o.layer == 0) gates.emplace_back();
    gates.back().emplace_back(o.gate.begin(), o.gate.end());
  }
  Gates gates;
};

constexpr uint32_t kLength = 8;  // of a sequence

class ProfileRunTest : public testing::Test {
 protected:
  static ActivationProfile Profile(const SluiceFile& file, ProfileRequest request, Way way = {}) {
    request.sequence_tokens = kLength;
    ProfileRun run(file, request);
    way.mode = DecodeMode::kDense;
    way.context = kLength;
    way.observer = &run;
    const auto decoder = Must(OpenDecoder(file, way));
    return Must(run.Run(*decoder));
  }

  static Gates GatesOf(const SluiceFile& file, const ActivationProfile& profile) {
    GateRecorder recorder;
    Way way;
    way.observer = &recorder;
    const auto decoder = Must(OpenDecoder(file, way));
    for (const ProfileSequence& s : profile.sequences()) {
      decoder->Rewind();
      for (const int32_t t : profile.tokens().subspan(s.begin, s.n_tokens)) {
        MustBeOk(decoder->Forward(std::span(&t, 1)));
      }
    }
    return recorder.gates;
  }

  // Everything in the profile, written down the plain way.
  static void ExpectIs(const ActivationProfile& profile, const Gates& gates,
                       const std::function<bool(uint32_t, float)>& is_active) {
    for (uint32_t l = 0; l < profile.n_layers(); ++l) {
      std::vector<uint32_t> counts(profile.n_neurons());
      double overlap = 0;
      uint32_t n_overlaps = 0, n_train = 0, n_held_out = 0;
      for (const ProfileSequence& s : profile.sequences()) {
        std::set<uint32_t> before;
        for (uint32_t t = s.begin; t < s.begin + s.n_tokens; ++t) {
          std::set<uint32_t> active;
          uint32_t n_both = 0;
          for (uint32_t i = 0; i < profile.n_neurons(); ++i) {
            if (!is_active(l, gates[t][l][i])) continue;
            active.insert(i);
            n_both += before.count(i);
          }
          const ActivationTrace& trace = s.held_out ? profile.held_out() : profile.train();
          std::vector<uint32_t> kept;
          trace.Get(s.held_out ? n_held_out++ : n_train++, l, &kept);
          EXPECT_THAT(kept, testing::ElementsAreArray(active)) << "token " << t << ", layer " << l;
          if (s.held_out) continue;
          for (const uint32_t i : active) ++counts[i];
          if (t > s.begin && !active.empty()) {
            overlap += static_cast<double>(n_both) / static_cast<double>(active.size());
            ++n_overlaps;
          }
          before = active;
        }
      }
      EXPECT_THAT(profile.counts(l), testing::ElementsAreArray(counts)) << l;
      EXPECT_DOUBLE_EQ(profile.overlap(l), overlap / n_overlaps) << l;
      EXPECT_GT(overlap, 0) << "the toy shows nothing";
      EXPECT_EQ(profile.n_train_tokens(), n_train);
      EXPECT_EQ(profile.n_held_out_tokens(), n_held_out);
    }
  }

  static std::vector<std::byte> Bytes(const ActivationProfile& profile) {
    return Must(profile.Serialize());
  }
  static std::vector<std::vector<int32_t>> Texts() {
    return {RandomTokens(100, 300, 1), RandomTokens(33, 300, 2)};
  }
};

TEST_F(ProfileRunTest, CutsTextsIntoSequencesOfWhichEveryTenthIsHeldOut) {
  const PackedModel model(ToyModel(), WeightType::kF32);
  const auto texts = Texts();
  const ActivationProfile profile = Profile(model.file(), {.texts = texts, .bos = 1});
  std::vector<uint32_t> lengths;
  for (size_t i = 0; i < profile.sequences().size(); ++i) {
    const ProfileSequence& s = profile.sequences()[i];
    lengths.push_back(s.n_tokens);
    EXPECT_EQ(profile.tokens()[s.begin], 1) << "BOS";
    EXPECT_EQ(s.held_out, i % 10 == 9) << i;
  }
  // Seven and BOS; 100 = 14 x 7 + 2, 33 = 4 x 7 + 5.
  std::vector<uint32_t> expected(20, kLength);
  expected[14] = 3;
  expected[19] = 6;
  EXPECT_EQ(lengths, expected);
  std::vector<int32_t> text;
  for (const ProfileSequence& s : profile.sequences()) {
    const auto tokens = profile.tokens().subspan(s.begin + 1, s.n_tokens - 1);
    text.insert(text.end(), tokens.begin(), tokens.end());
  }
  std::vector<int32_t> all = texts[0];
  all.insert(all.end(), texts[1].begin(), texts[1].end());
  EXPECT_EQ(text, all);
  EXPECT_EQ(Profile(model.file(), {.texts = texts}).tokens().size(), all.size()) << "no BOS";
}

TEST_F(ProfileRunTest, HoldsWhatFiredForEveryActivationWithExactZeros) {
  const auto texts = Texts();
  for (const Activation activation :
       {Activation::kRelu, Activation::kRelu2, Activation::kFatRelu}) {
    ToyModel toy;
    toy.activation = activation;
    toy.threshold = activation == Activation::kFatRelu ? 0.1f : 0.0f;
    const PackedModel model(toy, WeightType::kQ8);
    const ActivationProfile profile = Profile(model.file(), {.texts = texts, .bos = 1});
    EXPECT_TRUE(profile.CheckModel(model.file(), "it").ok());
    EXPECT_TRUE(profile.thresholds().empty());
    ExpectIs(profile, GatesOf(model.file(), profile), [&](uint32_t, float gate) {
      return Activate(activation, toy.threshold, gate) != 0.0f;
    });
  }
}

TEST_F(ProfileRunTest, SparsityIsThatOfAPlainForwardPass) {
  const PackedModel model(ToyModel(), WeightType::kF32);
  const std::vector<std::vector<int32_t>> texts = {RandomTokens(kLength, 300)};
  const ActivationProfile profile = Profile(model.file(), {.texts = texts});
  const auto reference = Must(ReferenceDecoder::Load(model.source()));
  reference.Logits(texts[0]);
  double sparsity = 0;
  for (uint32_t l = 0; l < profile.n_layers(); ++l) sparsity += Sparsity(profile, l);
  EXPECT_NEAR(sparsity / profile.n_layers(), reference.sparsity(), 1e-3);
}

TEST_F(ProfileRunTest, EveryBudgetChunkAndNumberOfThreadsGivesTheSameBytes) {
  const auto texts = Texts();
  for (const bool dense : {false, true}) {
    ToyModel toy = WideToy();
    if (dense) toy.activation = Activation::kSilu;
    const PackedModel model(toy, WeightType::kQ4);
    ProfileRequest request = {.texts = texts, .bos = 1};
    if (dense) request.sparsify = 0.5;
    const std::vector<std::byte> expected = Bytes(Profile(model.file(), request));
    Way way;
    way.mode = DecodeMode::kDense;
    way.context = kLength;
    way.threads = 2;  // the least budget is larger then
    for (const uint64_t budget : Budgets(model.file(), way)) {
      for (const uint32_t chunk : {1u, 3u, 64u}) {
        way.budget = budget;
        way.chunk = chunk;
        way.threads = chunk == 3 ? 2 : 1;
        EXPECT_EQ(Bytes(Profile(model.file(), request, way)), expected) << Describe(way);
      }
    }
  }
}

TEST_F(ProfileRunTest, ThresholdsMakeTheWantedShareInactive) {
  const std::vector<std::vector<int32_t>> texts = {RandomTokens(300, 300)};
  ToyModel toy;
  toy.activation = Activation::kSilu;
  const PackedModel model(toy, WeightType::kF32);
  // No larger ones: many values of |silu| lie close together at its minimum.
  for (const double share : {0.05, 0.25, 0.5}) {
    const ActivationProfile profile =
        Profile(model.file(), {.texts = texts, .bos = 1, .sparsify = share});
    ASSERT_EQ(profile.thresholds().size(), profile.n_layers());
    const auto magnitude = [](float gate) { return std::fabs(gate / (1 + std::exp(-gate))); };
    ExpectIs(profile, GatesOf(model.file(), profile),
             [&](uint32_t l, float gate) { return magnitude(gate) >= profile.thresholds()[l]; });
    for (uint32_t l = 0; l < profile.n_layers(); ++l) {
      EXPECT_GE(Sparsity(profile, l), share) << l;
      EXPECT_NEAR(Sparsity(profile, l), share, 0.005) << l;
    }
  }
}

TEST_F(ProfileRunTest, ANeuronGoesByItsIdWhereverItLies) {
  const PackedModel model(ToyModel(), WeightType::kF32);
  const PredictedModel shuffled(model.file(), PredictorInput::kNormed, 0.0f, /*shuffled=*/true);
  ASSERT_NE(shuffled.file().NeuronAt(0, 0), model.file().NeuronAt(0, 0));
  const auto texts = Texts();
  const ActivationProfile plain = Profile(model.file(), {.texts = texts});
  const ActivationProfile of_shuffled = Profile(shuffled.file(), {.texts = texts});
  EXPECT_TRUE(plain.CheckModel(shuffled.file(), "it").ok());
  // Sums of FFNs differ in their last bits, so layers after the first one may differ a little.
  EXPECT_THAT(of_shuffled.counts(0), testing::ElementsAreArray(plain.counts(0)));
  EXPECT_EQ(of_shuffled.overlap(0), plain.overlap(0));
}

TEST_F(ProfileRunTest, ACacheSeesTheSetsOfAProfileByPosition) {
  const PackedModel model(ToyModel(), WeightType::kF32);
  const PredictedModel shuffled(model.file(), PredictorInput::kNormed, 0.0f, /*shuffled=*/true);
  const auto texts = Texts();
  const ActivationProfile profile = Profile(model.file(), {.texts = texts});
  const ActivationTrace by_position = SetsByPosition(profile.train(), shuffled.file());
  EXPECT_EQ(by_position.model_id(), shuffled.file().model_id());
  ASSERT_EQ(by_position.n_tokens(), profile.train().n_tokens());
  std::vector<uint32_t> expected, positions;
  for (uint32_t t = 0; t < by_position.n_tokens(); ++t) {
    for (uint32_t l = 0; l < profile.n_layers(); ++l) {
      profile.train().Get(t, l, &expected);
      by_position.Get(t, l, &positions);
      EXPECT_TRUE(std::ranges::is_sorted(positions));
      std::vector<uint32_t> neurons;
      for (const uint32_t p : positions) neurons.push_back(shuffled.file().NeuronAt(l, p));
      EXPECT_THAT(neurons, testing::UnorderedElementsAreArray(expected));
    }
  }
}

TEST_F(ProfileRunTest, BeyondTheBoundOfTheSetsItGoesOnCounting) {
  const PackedModel model(ToyModel(), WeightType::kF32);
  const auto texts = Texts();
  const ActivationProfile all = Profile(model.file(), {.texts = texts});
  const ActivationProfile few = Profile(model.file(), {.texts = texts, .set_bytes = 1000});
  EXPECT_LT(few.train().n_tokens(), all.train().n_tokens());
  EXPECT_GT(few.train().n_tokens(), 0u);
  for (uint32_t l = 0; l < all.n_layers(); ++l) {
    EXPECT_THAT(few.counts(l), testing::ElementsAreArray(all.counts(l)));
    EXPECT_EQ(few.overlap(l), all.overlap(l));
  }
}

TEST_F(ProfileRunTest, AProfileIsRefusedForAnotherModel) {
  const PackedModel model(ToyModel(), WeightType::kF32);
  ToyModel other_toy;
  other_toy.seed = 2;
  const PackedModel other(other_toy, WeightType::kF32);
  const auto texts = Texts();
  const ActivationProfile profile = Profile(model.file(), {.texts = texts});
  const absl::Status status = profile.CheckModel(other.file(), "some.profile");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr("some.profile"), testing::HasSubstr(other.path())));
}

TEST_F(ProfileRunTest, StopsWhenAskedToAndTellsHowFarItIs) {
  const PackedModel model(ToyModel(), WeightType::kF32);
  const auto texts = Texts();
  std::atomic<int> stop = 0;
  std::vector<uint64_t> done;
  ProfileRequest request = {.texts = texts, .sequence_tokens = kLength, .stop = &stop};
  request.progress = [&](uint64_t n, uint64_t total) {
    EXPECT_EQ(total, 133u);
    done.push_back(n);
    stop = done.size() == 3;
  };
  ProfileRun run(model.file(), request);
  Way way;
  way.mode = DecodeMode::kDense;
  way.observer = &run;
  const auto decoder = Must(OpenDecoder(model.file(), way));
  EXPECT_EQ(run.Run(*decoder).status().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(done, testing::ElementsAre(8, 16, 24));
}

}  // namespace
}  // namespace sluice
