// The activation profile: what is counted, the file, and files that are none.
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "predictor/activation_profile.h"
#include "tests/cost_bound.h"
#include "tests/profile_bytes.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Set = std::vector<uint32_t>;
using Sets = std::vector<Set>;

constexpr ProfileIdentity kSmall = {.weights_id = 7, .n_layers = 2, .n_neurons = 4, .d_model = 64};

Set Get(const ActivationTrace& trace, uint32_t token, uint32_t layer) {
  Set set;
  trace.Get(token, layer, &set);
  return set;
}

std::vector<std::byte> Serialized(const ActivationProfile& profile) {
  auto bytes = profile.Serialize();
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.ok() ? *std::move(bytes) : std::vector<std::byte>();
}

ActivationProfile Reread(const ActivationProfile& profile) {
  auto parsed = ActivationProfile::Parse(Serialized(profile), "profile");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? *std::move(parsed) : ActivationProfile(profile.identity());
}

// Three training tokens, two held-out ones, one more for training.
ActivationProfile SmallProfile() {
  ActivationProfile profile(kSmall);
  profile.BeginSequence(false);
  profile.Append(11, Sets{{0, 1}, {3}});
  profile.Append(12, Sets{{1, 2}, {}});
  profile.Append(13, Sets{{0, 1, 2, 3}, {0, 3}});
  profile.BeginSequence(true);
  profile.Append(21, Sets{{2}, {2}});
  profile.Append(22, Sets{{2}, {}});
  profile.BeginSequence(false);
  profile.Append(31, Sets{{3}, {1}});
  return profile;
}

void ExpectSame(const ActivationProfile& a, const ActivationProfile& b) {
  EXPECT_EQ(a.identity(), b.identity());
  EXPECT_THAT(a.tokens(), testing::ElementsAreArray(b.tokens()));
  ASSERT_EQ(a.sequences().size(), b.sequences().size());
  for (size_t i = 0; i < a.sequences().size(); ++i) {
    EXPECT_EQ(a.sequences()[i].begin, b.sequences()[i].begin) << i;
    EXPECT_EQ(a.sequences()[i].n_tokens, b.sequences()[i].n_tokens) << i;
    EXPECT_EQ(a.sequences()[i].held_out, b.sequences()[i].held_out) << i;
  }
  for (uint32_t l = 0; l < a.n_layers(); ++l) {
    EXPECT_THAT(a.counts(l), testing::ElementsAreArray(b.counts(l))) << l;
    EXPECT_EQ(a.overlap(l), b.overlap(l)) << l;
  }
  EXPECT_THAT(a.thresholds(), testing::ElementsAreArray(b.thresholds()));
  EXPECT_EQ(Serialized(a), Serialized(b));
}

TEST(ActivationProfileTest, CountsTheTrainingTokensOnly) {
  for (const ActivationProfile& p : {SmallProfile(), Reread(SmallProfile())}) {
    EXPECT_EQ(p.n_train_tokens(), 4u);
    EXPECT_EQ(p.n_held_out_tokens(), 2u);
    EXPECT_THAT(p.tokens(), ElementsAre(11, 12, 13, 21, 22, 31));
    ASSERT_EQ(p.sequences().size(), 3u);
    EXPECT_EQ(p.sequences()[1].begin, 3u);
    EXPECT_EQ(p.sequences()[1].n_tokens, 2u);
    EXPECT_TRUE(p.sequences()[1].held_out);
    EXPECT_FALSE(p.sequences()[2].held_out);
    EXPECT_THAT(p.counts(0), ElementsAre(2, 3, 2, 2));
    EXPECT_THAT(p.counts(1), ElementsAre(1, 1, 0, 2));
  }
}

