// `sluice repack`, `inspect` and `verify` as their users meet them.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/sluice_file.h"
#include "tests/cli_fixture.h"
#include "tests/import_test_files.h"
#include "tests/sluice_image.h"
#include "tests/toy_model.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

TEST_F(CliTest, RepackFlagsAreChecked) {
  const std::string out = dir_.File("out.sluice");
  const auto expect = [&](const Arguments& flags, int code, const char* what) {
    Arguments all = {"repack", gguf_, out};
    all.insert(all.end(), flags.begin(), flags.end());
    ExpectError(all, code, what);
    EXPECT_FALSE(std::filesystem::exists(out));
  };
  expect({"--type", "q5"}, kUsage, "\"q5\"");
  expect({"--resident-type", "int3"}, kUsage, "\"int3\"");
  expect({"--block", "1000"}, kUsage, "--block is 1000");
  expect({"--activation", "tanh"}, kUsage, "\"tanh\"");
  expect({"--activation", "fatrelu", "--activation-threshold", "-3"}, kError, "threshold is -3");
}

TEST_F(CliTest, AStoppedRepackSaysSoAndLeavesNothing) {
  // The progress of a small model comes once, at its end; the notes before it are the sign.
  const std::string pipe = dir_.File("pipe"), out = dir_.File("stopped.sluice");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ToyModel large;
  large.d_model = 1024;
  large.d_ff = 4096;
  large.n_layers = 8;
  large.n_heads = 16;
  large.head_dim = 64;
  large.equal_rows = true;
  ASSERT_TRUE(WriteToyModel(large, dir_.File("large.gguf")).ok());
  RunSetup setup;
  setup.stderr_path = pipe;
  std::string notes;
  setup.meanwhile = [&](int pid) {
    const int fd = open(pipe.c_str(), O_RDONLY | O_CLOEXEC);
    char piece[4096];
    bool sent = false;
    for (ssize_t n = 0; (n = read(fd, piece, sizeof(piece))) > 0;) {
      notes.append(piece, static_cast<size_t>(n));
      if (std::exchange(sent, true)) continue;
      EXPECT_EQ(kill(pid, SIGTERM), 0);
    }
    close(fd);
  };
  const RunResult run = RunSluice({"repack", dir_.File("large.gguf"), out}, setup);
  EXPECT_EQ(run.exit_code, 128 + SIGTERM) << notes;
  EXPECT_THAT(notes, HasSubstr("stopped; " + out + " was not written"));
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_FALSE(std::filesystem::exists(dir_.File(".stopped.sluice.partial")));
}

TEST_F(CliTest, InspectShowsWhatTheFileHolds) {
  const RunResult run = RunSluice({"inspect", model_, "--json"});
  ASSERT_EQ(run.exit_code, kOk) << run.err;
  const json document = json::parse(run.out, nullptr, false);
  ASSERT_TRUE(document.is_object()) << run.out;
  const auto file = SluiceFile::Open(model_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(document["format"], "1.1");
  EXPECT_EQ(document["file_bytes"], (*file)->file_size());
  EXPECT_EQ(document["config"]["layers"], 3);
  EXPECT_EQ(document["config"]["d_ff"], 160);
  EXPECT_EQ(document["config"]["activation"], "relu");
  EXPECT_EQ(document["bundles"]["stride"], (*file)->bundles().stride);
  EXPECT_EQ(document["bundles"]["layer_offsets"].size(), 3u);
  EXPECT_EQ(document["provenance"]["source"], "toy.gguf");
  const RunResult text = RunSluice({"inspect", model_});
  EXPECT_EQ(text.exit_code, kOk);
  EXPECT_THAT(text.out, AllOf(HasSubstr("3 layers"), HasSubstr("relu"), HasSubstr("bundles")));
}

TEST_F(CliTest, InspectShowsTheVersionOfTheFileAndNotOfTheProgram) {
  SluiceImage image = SluiceImage::Load(model_);
  StoreLe<uint16_t>(&image.bytes[10], 7);
  image.SealHeader();
  const std::string newer = dir_.File("newer.sluice");
  image.Write(newer);
  EXPECT_EQ(json::parse(RunSluice({"inspect", newer, "--json"}).out)["format"], "1.7");
  EXPECT_THAT(RunSluice({"inspect", newer}).out, HasSubstr("format 1.7"));
}

TEST_F(CliTest, VerifyPassesAGoodFileAndNamesTheDamageOfABadOne) {
  const RunResult good = RunSluice({"verify", model_});
  EXPECT_EQ(good.exit_code, kOk) << good.err;
  EXPECT_THAT(good.out, HasSubstr("480 bundles checked, 0 damaged"));
  const auto file = SluiceFile::Open(model_);
  ASSERT_TRUE(file.ok()) << file.status();
  SluiceImage image = SluiceImage::Load(model_);
  image.bytes[(*file)->bundles().BundleOffset(2, 33) + 5] ^= std::byte{1};
  const std::string damaged = dir_.File("damaged.sluice");
  image.Write(damaged);
  const RunResult bad = RunSluice({"verify", damaged});
  EXPECT_EQ(bad.exit_code, kError);
  EXPECT_THAT(bad.out, HasSubstr("1 damaged"));
  EXPECT_THAT(bad.err, AllOf(HasSubstr(damaged), HasSubstr("layer 2, neuron 33")));
}

TEST_F(CliTest, RepackKeepsAnExistingFileUnlessForced) {
  const std::string out = dir_.File("out.sluice");
  WriteFile(out, "precious");
  ExpectError({"repack", gguf_, out}, kError, "--force");
  EXPECT_EQ(ReadFile(out), "precious");
  EXPECT_EQ(RunSluice({"repack", gguf_, out, "--force"}).exit_code, kOk);
  ExpectError({"repack", gguf_, gguf_, "--force"}, kError, "input");
}

}  // namespace
}  // namespace sluice
