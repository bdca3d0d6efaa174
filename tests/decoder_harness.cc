#include "tests/decoder_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/counter_rng.h"
#include "layout/repack.h"
#include "runtime/memory_plan.h"

namespace sluice {

PackedModel::PackedModel(const std::string& gguf, WeightType type, uint32_t block) {
  Repack(gguf, type, block);
}

PackedModel::PackedModel(const ToyModel& toy, WeightType type, uint32_t block) {
  MustBeOk(WriteToyModel(toy, dir_.File("toy.gguf")));
  Repack(dir_.File("toy.gguf"), type, block);
}

void PackedModel::Repack(const std::string& gguf, WeightType type, uint32_t block) {
  source_ = Must(OpenModelSource(gguf, {}));
  RepackOptions options;
  options.type = type;
  options.resident_type = type;
  options.block = block;
  Must(sluice::Repack(*source_, dir_.File("model.sluice"), options));
  file_ = Must(SluiceFile::Open(dir_.File("model.sluice")));
}

PlanRequest Way::request() const {
  PlanRequest r;
  r.mode = mode;
  r.predict_heads = predict_heads;
  r.budget = budget;
  r.context = context;
  r.chunk = chunk;
  r.logit_rows = logit_rows;
  r.n_threads = threads;
  r.mapped = mapped;
  return r;
}

std::string Describe(const Way& way) {
  return absl::StrFormat(
      "%s, budget %u, chunk %u, %d threads, %s, kernels %s%s%s%s%s", DecodeModeName(way.mode),
      way.budget, way.chunk, way.threads, way.engine == EngineKind::kPread ? "pread" : "io_uring",
      way.kernels != nullptr ? way.kernels->name : "best", way.mapped ? ", mapped" : "",
      way.profile != nullptr ? ", merged reads" : "", way.look_ahead ? "" : ", no look-ahead",
      way.predict_heads ? ", heads predicted" : "");
}

absl::StatusOr<std::unique_ptr<Decoder>> OpenDecoder(const SluiceFile& file, const Way& way) {
  SLUICE_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(file, way.request()));
  DecoderOptions options;
  options.engine = way.engine;
  options.direct = way.direct;
  options.kernels = way.kernels;
  options.profile = way.profile;
  options.trace = way.trace;
  options.observer = way.observer;
  options.look_ahead = way.look_ahead;
  options.miss_skip = way.miss_skip;
  if (way.faults != nullptr) {
    options.wrap_engine = [faults = *way.faults](std::unique_ptr<ReadEngine> engine,
                                                 const StorageFile& storage) {
      return std::make_unique<FaultEngine>(std::move(engine), faults,
                                           storage.direct() ? storage.fd() : -1);
    };
  }
  return Decoder::Create(file, plan, options);
}

std::vector<uint64_t> Budgets(const SluiceFile& file, const Way& way) {
  Way unlimited = way;
  unlimited.budget = UINT64_MAX;
  const MemoryPlan plan = Must(PlanMemory(file, unlimited.request()));
  std::vector<uint64_t> budgets;
  const BundleLayout& bundles = file.bundles();
  uint64_t weights = uint64_t{file.config().n_layers} * bundles.d_ff * bundles.stride;
  for (const MatrixEntry& m : file.directory().matrices) weights += m.n_bytes();
  for (const uint64_t percent : {0, 5, 20, 45, 75}) {
    budgets.push_back(plan.minimum + weights * percent / 100);
  }
  budgets.push_back(plan.everything);
  return budgets;
}

uint64_t LeastBudgetFor(const SluiceFile& file, const Way& way, uint32_t chunk) {
  Way small = way;
  small.budget = Budgets(file, way).front();
  const uint64_t step = small.budget / 64;
  MemoryPlan plan = Must(PlanMemory(file, small.request()));
  while (plan.chunk < chunk && !plan.holds_all_bundles) {
    small.budget += step;
    plan = Must(PlanMemory(file, small.request()));
  }
  if (plan.holds_all_bundles) throw std::runtime_error("no small budget has such chunks");
  return small.budget;
}