TEST(ActivationProfileTest, KeepsTheSetsOfTrainingAndHeldOutTokensApart) {
  for (const ActivationProfile& p : {SmallProfile(), Reread(SmallProfile())}) {
    ASSERT_EQ(p.train().n_tokens(), 4u);
    EXPECT_THAT(Get(p.train(), 2, 0), ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(Get(p.train(), 3, 1), ElementsAre(1));
    ASSERT_EQ(p.held_out().n_tokens(), 2u);
    EXPECT_THAT(Get(p.held_out(), 0, 1), ElementsAre(2));
    EXPECT_THAT(Get(p.held_out(), 1, 1), IsEmpty());
  }
}

TEST(ActivationProfileTest, OverlapIsTheMeanShareThatWasActiveATokenBeforeInTheSequence) {
  // Layer 0: 1 of 2, then 2 of 4. Layer 1: an empty set has no share; then none of 2.
  for (const ActivationProfile& p : {SmallProfile(), Reread(SmallProfile())}) {
    EXPECT_DOUBLE_EQ(p.overlap(0), 0.5);
    EXPECT_DOUBLE_EQ(p.overlap(1), 0.0);
  }
  EXPECT_EQ(ActivationProfile(kSmall).overlap(0), 0.0) << "no tokens";
}

TEST(ActivationProfileTest, ComesBackFromItsBytes) {
  std::mt19937_64 random(3);
  const ProfileIdentity identity = {
      .weights_id = ~uint64_t{5}, .n_layers = 3, .n_neurons = 5000, .d_model = 128};
  ActivationProfile profile(identity);
  for (int s = 0; s < 12; ++s) {
    profile.BeginSequence(s % 5 == 4);
    for (int t = 0; t < s; ++t) {  // the first one is empty
      Sets sets(3);
      for (Set& set : sets) {
        const uint64_t every = 2 + random() % 50;
        for (uint32_t i = 0; i < identity.n_neurons; ++i) {
          if (random() % every == 0) set.push_back(i);
        }
      }
      profile.Append(static_cast<int32_t>(random() % 30'000), sets);
    }
  }
  profile.set_thresholds({0.0f, 0.25f, 1e30f});
  ExpectSame(Reread(profile), profile);
  ExpectSame(Reread(ActivationProfile(identity)), ActivationProfile(identity));
}

TEST(ActivationProfileTest, BeyondItsBoundItCountsAndKeepsNoSets) {
  ActivationProfile profile(kSmall, 200);
  for (int s = 0; s < 10; ++s) {
    profile.BeginSequence(s % 2 == 1);
    for (int t = 0; t < 10; ++t) profile.Append(t, Sets{{1}, {2, 3}});
  }
  EXPECT_EQ(profile.n_train_tokens(), 50u);
  EXPECT_THAT(profile.counts(1), ElementsAre(0, 0, 50, 50));
  EXPECT_DOUBLE_EQ(profile.overlap(0), 1.0);
  const uint32_t n_kept = profile.train().n_tokens() + profile.held_out().n_tokens();
  EXPECT_GT(n_kept, 1u);
  EXPECT_LT(n_kept, 20u);
  EXPECT_EQ(profile.train().n_tokens(), std::min(n_kept, 10u)) << "the first ones";
  ExpectSame(Reread(profile), profile);
}

class ActivationProfileFileTest : public testing::Test {
 protected:
  // Expects an error whose message names the source and holds `what`, cheaply.
  static void ExpectRefused(std::span<const std::byte> bytes, absl::StatusCode code,
                            const std::string& what) {
    const CostBound bound;
    const absl::Status status = ActivationProfile::Parse(bytes, "some.profile").status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("some.profile: "), HasSubstr(what)));
  }
  // A good profile changed in one place, with checksums that are right.
  static void ExpectDataLoss(const std::function<void(ProfileBytes&)>& change,
                             const std::string& what) {
    ProfileBytes profile = Good();
    change(profile);
    ExpectRefused(profile.Bytes(), absl::StatusCode::kDataLoss, what);
  }

  // Of one layer of two neurons: two training tokens, then one that is held out.
  static ProfileBytes Good() {
    ProfileBytes profile;
    profile.n_neurons = profile.train.n_neurons = profile.held_out.n_neurons = 2;
    profile.n_tokens = 3;
    profile.n_sequences = 2;
    profile.records = Records({});
    profile.train.n_tokens = 2;
    profile.train.sets = {1, 0, 1, 1};
    profile.held_out.n_tokens = 1;
    profile.held_out.sets = {0};
    return profile;
  }
  struct RecordFields {
    int32_t token = 5;
    uint32_t length = 2;
    uint8_t held_out = 1;
    double overlap = 0.5;
    uint32_t n_overlaps = 1, count = 2;
    std::optional<float> threshold = std::nullopt;
  };
  static std::vector<std::byte> Records(const RecordFields& f) {
    ByteWriter out;
    for (const int32_t token : {1, f.token, 2}) out.Put(token);
    out.Put<uint32_t>(f.length);
    out.Put<uint8_t>(0);
    out.Put<uint32_t>(1);
    out.Put<uint8_t>(f.held_out);
    out.Put(f.overlap);
    out.Put(f.n_overlaps);
    if (f.threshold) out.Put(*f.threshold);
    out.Put<uint32_t>(1);
    out.Put(f.count);
    return out.bytes();
  }

  TempDir dir_;
  const std::string path_ = dir_.File("text.profile");
};

TEST_F(ActivationProfileFileTest, SavesLoadsAndReplaces) {
  std::ofstream(path_) << "something else";
  ASSERT_TRUE(SmallProfile().Save(path_).ok());
  const auto loaded = ActivationProfile::Load(path_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ExpectSame(*loaded, SmallProfile());
  EXPECT_EQ(std::filesystem::file_size(path_), Serialized(SmallProfile()).size());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_.path()), {}), 1);
}

