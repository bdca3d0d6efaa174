// OPT, Nemotron and Arcee as users meet them.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli_run.h"
#include "tests/import_test_files.h"
#include "tests/import_test_models.h"
#include "tests/test_paths.h"
#include "tests/toy_model.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class RelativesCliTest : public testing::Test {
 protected:
  const TempDir dir_;
  const std::string model_ = dir_.File("model.sluice");
};

TEST_F(RelativesCliTest, FoldersAreRepackedInspectedVerifiedAndRun) {
  for (const std::string architecture : {"opt", "nemotron", "arcee"}) {
    SCOPED_TRACE(architecture);
    const std::string folder = dir_.File(architecture);
    std::filesystem::create_directory(folder);
    TinyFolder(architecture).Write(folder);
    const RunResult repacked = RunSluice({"repack", folder, model_, "--force"});
    ASSERT_EQ(repacked.exit_code, kOk) << repacked.err;
    EXPECT_THAT(repacked.err, AllOf(HasSubstr("FFN 44 without a gate"), Not(HasSubstr("gate 0."))));
    const RunResult inspected = RunSluice({"inspect", model_, "--json"});
    const json document = json::parse(inspected.out, nullptr, false);
    ASSERT_TRUE(document.is_object()) << inspected.out << inspected.err;
    const json& config = document["config"];
    EXPECT_EQ(config["architecture"], architecture);
    EXPECT_EQ(config["gated"], false);
    EXPECT_EQ(config["norm"], architecture == "arcee" ? "rms" : "layer");
    EXPECT_EQ(config["learned_positions"], architecture == "opt");
    EXPECT_EQ(config["rope_dim"], architecture == "opt" ? 0 : architecture == "arcee" ? 8 : 4);
    for (const json& matrix : document["matrices"]) EXPECT_NE(matrix["role"], "gate");
    EXPECT_EQ(RunSluice({"verify", model_}).exit_code, kOk);
    const Arguments generate = {"generate", "-m", model_, "-p", "abc", "-n", "4", "--temp", "0"};
    const RunResult exact = RunSluice(generate);
    ASSERT_EQ(exact.exit_code, kOk) << exact.err;
    EXPECT_THAT(exact.err, HasSubstr("mode: exact"));
    Arguments dense = generate;
    dense.insert(dense.end(), {"--mode", "dense"});
    EXPECT_EQ(RunSluice(dense).out, exact.out);
  }
}

TEST_F(RelativesCliTest, AnOptIsMadeSparseInOneCommand) {
  ASSERT_TRUE(WriteToyModel(ToyRelative("opt"), dir_.File("opt.gguf")).ok());
  std::string text;
  for (int i = 0; i < 50; ++i) text += absl::StrFormat("line %d of a text; ", i * i);
  WriteFile(dir_.File("text.txt"), text);
  const RunResult run =
      RunSluice({"sparsify", dir_.File("opt.gguf"), model_, "--text", dir_.File("text.txt")});
  ASSERT_EQ(run.exit_code, kOk) << run.err;
  const RunResult generated =
      RunSluice({"generate", "-m", model_, "-p", "a text", "-n", "4", "--temp", "0"});
  ASSERT_EQ(generated.exit_code, kOk) << generated.err;
  EXPECT_THAT(generated.err, HasSubstr("mode: predicted"));
  ExpectError({"generate", "-m", model_, "-p", "a", "-c", "513"}, kError, "learned 512 positions");
}

}  // namespace
}  // namespace sluice
