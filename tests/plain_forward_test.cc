#include "layout/plain_forward.h"

#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "layout/model_source.h"
#include "tests/import_test_models.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

// The gates of the last layer, after one attention and one FFN.
std::vector<float> LastGates(const std::string& path, std::span<const uint32_t> tokens) {
  const auto source = OpenModelSource(path, {});
  const auto file = GgufFile::Open(path);
  EXPECT_TRUE(source.ok() && file.ok()) << source.status() << file.status();
  std::vector<float> last;
  ForwardOptions options;
  options.on_gates = [&last](uint32_t, std::span<const float> gates) {
    last.assign(gates.begin(), gates.end());
  };
  const auto result = RunPlainForward(**file, (*source)->config(), tokens, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return last;
}

// With heads of 8 and an FFN of 44, which are no multiples of what a product takes at a time,
// nothing beyond a row may enter it: what lies there is of the next token.
TEST(PlainForwardTest, WhatFollowsDoesNotChangeWhatCameBefore) {
  const TempDir dir;
  const std::string path = dir.File("tiny.gguf");
  TinyGguf().Write(path);
  const std::vector<uint32_t> tokens = {3, 5, 4, 7};
  const std::vector<float> all = LastGates(path, tokens);
  ASSERT_EQ(all.size(), 4u * 44);
  for (size_t n = 1; n < tokens.size(); ++n) {
    const std::vector<float> some = LastGates(path, std::span(tokens).first(n));
    EXPECT_EQ(some, std::vector<float>(all.begin(), all.begin() + static_cast<ptrdiff_t>(n) * 44));
  }
}

}  // namespace
}  // namespace sluice
