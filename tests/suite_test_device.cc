// Device models and the engine that emulates one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "io/clock.h"
#include "io/device_profile.h"
#include "io/emulated_device.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using testing::HasSubstr;

constexpr char kSmallModel[] = R"({"name": "test device", "queue_entries": 8,
  "read_MBps": [
    {"pattern": "random", "block": 4096, "range": null, "core": "big", "value": 100},
    {"pattern": "random", "block": 4096, "range": 1048576, "core": "big", "value": 200},
    {"pattern": "random", "block": 4096, "range": 1048576, "core": "little", "value": 160},
    {"pattern": "random", "block": 65536, "range": null, "core": "big", "value": 1600},
    {"pattern": "sequential", "block": 65536, "range": null, "core": "big", "value": 3200}],
  "upper_bounds_MBps": [{"pattern": "random", "block_max": 16384, "value": 300}],
  "multi_core_issue_penalty": {"max_loss": 0.4}})";

DeviceModel Small() {
  auto model = DeviceModel::Parse(kSmallModel, "small");
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

TEST(DeviceModelTest, GivesItsPointsAndInterpolatesBetween) {
  const DeviceModel m = Small();
  const auto rate = [&](bool random, uint32_t block, uint64_t range, CoreClass core) {
    return m.MegabytesPerSecond(random, block, range, core);
  };
  EXPECT_NEAR(rate(true, 4096, 1 << 20, CoreClass::kBig), 200, 0.1);
  EXPECT_NEAR(rate(true, 4096, 1 << 10, CoreClass::kBig), 200, 0.1);
  EXPECT_NEAR(rate(true, 4096, 1 << 20, CoreClass::kLittle), 160, 0.1);
  EXPECT_NEAR(rate(true, 4096, UINT64_MAX, CoreClass::kBig), 100, 0.1);
  EXPECT_NEAR(rate(true, 65536, UINT64_MAX, CoreClass::kBig), 1600, 0.1);
  EXPECT_NEAR(rate(false, 65536, UINT64_MAX, CoreClass::kBig), 3200, 0.1);
  // Half way on log-log paper; beyond the ends.
  EXPECT_NEAR(rate(true, 32768, UINT64_MAX, CoreClass::kBig), 800, 1);
  EXPECT_NEAR(rate(true, 1 << 20, UINT64_MAX, CoreClass::kBig), 1600, 0.1);
  EXPECT_NEAR(rate(true, 2048, UINT64_MAX, CoreClass::kBig), 50, 0.1);
  const double between = rate(true, 4096, 3 << 19, CoreClass::kBig);
  EXPECT_GT(between, 100);
  EXPECT_LT(between, 200);
  // Twice as fast as random reads everywhere, as at the one point that is known.
  EXPECT_NEAR(rate(false, 4096, UINT64_MAX, CoreClass::kBig), 200, 1);
  // 400 by interpolation, but bounded.
  EXPECT_NEAR(rate(true, 16384, UINT64_MAX, CoreClass::kBig), 300, 0.1);
}

TEST(DeviceModelTest, ContentionGrowsTowardsTheLargestLoss) {
  const DeviceModel m = Small();
  EXPECT_DOUBLE_EQ(m.ContentionFactor(1), 1);
  EXPECT_NEAR(m.ContentionFactor(2), 1.25, 1e-9);
  EXPECT_LT(m.ContentionFactor(2), m.ContentionFactor(4));
  EXPECT_LT(m.ContentionFactor(1000), 1 / 0.6);
}

TEST(DeviceModelTest, SaysWhichFieldIsWrong) {
  const auto expect = [](const std::string& json, const std::string& what) {
    const absl::Status status = DeviceModel::Parse(json, "profile.json").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_THAT(std::string(status.message()), HasSubstr("profile.json"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(what)) << json;
  };
  expect("", "is not valid JSON");
  expect("[]", "is not an object");
  expect("{", "is not valid JSON");
  expect("{}", "name");
  expect(R"({"name": 3})", "name");
  expect(R"({"name": "x"})", "no random reads");
  expect(R"({"name": "x", "read_MBps": 3})", "not an array");
  expect(R"({"name": "x", "read_MBps": [3]})", "read_MBps[0]");
  const auto point = [](const std::string& members) {
    return R"({"name": "x", "read_MBps": [{)" + members + "}]}";
  };
  expect(point(R"("pattern": "zigzag", "block": 4096, "core": "big", "value": 1)"), "pattern");
  expect(point(R"("pattern": "random", "core": "big", "value": 1)"), "block");
  expect(point(R"("pattern": "random", "block": "4k", "core": "big", "value": 1)"), "block");
  expect(point(R"("pattern": "random", "block": 4096, "core": "huge", "value": 1)"), "core");
  expect(point(R"("pattern": "random", "block": 4096, "core": "big", "value": 0)"), "value");
  expect(point(R"("pattern": "random", "block": 4096, "core": "big", "value": 1e99)"), "value");
  expect(point(R"("pattern": "random", "block": 4096, "range": -5, "core": "big", "value": 1)"),
         "range");
}

// Throughput in MB/s of a closed loop of `depth` reads in virtual time.
double Replay(EmulatedDevice& device, bool random, uint32_t block, uint64_t range, CoreClass core,
              uint32_t depth) {
  std::mt19937_64 rng(3);
  std::deque<uint64_t> in_flight;
  uint64_t now_ns = 0, next = 0;
  constexpr int kReads = 20'000;
  for (int i = 0; i < kReads; ++i) {
    if (in_flight.size() == depth) {
      now_ns = in_flight.front();
      in_flight.pop_front();
    }
    const uint64_t index = random ? rng() % (range / block) : next++ % (range / block);
    in_flight.push_back(device.Enqueue(now_ns, index * block, block, core));
  }
  return static_cast<double>(block) * kReads / static_cast<double>(in_flight.back()) * 1e3;
}

TEST(EmulatedDeviceTest, ReproducesThePublishedFiguresOfUfs) {
  const auto path = SharedPath("device/ufs40.json");
  if (!path) GTEST_SKIP() << "the shared device table is not here";
  const auto profile = DeviceProfile::Load(*path);
  ASSERT_TRUE(profile.ok()) << profile.status();
  const DeviceModel* model = &profile->model();
  ASSERT_GE(model->points().size(), 7u);
  for (const DeviceModel::Point& p : model->points()) {
    EmulatedDevice device(*model);
    const uint64_t range = p.range.value_or(uint64_t{8} << 30);
    const double rate = Replay(device, p.random, p.block, range, p.core, 32);
    EXPECT_NEAR(rate, p.megabytes_per_second, 0.05 * p.megabytes_per_second)
        << (p.random ? "random " : "sequential ") << p.block << " in " << range << " on a "
        << CoreClassName(p.core) << " core";
  }
  for (const DeviceModel::Bound& b : model->bounds()) {
    for (uint32_t block = 4096; block <= b.block_max; block += 4096) {
      for (const uint64_t range : {uint64_t{128} << 20, uint64_t{256} << 20, uint64_t{4} << 30}) {
        EmulatedDevice device(*model);
        EXPECT_LE(Replay(device, b.random, block, range, CoreClass::kBig, 32),
                  b.megabytes_per_second);
      }
    }
  }
}

// Answers at once, with a byte that says so.
class InstantEngine final : public ReadEngine {
 public:
  const std::string& description() const override { return description_; }
  uint32_t depth() const override { return 16; }
  absl::StatusOr<uint32_t> Submit(std::span<const ReadOp> ops) override {
    for (const ReadOp& op : ops) {
      if (op.dst != nullptr) std::memset(op.dst, 0x5a, op.length);
      done_.push_back({op.user, static_cast<int32_t>(op.length)});
    }
    return static_cast<uint32_t>(ops.size());
  }
  absl::StatusOr<uint32_t> Reap(std::span<ReadResult> results, bool) override {
    uint32_t n = 0;
    for (; n < results.size() && !done_.empty(); ++n) {
      results[n] = done_.back();  // the last first
      done_.pop_back();
    }
    return n;
  }
  void Wake() override {}

 private:
  const std::string description_ = "instant";
  std::vector<ReadResult> done_;
};

TEST(EmulatedEngineTest, CompletesEveryReadOnceAndNoEarlierThanTheModelSays) {
  const auto device = std::make_shared<EmulatedDevice>(Small());
  EmulatedEngine engine(std::make_unique<InstantEngine>(), device, CoreClass::kBig);
  EXPECT_EQ(engine.depth(), 8u) << "the queue of the device";
  EXPECT_THAT(engine.description(), testing::AllOf(HasSubstr("EMULATED"), HasSubstr("instant")));
  constexpr uint32_t kBlock = 65536;
  constexpr int kReads = 64;
  std::vector<std::byte> memory(kBlock * 8);
  std::vector<int> seen(kReads);
  std::mt19937_64 rng(1);
  const uint64_t begin_ns = NowNs();
  int submitted = 0, done = 0;
  while (done < kReads) {
    std::vector<ReadOp> ops;
    for (int i = submitted; i < kReads && i < submitted + 3; ++i) {
      ReadOp op;
      op.offset = rng() % 100'000 * kBlock;
      op.length = kBlock;
      op.dst = memory.data() + static_cast<size_t>(i % 8) * kBlock;
      op.user = static_cast<uint64_t>(i) + 1000;
      ops.push_back(op);
    }
    submitted += static_cast<int>(engine.Submit(ops).value());
    ReadResult results[4];
    const uint32_t n = engine.Reap(results, /*wait=*/true).value();
    for (uint32_t r = 0; r < n; ++r) {
      ++seen.at(results[r].user - 1000);
      EXPECT_EQ(results[r].result, static_cast<int32_t>(kBlock));
    }
    done += static_cast<int>(n);
  }
  EXPECT_THAT(seen, testing::Each(1));
  const double least_ns =
      kReads * device->model().ServiceNs(true, kBlock, UINT64_MAX, CoreClass::kBig);
  EXPECT_GE(static_cast<double>(NowNs() - begin_ns), 0.99 * least_ns);
}

TEST(EmulatedDeviceTest, CountsWhatTheRealDeviceGaveTooLate) {
  EmulatedDevice device(Small());
  EXPECT_EQ(device.late_share(), 0);
  device.CountLanded(1000, 2000, 1500);
  device.CountLanded(1000, 2000, 2050);
  EXPECT_EQ(device.late_share(), 0) << "within 5 % of its time";
  device.CountLanded(1000, 2000, 2051);
  EXPECT_DOUBLE_EQ(device.late_share(), 1.0 / 3);
}

TEST(EmulatedEngineTest, AWakeEndsTheWait) {
  const auto device = std::make_shared<EmulatedDevice>(Small());
  EmulatedEngine engine(std::make_unique<InstantEngine>(), device, CoreClass::kBig);
  ReadOp op;
  op.length = 1 << 30;  // most of a second of service
  ASSERT_EQ(engine.Submit({&op, 1}).value(), 1u);
  engine.Wake();
  ReadResult result;
  EXPECT_EQ(engine.Reap({&result, 1}, /*wait=*/true).value(), 0u);
  std::thread waker([&] { engine.Wake(); });
  EXPECT_EQ(engine.Reap({&result, 1}, /*wait=*/true).value(), 0u);
  waker.join();
}

}  // namespace
}  // namespace sluice
