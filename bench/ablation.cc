// What each part of the decoder brings, as PowerInfer-2's ablation (sec. 7.2.4 of the paper): the
// same tokens are decoded under the same budget with the parts added one by one. The file has
// predictors (`sluice train`); the tokens are those that greedy decoding of the whole model gives.
// The steps alternate, so that a machine that slows down slows all of them.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "bench/row_engine.h"
#include "bench/timed_reader.h"
#include "io/clock.h"
#include "io/status.h"
#include "io/suite/suite.h"
#include "runtime/decoder.h"
#include "runtime/hot_plan.h"

namespace sluice {
namespace {

struct Flags {
  std::string model, device = "auto", emulate;
  double share = 50;  // budget, percent of the file
  uint32_t tokens = 48;
  int repeats = 3, threads = 2;
};

// Each has what the one before has.
enum class Step { kRows, kBundles, kCache, kPipeline, kMerger, kPredictor, kLookAhead, kSteps };
constexpr int kSteps = static_cast<int>(Step::kSteps);
constexpr const char* kStepNames[] = {"read on demand, row by row",
                                      "+ bundles",
                                      "+ cache",
                                      "+ cached neurons first",
                                      "+ reads merged by the profile",
                                      "+ the predictor chooses",
                                      "+ look-ahead"};

struct Result {
  std::vector<double> ms;  // of a token, in all repeats
  // Of the last repeat.
  DecoderStats stats;
  uint64_t operations = 0, tokens = 0, wall_ns = 0;
};

class Ablation {
 public:
  Ablation(const SluiceFile& file, const BenchDevice& device, const Flags& flags)
      : file_(file), device_(device), flags_(flags), results_(kSteps) {}

  absl::Status Run() {
    SLUICE_RETURN_IF_ERROR(ChooseTokens());
    for (int r = 0; r < flags_.repeats; ++r) {
      for (int i = 0; i < kSteps; ++i) {
        const int step = r % 2 == 0 ? i : kSteps - 1 - i;
        SLUICE_RETURN_IF_ERROR(RunStep(static_cast<Step>(step)));
      }
    }
    return absl::OkStatus();
  }
  const Result& result(Step step) const { return results_[static_cast<size_t>(step)]; }

 private:
  PlanRequest Request(DecodeMode mode, uint64_t budget) const {
    PlanRequest request;
    request.mode = mode;
    request.budget = budget;
    request.context = flags_.tokens + 1;
    request.n_threads = flags_.threads;
    return request;
  }

