// From a model and text to a sparse file, by one command and by its steps, and repack --profile.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/sluice_file.h"
#include "tests/cli_fixture.h"
#include "tests/import_test_files.h"

namespace sluice {
namespace {

using testing::HasSubstr;

std::string Bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class SparsifyTest : public CliTest {
 protected:
  SparsifyTest() {
    std::string text;
    for (int i = 0; i < 50; ++i) text += absl::StrFormat("line %d of a text; ", i * i);
    WriteFile(text_, text);
  }
  Arguments Sparsify(const std::string& in, const std::string& out, const Arguments& more = {}) {
    Arguments all = {"sparsify", in, out, "--text", text_};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  bool Exists(const std::string& name) { return std::filesystem::exists(dir_.File(name)); }

  const std::string text_ = dir_.File("text.txt"), out_ = dir_.File("out.sluice");
};

TEST_F(SparsifyTest, MakesASparseModelOfAGgufInOneCommand) {
  const RunResult run = RunSluice(Sparsify(gguf_, out_, {"--input", "previous"}));
  ASSERT_EQ(run.exit_code, kOk) << run.err;
  const auto file = SluiceFile::Open(out_);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_NE((*file)->predictor(), nullptr);
  EXPECT_EQ((*file)->predictor()->input, PredictorInput::kPrevious);
  ASSERT_NE((*file)->activity(), nullptr);
  EXPECT_GT((*file)->activity()->n_tokens, 0u);
  EXPECT_FALSE((*file)->activity()->placements.empty());
  EXPECT_TRUE(Exists("out.sluice.profile"));
  EXPECT_FALSE(Exists("out.sluice.dense")) << "what lies between is removed";
  const RunResult text =
      RunSluice({"generate", "-m", out_, "-p", "a text", "-n", "8", "--temp", "0"});
  ASSERT_EQ(text.exit_code, kOk) << text.err;
  EXPECT_THAT(text.err, HasSubstr("mode: predicted;"));
  EXPECT_THAT(run.out, HasSubstr("predicted against dense: perplexity "));
  EXPECT_THAT(run.err, HasSubstr("placement plans cover "));
  ExpectError({"plan", "-m", out_, "--profile", out_ + ".profile"}, kError,
              "is a profile of which neurons fire, and predicted mode");
}

TEST_F(SparsifyTest, PlacesNeuronsByTheCostsOfADevice) {
  const std::string device = dir_.File("device.json"), profile = dir_.File("p");
  ASSERT_EQ(RunSluice({"profile", "-m", model_, "--text", text_, "-o", profile}).exit_code, kOk);
  // A read that is alone takes so long, and one of many 10 us.
  const auto placed = [&](double alone_ns) {
    constexpr char kDevice[] = R"({"name": "of the tests", "queue_entries": 32, "read_MBps": [
  {"pattern": "random", "block": 4096, "range": null, "core": "big", "value": 400}], "fits": [
  {"range": 1000000, "depth": 1, "operation_ns": %g, "ns_per_byte": 0.1, "worst_residual": 0},
  {"range": 1000000, "depth": 32, "operation_ns": 10000, "ns_per_byte": 0.1, "worst_residual": 0}]})";
    WriteFile(device, absl::StrFormat(kDevice, alone_ns));
    const RunResult run =
        RunSluice({"repack", model_, out_, "--profile", profile, "--device", device, "--force"});
    EXPECT_EQ(run.exit_code, kOk) << run.err;
    const auto file = SluiceFile::Open(out_);
    EXPECT_TRUE(file.ok()) << file.status();
    return (*file)->activity()->placements.back();
  };
  EXPECT_THAT(placed(11'000), testing::Each(testing::Gt(0u)));
  EXPECT_THAT(placed(1e9), testing::Each(0u)) << "joining costs a layer more than it saves";
  const Arguments fast = {"repack", model_,     dir_.File("x"), "--profile",
                          profile,  "--device", device};
  WriteFile(device, "{}");
  ExpectError(fast, kError, device);
  ExpectError(Sparsify(model_, dir_.File("x"), {"--device", device}), kError, device);
  ExpectError({"repack", model_, dir_.File("x"), "--device", device}, kUsage, "--device");
}

TEST_F(SparsifyTest, AModelWithoutZerosSaysWhatItLosesAndUsesPredictorsOnRequestOnly) {
  ToyModel toy;
  toy.activation = Activation::kSilu;
  const std::string silu = dir_.File("silu.gguf");
  ASSERT_TRUE(WriteToyModel(toy, silu).ok());
  ExpectError(Sparsify(silu, out_), kError, "silu.gguf: is not naturally sparse");
  EXPECT_FALSE(Exists("out.sluice.dense")) << "it is said before the model is packed";
  const RunResult run = RunSluice(Sparsify(silu, out_, {"--sparsify", "0.5"}));
  ASSERT_EQ(run.exit_code, kOk) << run.err;
  EXPECT_THAT(run.out, HasSubstr("exact against dense: perplexity "));
  EXPECT_THAT(run.out, HasSubstr("predicted against dense: perplexity "));
  const Arguments generate = {"generate", "-m", out_, "-p", "a text", "-n", "2", "--temp", "0"};
  const RunResult text = RunSluice(generate);
  ASSERT_EQ(text.exit_code, kOk) << text.err;
  EXPECT_THAT(text.err, HasSubstr("mode: exact by the file's thresholds; prompts too; predictors "
                                  "are not used"));
  Arguments predicted = generate;
  predicted.insert(predicted.end(), {"--mode", "predicted"});
  EXPECT_THAT(RunSluice(predicted).err, HasSubstr("mode: predicted;"));
}

TEST_F(SparsifyTest, GivesTheSameBytesAsItsStepsAndTwice) {
  ASSERT_EQ(RunSluice(Sparsify(model_, out_, {"-t", "1"})).exit_code, kOk);
  const std::string again = dir_.File("again.sluice");
  ASSERT_EQ(RunSluice(Sparsify(model_, again, {"-t", "2"})).exit_code, kOk);
  EXPECT_TRUE(Bytes(out_) == Bytes(again));
  EXPECT_TRUE(Bytes(out_ + ".profile") == Bytes(again + ".profile"));
  const std::string profile = dir_.File("p"), steps = dir_.File("steps.sluice");
  ASSERT_EQ(RunSluice({"profile", "-m", model_, "--text", text_, "-o", profile}).exit_code, kOk);
  ASSERT_EQ(RunSluice({"train", "-m", model_, "--profile", profile, "-o", steps}).exit_code, kOk);
  EXPECT_TRUE(Bytes(out_) == Bytes(steps));
}

TEST_F(SparsifyTest, AddsPredictorsOfHeadsOnRequest) {
  ASSERT_EQ(RunSluice(Sparsify(gguf_, out_, {"--heads"})).exit_code, kOk);
  const auto file = SluiceFile::Open(out_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_NE((*file)->predictor(), nullptr);
  EXPECT_NE((*file)->head_predictor(), nullptr);
  EXPECT_NE((*file)->activity(), nullptr);
  EXPECT_FALSE(Exists("out.sluice.dense")) << "what lies between is removed";
  EXPECT_FALSE(Exists("out.sluice.neurons"));
  EXPECT_FALSE(Exists("out.sluice.train"));
  EXPECT_FALSE(Exists("out.sluice.neurons.train"));
}

TEST_F(SparsifyTest, RefusesWhatItCannotDoAndLeavesNothing) {
  WriteFile(out_, "mine");
  ExpectError(Sparsify(gguf_, out_), kError, "exists; --force overwrites it");
  EXPECT_EQ(Bytes(out_), "mine");
  const std::string other = dir_.File("other.sluice");
  ExpectError(Sparsify(dir_.File("none.gguf"), other), kError, "none.gguf");
  ExpectError({"sparsify", gguf_, other, "--text", dir_.File("none.txt")}, kError, "none.txt");
  EXPECT_FALSE(std::filesystem::exists(other));
  EXPECT_FALSE(Exists("other.sluice.dense")) << "texts are read before the model is packed";
}

TEST_F(SparsifyTest, RepackLaysNeuronsInTheOrderOfAProfile) {
  const std::string profile = dir_.File("p");
  ASSERT_EQ(RunSluice({"profile", "-m", model_, "--text", text_, "-o", profile}).exit_code, kOk);
  const RunResult run = RunSluice({"repack", model_, out_, "--profile", profile});
  ASSERT_EQ(run.exit_code, kOk) << run.err;
  const auto before = SluiceFile::Open(model_), after = SluiceFile::Open(out_);
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_EQ((*after)->weights_id(), (*before)->weights_id());
  EXPECT_NE((*after)->NeuronAt(0, 0), (*before)->NeuronAt(0, 0));
  EXPECT_EQ((*after)->predictor(), nullptr);
  const Arguments generate = {"generate", "-p", "a text", "-n", "12", "--temp", "0", "-m"};
  Arguments a = generate, b = generate;
  a.push_back(model_);
  b.push_back(out_);
  EXPECT_EQ(RunSluice(a).out, RunSluice(b).out);

  ExpectError({"repack", gguf_, dir_.File("x"), "--profile", profile}, kError,
              "needs the .sluice file that was profiled");
  ExpectError({"repack", model_, dir_.File("x"), "--profile", text_}, kError, "text.txt");
  ExpectError({"repack", model_, dir_.File("x"), "--profile", profile, "--type", "q4"}, kUsage,
              "--profile");
  EXPECT_FALSE(Exists("x"));
}

}  // namespace
}  // namespace sluice
