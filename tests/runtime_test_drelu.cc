// dReLU, relu(gate) * relu(up): every way of running gives the same bits, and observers see which
// neurons are not zero. That the logits are right is in runtime_test_logits.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/predictor_meter.h"
#include "tests/decoder_harness.h"
#include "tests/import_test_models.h"
#include "tests/predicted_model.h"

namespace sluice {
namespace {

constexpr size_t kPrompt = 13, kDecoded = 6;

ToyModel Toy(Activation activation = Activation::kDRelu) {
  ToyModel toy;
  toy.activation = activation;
  toy.d_ff = 640;
  toy.gate_lean = 1.0f;
  return toy;
}

// For each token and layer the neurons whose gate and up are positive, recomputed from the normed
// input, and those that the observation says are active.
class FiringChecker : public FfnObserver {
 public:
  FiringChecker(const ModelSource& source, const SluiceFile& file) : file_(file) {
    for (uint32_t l = 0; l < file.config().n_layers; ++l) {
      gates_.push_back(SourceFloats(source, absl::StrCat("blk.", l, ".ffn_gate.weight")));
      ups_.push_back(SourceFloats(source, absl::StrCat("blk.", l, ".ffn_up.weight")));
    }
  }

  void Observe(const FfnObservation& o) override {
    const uint32_t d = file_.config().d_model, d_ff = file_.config().d_ff;
    for (uint32_t t = 0; t < o.n_tokens; ++t) {
      for (uint32_t p = 0; p < d_ff; ++p) {
        const size_t row = size_t{file_.NeuronAt(o.layer, p)} * d;
        double gate = 0, up = 0;
        for (uint32_t i = 0; i < d; ++i) {
          const double x = static_cast<double>(o.normed[size_t{t} * d + i]);
          gate += x * static_cast<double>(gates_[o.layer][row + i]);
          up += x * static_cast<double>(ups_[o.layer][row + i]);
        }
        if (std::min(std::abs(gate), std::abs(up)) < 1e-4) continue;  // may round either way
        n_gates += gate > 0;
        n_firing += gate > 0 && up > 0;
        n_wrong += (o.gate[size_t{t} * d_ff + p] > 0) != (gate > 0 && up > 0);
      }
    }
  }
  uint64_t n_gates = 0, n_firing = 0, n_wrong = 0;

 private:
  const SluiceFile& file_;
  std::vector<std::vector<float>> gates_, ups_;  // by layer, rows by neuron id
};

class DReluTest : public testing::Test {
 protected:
  DReluTest() : plain_(Toy(), WeightType::kF32), tokens_(RandomTokens(kPrompt + kDecoded, 300)) {}

  Logits Run(const SluiceFile& file, const Way& way) {
    return Must(RunTokens(file, way, tokens_, kPrompt));
  }
  void ExpectSameBits(const SluiceFile& file, DecodeMode mode, const Logits& expected) {
    ExpectSameBitsEveryWay(file, {.mode = mode}, tokens_, kPrompt, expected);
  }
  void ExpectObserved(const SluiceFile& file, Way way) {
    SCOPED_TRACE(Describe(way));
    const Logits unobserved = Run(file, way);
    FiringChecker checker(plain_.source(), file);
    way.observer = &checker;
    EXPECT_TRUE(SameBits(Run(file, way), unobserved)) << "looking changes nothing";
    EXPECT_EQ(checker.n_wrong, 0u);
    EXPECT_GT(checker.n_firing, 0u);
    EXPECT_LT(checker.n_firing, checker.n_gates * 3 / 4) << "up takes nothing out";
  }

  PackedModel plain_;
  std::vector<int32_t> tokens_;
};

TEST_F(DReluTest, DenseAndExactModeGiveTheSameBitsUnderEveryBudget) {
  const Logits expected = Run(plain_.file(), Way());
  ExpectSameBits(plain_.file(), DecodeMode::kDense, expected);
  ExpectSameBits(plain_.file(), DecodeMode::kExact, expected);
  const PackedModel relu(Toy(Activation::kRelu), WeightType::kF32);
  EXPECT_GT(MaxError(Run(relu.file(), Way()).back(), expected.back()), 0.1f);
}

TEST_F(DReluTest, PredictedModeGivesTheSameBitsUnderEveryBudget) {
  const PredictedModel model(plain_.file(), PredictorInput::kPrevious, 0.0f, /*shuffled=*/true);
  Way way;
  way.mode = DecodeMode::kPredicted;
  ExpectSameBits(model.file(), DecodeMode::kPredicted, Run(model.file(), way));
  const PredictedModel all(plain_.file(), PredictorInput::kPrevious, -1e30f);
  EXPECT_TRUE(SameBits(Run(all.file(), way), Run(plain_.file(), Way())));
}

TEST_F(DReluTest, ObserversSeeWhatIsNotZeroInDenseAndExactMode) {
  for (const DecodeMode mode : {DecodeMode::kDense, DecodeMode::kExact}) {
    Way way;
    way.mode = mode;
    for (const uint64_t budget : {Budgets(plain_.file(), way)[1], UINT64_MAX}) {
      way.budget = budget;
      ExpectObserved(plain_.file(), way);
    }
    way.mapped = true;
    ExpectObserved(plain_.file(), way);
  }
}

TEST_F(DReluTest, ObserversSeeItInPredictedModeToo) {
  for (const PredictorInput input : {PredictorInput::kResidual, PredictorInput::kPrevious}) {
    const PredictedModel model(plain_.file(), input, 0.0f, /*shuffled=*/true);
    Way way;
    way.mode = DecodeMode::kPredicted;
    for (const uint64_t budget : Budgets(model.file(), way)) {
      way.budget = budget;
      ExpectObserved(model.file(), way);
    }
  }
}

TEST_F(DReluTest, LookingDoesNotCountAsWork) {
  const PredictedModel model(plain_.file(), PredictorInput::kPrevious, 0.0f);
  std::vector<uint64_t> active, firing;
  PredictorMeter meter(model.file().config());
  for (FfnObserver* observer :
       {static_cast<FfnObserver*>(nullptr), static_cast<FfnObserver*>(&meter)}) {
    Way way;
    way.mode = DecodeMode::kPredicted;
    way.observer = observer;
    const auto decoder = Must(OpenDecoder(model.file(), way));
    Must(RunTokens(*decoder, tokens_, kPrompt));
    active.push_back(decoder->stats().active_neurons);
    firing.push_back(decoder->stats().firing_neurons);
  }
  EXPECT_EQ(active[0], active[1]);
  EXPECT_EQ(firing[0], firing[1]);
  const PredictorQuality q = SumOf(meter.layers());
  EXPECT_EQ(q.n_predicted, active[0]);
  EXPECT_EQ(q.n_hits, firing[0]) << "what is predicted and not zero";
}

TEST_F(DReluTest, FaultsOfTheDeviceChangeNothing) {
  const Logits expected = Run(plain_.file(), Way());
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const FaultConfig faults = AllFaults(seed);
    Way way;
    way.budget = Budgets(plain_.file(), way)[seed];
    way.faults = &faults;
    EXPECT_TRUE(SameBits(Run(plain_.file(), way), expected)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace sluice