TEST_F(ActivationProfileFileTest, WhatIsNoFileOrNoProfileIsRefusedByName) {
  const auto load = [&](const std::string& path) {
    const absl::Status status = ActivationProfile::Load(path).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
    return std::string(status.message());
  };
  EXPECT_THAT(load(dir_.File("missing")), HasSubstr("cannot be opened"));
  EXPECT_THAT(load(dir_.path()), HasSubstr("directory"));
  const std::string fifo = dir_.File("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(load(fifo), HasSubstr("cannot be opened"));
  std::ofstream(path_) << "SLUICEAT";  // a trace
  std::filesystem::resize_file(path_, uint64_t{1} << 30);
  const CostBound bound;
  EXPECT_THAT(load(path_), HasSubstr("is not an activation profile"));
  std::ofstream(path_) << "SLUICEAP";
  std::filesystem::resize_file(path_, uint64_t{1} << 40);
  EXPECT_THAT(load(path_), HasSubstr("too large"));
}

TEST_F(ActivationProfileFileTest, TheBuilderOfBadFilesBuildsAGoodOne) {
  const auto profile = ActivationProfile::Parse(Good().Bytes(), "profile");
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_THAT(profile->counts(0), ElementsAre(1, 2));
  EXPECT_THAT(Get(profile->train(), 1, 0), ElementsAre(1));
}

TEST_F(ActivationProfileFileTest, AFileCutAnywhereIsRefused) {
  const std::vector<std::byte> whole = Serialized(SmallProfile());
  for (size_t n = 0; n < whole.size(); ++n) {
    const auto code = n < 8 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kDataLoss;
    ExpectRefused(std::span(whole).first(n), code, "activation profile");
  }
}

TEST_F(ActivationProfileFileTest, ATurnedBitIsRefused) {
  const std::vector<std::byte> whole = Serialized(SmallProfile());
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::vector<std::byte> bytes = whole;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    const CostBound bound;
    const absl::Status status = ActivationProfile::Parse(bytes, "some.profile").status();
    EXPECT_FALSE(status.ok()) << "bit " << bit;
    EXPECT_THAT(std::string(status.message()), HasSubstr("some.profile: "));
  }
}

TEST_F(ActivationProfileFileTest, AnotherKindAndAnotherVersionAreNamed) {
  ProfileBytes profile = Good();
  profile.magic = "SLUICEAT";
  ExpectRefused(profile.Bytes(), absl::StatusCode::kInvalidArgument, "not an activation profile");
  profile.magic = "SLUICEAP";
  for (const uint32_t version : {0u, 2u, UINT32_MAX}) {
    profile.version = version;
    ExpectRefused(profile.Bytes(), absl::StatusCode::kFailedPrecondition,
                  "version " + std::to_string(version));
  }
}

