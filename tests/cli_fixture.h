// What the tests of the command line share.
#ifndef SLUICE_TESTS_CLI_FIXTURE_H_
#define SLUICE_TESTS_CLI_FIXTURE_H_

#include <string>

#include "gtest/gtest.h"
#include "tests/cli_run.h"
#include "tests/test_paths.h"
#include "tests/toy_model.h"

namespace sluice {

// One toy model for all tests, as GGUF and repacked by the program itself.
class CliTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    models_ = new TempDir;
    gguf_ = models_->File("toy.gguf");
    model_ = models_->File("toy.sluice");
    const absl::Status written = WriteToyModel(ToyModel(), gguf_);
    ASSERT_TRUE(written.ok()) << written;
    const RunResult repacked = RunSluice({"repack", gguf_, model_});
    ASSERT_EQ(repacked.exit_code, kOk) << repacked.err;
  }
  static void TearDownTestSuite() {
    delete models_;
    models_ = nullptr;
  }

  static Arguments Generate(const Arguments& more) {
    Arguments all = {"generate", "-m", model_};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  static inline TempDir* models_ = nullptr;
  static inline std::string gguf_, model_;
  TempDir dir_;
};

}  // namespace sluice

#endif  // SLUICE_TESTS_CLI_FIXTURE_H_