  absl::Status ChooseTokens() {
    SLUICE_ASSIGN_OR_RETURN(const MemoryPlan plan,
                            PlanMemory(file_, Request(DecodeMode::kExact, UINT64_MAX)));
    SLUICE_ASSIGN_OR_RETURN(const auto decoder, Decoder::Create(file_, plan, {}));
    tokens_ = {1};
    while (tokens_.size() < flags_.tokens) {
      SLUICE_RETURN_IF_ERROR(decoder->Forward({&tokens_.back(), 1}));
      const auto logits = decoder->logits();
      tokens_.push_back(
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    }
    return absl::OkStatus();
  }

  // A cache that keeps nothing from token to token: LRU needs the active sets of all layers for
  // that, and this one is so small that no part of it is set apart for hot neurons.
  uint32_t NoCache(uint32_t n_slots) const {
    n_slots = std::min(n_slots, file_.config().d_ff);
    while (n_slots > 64 && !PlanHot(file_, n_slots).empty()) n_slots = n_slots * 3 / 4;
    return n_slots;
  }

  absl::Status RunStep(Step step) {
    const auto budget =
        static_cast<uint64_t>(static_cast<double>(file_.file_size()) * flags_.share / 100);
    const DecodeMode mode = step >= Step::kPredictor ? DecodeMode::kPredicted : DecodeMode::kExact;
    SLUICE_ASSIGN_OR_RETURN(MemoryPlan plan, PlanMemory(file_, Request(mode, budget)));
    if (plan.holds_all_bundles) {
      return absl::InvalidArgumentError("the budget holds all bundles; give a smaller --share");
    }
    if (step < Step::kCache) plan.n_slots = NoCache(plan.n_slots);
    const auto operations = std::make_shared<std::atomic<uint64_t>>(0);
    SLUICE_ASSIGN_OR_RETURN(const auto decoder,
                            Decoder::Create(file_, plan, Options(step, operations)));
    Result& result = results_[static_cast<size_t>(step)];
    result.wall_ns = 0;
    const size_t warm = tokens_.size() / 4;
    DecoderStats before;
    for (size_t t = 0; t < tokens_.size(); ++t) {
      if (t == warm) {
        before = decoder->stats();
        operations->store(0);
      }
      const uint64_t begin_ns = NowNs();
      SLUICE_RETURN_IF_ERROR(decoder->Forward({&tokens_[t], 1}));
      if (t < warm) continue;
      const uint64_t took_ns = NowNs() - begin_ns;
      result.wall_ns += took_ns;
      result.ms.push_back(static_cast<double>(took_ns) / 1e6);
    }
    result.stats = decoder->stats() - before;
    result.operations = step == Step::kRows ? operations->load() : result.stats.flash_operations;
    result.tokens = tokens_.size() - warm;
    return absl::OkStatus();
  }

  DecoderOptions Options(Step step, std::shared_ptr<std::atomic<uint64_t>> operations) const {
    DecoderOptions options;
    options.direct = device_.emulated ? DirectMode::kOff : DirectMode::kOn;
    if (step >= Step::kMerger) {
      options.profile = std::make_shared<const DeviceProfile>(*device_.profile);
    }
    options.cached_first = step >= Step::kPipeline;
    options.look_ahead = step >= Step::kLookAhead;
    options.wrap_engine = [this, step, operations](std::unique_ptr<ReadEngine> engine,
                                                   const StorageFile&) {
      if (device_.emulated) {
        engine = std::make_unique<EmulatedEngine>(
            std::move(engine), std::make_shared<EmulatedDevice>(device_.profile->model()),
            CoreClass::kBig);
      }
      if (step != Step::kRows) return engine;
      return std::unique_ptr<ReadEngine>(
          std::make_unique<RowEngine>(std::move(engine), file_.bundles(), operations));
    };
    return options;
  }

  const SluiceFile& file_;
  const BenchDevice& device_;
  const Flags& flags_;
  std::vector<int32_t> tokens_;
  std::vector<Result> results_;
};

double Share(uint64_t part, uint64_t of) {
  return of == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(of);
}

absl::Status RunBench(const Flags& flags) {
  SLUICE_ASSIGN_OR_RETURN(const auto file, SluiceFile::Open(flags.model));
  if (file->predictor() == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: has no predictors; make some with sluice train", flags.model));
  }
  SLUICE_ASSIGN_OR_RETURN(const BenchDevice device,
                          BenchDevice::Open(*file, flags.device, flags.emulate));
  Ablation ablation(*file, device, flags);
  SLUICE_RETURN_IF_ERROR(ablation.Run());
  absl::PrintF("%s, %s, budget %.0f %% of the file, %d threads, %u tokens x %d\n\n", flags.model,
               device.Name(), flags.share, flags.threads, flags.tokens, flags.repeats);
  absl::PrintF(
      "| step | ms/token (p5-p95) | tokens/s | against the step before | stall | hit rate | "
      "MB/token | operations/token | read ahead: needed, of those in time |\n"
      "|---|---|---|---|---|---|---|---|---|\n");
  double last = 0;
  for (int i = 0; i < kSteps; ++i) {
    const Result& r = ablation.result(static_cast<Step>(i));
    const Spread ms = SpreadOf(r.ms);
    const LookAheadStats& ahead = r.stats.look_ahead;
    const auto n = static_cast<double>(r.tokens);
    absl::PrintF("| %s | %.2f (%.2f-%.2f) | %.2f | %s | %.0f %% | %.1f %% | %.2f | %.0f | %s |\n",
                 kStepNames[i], ms.median, ms.p5, ms.p95, 1e3 / ms.median,
                 i == 0 ? "" : absl::StrFormat("%.2f x", last / ms.median),
                 100 * Share(r.stats.stall_ns, r.wall_ns),
                 100 * Share(r.stats.hits, r.stats.hits + r.stats.misses),
                 static_cast<double>(r.stats.flash_bytes) / 1e6 / n,
                 static_cast<double>(r.operations) / n,
                 ahead.reads == 0
                     ? "-"
                     : absl::StrFormat("%.0f %%, %.0f %%", 100 * Share(ahead.needed, ahead.reads),
                                       100 * Share(ahead.in_time, ahead.needed)));
    last = ms.median;
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("What each part of the decoder brings, on a model with predictors");
  app.add_option("MODEL", flags.model, "A .sluice file")->required();
  app.add_option("--device", flags.device, "Profile; auto: a probe")->capture_default_str();
  app.add_option("--emulate", flags.emulate, "Profile of a device to emulate");
  app.add_option("--share", flags.share, "Budget in percent of the file")->capture_default_str();
  app.add_option("-n,--tokens", flags.tokens)->capture_default_str()->check(CLI::Range(8, 4096));
  app.add_option("-t,--threads", flags.threads)->capture_default_str();
  app.add_option("-r,--repetitions", flags.repeats)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = RunBench(flags);
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "ablation: %s\n", status.message());
  return 1;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