TEST_F(ActivationProfileFileTest, FieldsThatNoProfileHasAreNamedThoughChecksumsAreRight) {
  ExpectDataLoss([](auto& p) { p.n_layers = 0; }, "0 layers");
  ExpectDataLoss([](auto& p) { p.n_layers = UINT32_MAX; }, "4294967295 layers");
  ExpectDataLoss([](auto& p) { p.n_neurons = 0; }, "0 neurons");
  ExpectDataLoss([](auto& p) { p.n_neurons = UINT32_MAX; }, "4294967295 neurons");
  ExpectDataLoss([](auto& p) { p.has_thresholds = 2; }, "mark of thresholds");
  ExpectDataLoss([](auto& p) { p.n_layers = 4096, p.n_neurons = 1 << 20; }, "size");
  for (const uint32_t n : {0u, 2u, 4u, UINT32_MAX}) {
    ExpectDataLoss([&](auto& p) { p.n_tokens = n; }, "size");
  }
  ExpectDataLoss([](auto& p) { p.n_sequences = UINT32_MAX; }, "size");
  for (size_t part = 0; part < 3; ++part) {
    ExpectDataLoss([&](auto& p) { p.n_bytes[part] = UINT64_MAX; }, "truncated");
    ExpectDataLoss([&](auto& p) { p.checksums[part] = 1; }, "checksum");
  }
  ExpectDataLoss([](auto& p) { p.checksum = 1; }, "header does not match");
  ExpectDataLoss([](auto& p) { p.rest.resize(1); }, "left after");
  ExpectDataLoss([](auto& p) { p.frame = std::vector<std::byte>(20, std::byte{90}); }, "size");
}

TEST_F(ActivationProfileFileTest, RecordsOutOfRangeAreRefused) {
  const auto expect = [](const RecordFields& fields, const std::string& what) {
    ExpectDataLoss(
        [&](ProfileBytes& p) {
          p.records = Records(fields);
          p.has_thresholds = fields.threshold.has_value();
        },
        what);
  };
  expect({.token = -1}, "token id is -1");
  expect({.length = 3}, "sequence 1");
  expect({.length = UINT32_MAX}, "sequence 0");
  expect({.length = 1}, "no sequence");
  expect({.held_out = 2}, "sequence 1");
  expect({.overlap = -1}, "layer 0");
  expect({.overlap = 1.5}, "layer 0");
  expect({.overlap = NAN}, "layer 0");
  expect({.n_overlaps = 3}, "layer 0");
  expect({.count = 3}, "layer 0");
  for (const float t : {-1.0f, NAN, INFINITY}) expect({.threshold = t}, "layer 0");
}

TEST_F(ActivationProfileFileTest, SetsOfAnotherModelOrOfMoreTokensAreRefused) {
  for (const bool train : {true, false}) {
    const std::string what = train ? "training sets" : "held-out sets";
    const auto of = [train](ProfileBytes& p) -> TraceBytes& {
      return train ? p.train : p.held_out;
    };
    ExpectDataLoss([&](auto& p) { of(p).model_id = 2; }, what);
    ExpectDataLoss([&](auto& p) { of(p).n_neurons = 3; }, what);
    ExpectDataLoss([&](auto& p) { of(p).n_tokens = 3, of(p).sets = {0, 0, 0}; }, what);
    ExpectDataLoss([&](auto& p) { of(p).sets = {1, 2}; }, "activation trace");
  }
}

TEST_F(ActivationProfileFileTest, WhatClaimsToHoldManyTimesItsSizeIsRefusedBeforeItIsUnpacked) {
  ProfileBytes profile = Good();
  profile.n_neurons = profile.train.n_neurons = profile.held_out.n_neurons = 1 << 20;
  profile.n_layers = 32;
  profile.records.assign(12 + 10 + 32 * (12 + (size_t{4} << 20)), std::byte{0});
  const std::vector<std::byte> bytes = profile.Bytes();
  ASSERT_LT(bytes.size(), 64u << 10);
  profile = Good();
  ExpectRefused(bytes, absl::StatusCode::kDataLoss, "size");
}

TEST_F(ActivationProfileFileTest, AProfileOfWhichNothingFiresComesBack) {
  ActivationProfile profile({.weights_id = 1, .n_layers = 8, .n_neurons = 1 << 20, .d_model = 32});
  ExpectSame(Reread(profile), profile);
}

}  // namespace
}  // namespace sluice
