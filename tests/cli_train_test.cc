// `sluice train` as a shell sees it.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/sluice_file.h"
#include "predictor/activation_profile.h"
#include "tests/cli_fixture.h"

namespace sluice {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class CliTrainTest : public CliTest {
 protected:
  void SetUp() override {
    const auto file = SluiceFile::Open(model_);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE(MakeProfile(ProfileIdentity::Of(**file)).Save(profile_).ok());
  }

  // Of tokens without sense; their active sets are not asked for.
  static ActivationProfile MakeProfile(const ProfileIdentity& identity, uint32_t n_sequences = 40) {
    ActivationProfile profile(identity);
    const std::vector<std::vector<uint32_t>> silent(identity.n_layers);
    uint32_t token = 1;
    for (uint32_t s = 0; s < n_sequences; ++s) {
      profile.BeginSequence(s % 8 == 7);
      for (int t = 0; t < 24; ++t) {
        token = token * 69069 + 1;
        profile.Append(static_cast<int32_t>((token >> 8) % 259), silent);
      }
    }
    return profile;
  }

  // With these flags, some of which may take the place of the usual ones.
  Arguments Train(const Arguments& more = {}) const {
    Arguments all = {"train", "-m", model_, "--profile", profile_};
    const Arguments usual[] = {
        {"-o", out_}, {"--epochs", "2"}, {"-t", "1"}, {"--size", "0.2"}, {"--input", "residual"}};
    for (const Arguments& flag : usual) {
      if (std::find(more.begin(), more.end(), flag[0]) != more.end()) continue;
      all.insert(all.end(), flag.begin(), flag.end());
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  const std::string profile_ = dir_.File("toy.profile"), out_ = dir_.File("out.sluice");
};

TEST_F(CliTrainTest, WritesAModelWithPredictorsThatRuns) {
  const RunResult trained = RunSluice(Train({"--json"}));
  ASSERT_EQ(trained.exit_code, kOk) << trained.err;
  const auto json = nlohmann::json::parse(trained.out);
  ASSERT_EQ(json["layers"].size(), 3u);
  for (const auto& layer : json["layers"]) {
    EXPECT_EQ(layer["rank"].get<int>() % 32, 0);
    EXPECT_GT(layer["recall"], 0.5);
    EXPECT_GT(layer["top_k"], 0);
  }
  EXPECT_GT(json["size_share"], 0.0);
  EXPECT_FALSE(std::filesystem::exists(out_ + ".train"));
  const auto file = SluiceFile::Open(out_);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_NE((*file)->predictor(), nullptr);
  EXPECT_EQ((*file)->predictor()->input, PredictorInput::kResidual);
  const auto generate = [&](Arguments more) {
    Arguments all = {"generate", "-m", out_, "-p", "a b", "-n", "4"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  EXPECT_EQ(RunSluice(generate({"--mode", "predicted"})).exit_code, kOk);
  EXPECT_EQ(RunSluice(generate({"--no-look-ahead", "--miss-skip", "0.5"})).exit_code, kOk);
  ExpectError(generate({"--miss-skip", "1"}), kUsage, "--miss-skip is 1; it must be in 0..0.95");
  ExpectError(generate({"--mode", "exact", "--miss-skip", "0.1"}), kUsage,
              "--miss-skip is about predicted mode");
  ExpectError(generate({"--mode", "dense", "--no-look-ahead"}), kUsage,
              "--no-look-ahead is about predicted mode");
}

TEST_F(CliTrainTest, TheSameSeedGivesTheSameFileWhateverTheThreads) {
  ASSERT_EQ(RunSluice(Train()).exit_code, kOk);
  const std::string first = Bytes(out_);
  const RunResult again = RunSluice(Train({"--force", "-t", "2"}));
  ASSERT_EQ(again.exit_code, kOk) << again.err;
  EXPECT_EQ(Bytes(out_), first);
  EXPECT_THAT(again.out, AllOf(HasSubstr("recall"), HasSubstr("of the model's bytes")));
  ASSERT_EQ(RunSluice(Train({"--force", "--seed", "1"})).exit_code, kOk);
  EXPECT_NE(Bytes(out_), first);
}

TEST_F(CliTrainTest, AStoppedTrainingSaysHowToGoOnAndThenGivesTheSameFile) {
  ASSERT_EQ(RunSluice(Train()).exit_code, kOk);
  const std::string whole = Bytes(out_);
  std::filesystem::remove(out_);
  RunSetup setup;
  setup.meanwhile = [&](int pid) {  // when the first layer is there
    const std::string first = out_ + ".train/layer-0000.predictor";
    while (!std::filesystem::exists(first) && !std::filesystem::exists(out_)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    kill(pid, SIGINT);
  };
  const RunResult stopped = RunSluice(Train({"--epochs", "30"}), setup);
  if (stopped.exit_code == kOk) GTEST_SKIP() << "it was quicker than the signal";
  EXPECT_EQ(stopped.exit_code, 128 + SIGINT);
  EXPECT_THAT(stopped.err, AllOf(HasSubstr("--resume"), HasSubstr(out_ + ".train")));
  EXPECT_FALSE(std::filesystem::exists(out_));
  ExpectError(Train({"--epochs", "30"}), kError, "--resume goes on with it");
  // Other flags are another training.
  ExpectError(Train({"--resume"}), kError, "is of a training with another model, text or flags");
  const RunResult resumed = RunSluice(Train({"--resume", "--epochs", "30"}));
  ASSERT_EQ(resumed.exit_code, kOk) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("of the run before"));
  const std::string after = Bytes(out_);
  ASSERT_EQ(RunSluice(Train({"--force", "--epochs", "30"})).exit_code, kOk);
  EXPECT_EQ(Bytes(out_), after);
  EXPECT_NE(after, whole);
}

TEST_F(CliTrainTest, WrongFlagsAreUsageErrors) {
  ExpectError(Train({"--input", "next"}), kUsage, "normed, residual, previous");
  ExpectError(Train({"--recall", "1.5"}), kUsage, "--recall");
  ExpectError(Train({"--density", "0.5"}), kUsage, "--density");
  ExpectError(Train({"--size", "0"}), kUsage, "--size");
  ExpectError(Train({"--sample-memory", "1"}), kUsage, "--sample-memory");
  ExpectError(Train({"--epochs", "0"}), kUsage, "--epochs");
}

TEST_F(CliTrainTest, InputsThatDoNotFitAreRefusedBeforeAnythingIsTrained) {
  ExpectError({"train", "-m", model_, "--profile", dir_.File("none")}, kError, "none");
  ExpectError({"train", "-m", model_, "--profile", model_}, kError, model_);
  const auto file = SluiceFile::Open(model_);
  ASSERT_TRUE(file.ok());
  ProfileIdentity other = ProfileIdentity::Of(**file);
  other.weights_id ^= 1;
  ASSERT_TRUE(MakeProfile(other).Save(profile_).ok());
  ExpectError(Train(), kError, "is the profile of another model");
  ASSERT_TRUE(MakeProfile(ProfileIdentity::Of(**file), 2).Save(profile_).ok());
  ExpectError(Train(), kError, "profile more text");
}

TEST_F(CliTrainTest, AnOutputThatCannotBeWrittenIsSaidFirst) {
  std::ofstream(out_) << "precious";
  ExpectError(Train(), kError, out_);
  EXPECT_EQ(Bytes(out_), "precious");
  ExpectError(Train({"-o", model_, "--force"}), kError, "is the model that is read");
  ExpectError(Train({"-o", dir_.File("no/such/folder/x")}), kError, "no/such/folder");
}

}  // namespace
}  // namespace sluice