ToyModel WideToy() {
  ToyModel toy;
  toy.n_layers = 4;
  toy.d_ff = 1280;
  return toy;
}

FaultConfig AllFaults(uint64_t seed) {
  FaultConfig faults;
  faults.seed = seed;
  faults.einval = 0.002;
  faults.eio_once = 0.1;
  faults.eintr = 0.1;
  faults.eagain = 0.05;
  faults.unwritten = 0.1;
  faults.short_read = 0.2;
  faults.delay = 0.2;
  faults.reorder = true;
  faults.few = true;
  return faults;
}

std::vector<EngineKind> Engines() {
  static const bool has_uring = [] {
    const TempDir dir;
    MustBeOk(WriteToyModel(ToyModel(), dir.File("toy.gguf")));
    const auto file = Must(StorageFile::Open(dir.File("toy.gguf"), DirectMode::kAuto, 512));
    EngineOptions options;
    options.kind = EngineKind::kUring;
    std::string note;
    return MakeReadEngine(*file, options, &note).ok();
  }();
  if (!has_uring) return {EngineKind::kPread};
  return {EngineKind::kUring, EngineKind::kPread};
}

absl::StatusOr<Logits> RunTokens(Decoder& decoder, std::span<const int32_t> tokens, size_t prompt) {
  Logits logits;
  for (size_t at = 0; at < tokens.size();) {
    const size_t n = at == 0 ? prompt : 1;
    SLUICE_RETURN_IF_ERROR(decoder.Forward(tokens.subspan(at, n)));
    logits.emplace_back(decoder.logits().begin(), decoder.logits().end());
    at += n;
  }
  return logits;
}

absl::StatusOr<Logits> RunTokens(const SluiceFile& file, const Way& way,
                                 std::span<const int32_t> tokens, size_t prompt) {
  SLUICE_ASSIGN_OR_RETURN(const auto decoder, OpenDecoder(file, way));
  return RunTokens(*decoder, tokens, prompt);
}

void ExpectSameBitsEveryWay(const SluiceFile& file, const Way& base,
                            std::span<const int32_t> tokens, size_t prompt,
                            const Logits& expected) {
  const auto check = [&](const Way& way) {
    EXPECT_TRUE(SameBits(Must(RunTokens(file, way, tokens, prompt)), expected)) << Describe(way);
  };
  size_t i = 0;
  for (const EngineKind engine : Engines()) {
    Way way = base;
    way.engine = engine;
    way.threads = 2;  // for which the budgets are
    for (const uint64_t budget : Budgets(file, way)) {
      way.budget = budget;
      way.threads = i % 2 == 0 ? 1 : 2;
      way.chunk = i++ % 3 == 0 ? 1 : 64;
      check(way);
    }
  }
  Way mapped = base;
  mapped.mapped = true;
  check(mapped);
}

absl::StatusOr<std::vector<int32_t>> RunGreedy(Decoder& decoder, std::vector<int32_t> prompt,
                                               size_t n) {
  std::vector<int32_t> out;
  SLUICE_RETURN_IF_ERROR(decoder.Forward(prompt));
  while (out.size() < n) {
    out.push_back(Best(decoder.logits()));
    if (out.size() < n) SLUICE_RETURN_IF_ERROR(decoder.Forward(std::span(out).last(1)));
  }
  return out;
}

int32_t Best(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

float MaxError(std::span<const float> a, std::span<const float> b) {
  float most = a.size() == b.size() ? 0.0f : INFINITY;
  for (size_t i = 0; i < a.size() && std::isfinite(most); ++i) {
    const float error = std::fabs(a[i] - b[i]);
    most = std::isnan(error) ? INFINITY : std::max(most, error);
  }
  return most;
}

bool SameBits(const Logits& a, const Logits& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size() ||
        std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

std::vector<int32_t> RandomTokens(size_t n, uint32_t vocab_size, uint64_t seed) {
  CounterRng rng(seed, 0, 0);
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(rng.Below(vocab_size));
  return tokens;
}

}  // namespace sluice
