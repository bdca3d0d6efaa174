#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "io/available_memory.h"
#include "io/clock.h"
#include "io/status.h"
#include "layout/sluice_file.h"
#include "predictor/activation_trace.h"
#include "runtime/forecast.h"
#include "runtime/generation.h"
#include "tools/device_flags.h"
#include "tools/flags.h"
#include "tools/output_files.h"
#include "tools/plan_activations.h"
#include "tools/plan_page.h"
#include "tools/plan_report.h"
#include "tools/run_flags.h"
#include "tools/stop_signals.h"

namespace sluice {
namespace {

struct PlanFlags {
  std::string model, budgets, mode = "auto", direct = "auto", trace;
  DeviceFlags device;
  int64_t context = -1, threads = -1, prompt_tokens = 256, run_tokens = 24;
  std::string html;
  bool json = false;
};

constexpr int kDefaultBudgets = 6;
// For the runs; any text does, since only how fast it goes is looked at, and which neurons fire.
constexpr char kText[] =
    "It was a bright morning, and the people of the town had gone down to the river to see the "
    "ships come in. The captain stood at the rail and looked for his brother in the crowd.";

// In the order of its methods; what one needs the one before has set.
class Planner {
 public:
  explicit Planner(const PlanFlags& flags) : flags_(flags) {}

  absl::Status ReadFlags() {
    SLUICE_ASSIGN_OR_RETURN(direct_, ParseDirect(flags_.direct));
    SLUICE_ASSIGN_OR_RETURN(request_.n_threads, ChooseThreads(flags_.threads));
    SLUICE_RETURN_IF_ERROR(InRange("-c", flags_.context, -1, 1 << 27));
    SLUICE_RETURN_IF_ERROR(InRange("--prompt-tokens", flags_.prompt_tokens, 1, 1 << 24));
    SLUICE_RETURN_IF_ERROR(InRange("--run-tokens", flags_.run_tokens, 4, 1 << 16));
    if (flags_.budgets.empty()) return absl::OkStatus();
    const std::vector<std::string> texts = absl::StrSplit(flags_.budgets, ',');
    for (const std::string& text : texts) {
      const auto budget = ParseBytes(text);
      if (!budget.ok()) return Annotate(budget.status(), "--mem-budget");
      budgets_.push_back(*budget);
    }
    std::sort(budgets_.begin(), budgets_.end());
    return absl::OkStatus();
  }

  absl::Status OpenFile() {
    SLUICE_ASSIGN_OR_RETURN(file_, SluiceFile::Open(flags_.model));
    return absl::OkStatus();
  }

  absl::Status ReadMode() {
    SLUICE_ASSIGN_OR_RETURN(request_.mode, ChooseMode("--mode", flags_.mode, *file_));
    return absl::OkStatus();
  }

  absl::Status Open() {
    SLUICE_ASSIGN_OR_RETURN(auto data, file_->LoadTokenizer());
    SLUICE_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Create(std::move(data)));
    request_.tokenizer_bytes = tokenizer_->memory_bytes();
    SLUICE_ASSIGN_OR_RETURN(request_.context, ChooseContext(file_->config(), flags_.context));
    if (!flags_.trace.empty()) {
      SLUICE_ASSIGN_OR_RETURN(PlanActivations activations,
                              LoadPlanActivations(flags_.trace, *file_, request_.mode));
      report_.activations = std::move(activations.note);
      trace_.emplace(std::move(activations.trace));
    }
    report_.model = flags_.model;
    report_.model_bytes = file_->file_size();
    report_.prompt_tokens = static_cast<uint32_t>(flags_.prompt_tokens);
    return budgets_.empty() ? SpreadBudgets() : absl::OkStatus();
  }

  absl::Status FindDevice(const std::atomic<int>* stop) {
    SLUICE_ASSIGN_OR_RETURN(device_, ReadDevice(flags_.device, *file_,
                                                std::max<uint64_t>(budgets_.front() / 2, 1), stop));
    if (device_.profile == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat(device_.note, "; a plan needs a device profile: give one with --device"));
    }
    report_.device = absl::StrCat(device_.emulated ? "EMULATED " : "",
                                  device_.profile->model().name(), " (", device_.note, ")");
    return absl::OkStatus();
  }

  // Short runs with the largest budget that there is memory for and with the smallest; if there are
  // others between, with one of them too.
  absl::Status Measure(const std::atomic<int>* stop) {
    const uint64_t available = AvailableMemory() / 4 * 3;
    size_t last = budgets_.size() - 1;
    while (last > 0 && available > 0 && budgets_[last] > available) --last;
    std::vector<size_t> chosen = {last};
    if (last > 1) chosen.push_back((last + 1) / 2);
    if (last > 0) chosen.push_back(0);
    std::vector<MeasuredRun> runs;
    for (const size_t i : chosen) {
      SLUICE_ASSIGN_OR_RETURN(MeasuredRun run, MeasureOne(budgets_[i], stop));
      runs.push_back(std::move(run));
    }
    cost_ = MeasuredCost(runs, device_.is_profiled);
    for (size_t i = 0; i < runs.size(); ++i) {
      report_.measured[i] += ReadingNote(runs[i]);
    }
    return absl::OkStatus();
  }

  absl::Status Predict() {
    for (const uint64_t budget : budgets_) {
      PlanRow row;
      row.budget = budget;
      SLUICE_ASSIGN_OR_RETURN(row.plan, PlanFor(budget));
      SLUICE_ASSIGN_OR_RETURN(row.forecast, ForecastFor(row.plan));
      SLUICE_ASSIGN_OR_RETURN(const MemoryPlan doubled, PlanFor(2 * budget));
      SLUICE_ASSIGN_OR_RETURN(const Forecast with_more, ForecastFor(doubled));
      const Forecast& f = row.forecast;
      TokenCost fast_compute = f.cost, fast_flash = f.cost;
      fast_compute.compute_ns /= 2;
      fast_flash.io_factor /= 2;
      row.if_compute = 1e9 / TokenNs(f.demand.work, fast_compute);
      row.if_flash = 1e9 / TokenNs(f.demand.work, fast_flash);
      row.if_memory = with_more.tokens_per_second();
      row.limit = row.if_memory > std::max(row.if_compute, row.if_flash) ? Limit::kMemory
                  : row.if_flash > row.if_compute                        ? Limit::kFlash
                                                                         : Limit::kCompute;
      report_.rows.push_back(std::move(row));
    }
    return absl::OkStatus();
  }

  const PlanReport& report() const { return report_; }

 private:
  absl::StatusOr<MemoryPlan> PlanFor(uint64_t budget) const {
    PlanRequest request = request_;
    request.budget = budget;
    return PlanMemory(*file_, request);
  }
  // From the least budget to the one that holds everything, in equal ratios.
  absl::Status SpreadBudgets() {
    SLUICE_ASSIGN_OR_RETURN(const MemoryPlan all, PlanFor(UINT64_MAX));
    const double least = static_cast<double>(all.minimum), ratio = all.everything / least;
    for (int i = 0; i < kDefaultBudgets; ++i) {
      const double share = static_cast<double>(i) / (kDefaultBudgets - 1);
      const auto budget = static_cast<uint64_t>(std::ceil(least * std::pow(ratio, share)));
      budgets_.push_back((budget + 1023) / 1024 * 1024);
    }
    return absl::OkStatus();
  }
  bool sparse() const { return IsSparse(request_.mode, *file_); }
  absl::StatusOr<Forecast> ForecastFor(const MemoryPlan& plan) const {
    return ForecastRun(*file_, plan, *device_.profile, sparse() ? &*trace_ : nullptr, cost_,
                       report_.prompt_tokens);
  }

  absl::StatusOr<MeasuredRun> MeasureOne(uint64_t budget, const std::atomic<int>* stop) {
    absl::FPrintF(stderr, "plan: a run of at least %d tokens with %s\n", flags_.run_tokens,
                  FormatBytes(budget));
    SLUICE_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanFor(budget));
    DecoderOptions options;
    options.direct = direct_;
    UseDevice(device_, &options);
    ActivationTrace trace(file_->model_id(), file_->config().n_layers, file_->config().d_ff);
    if (sparse()) options.trace = &trace;
    const uint64_t begin_ns = NowNs();
    SLUICE_ASSIGN_OR_RETURN(const auto decoder, Decoder::Create(*file_, plan, options));
    const auto load_ns = static_cast<double>(NowNs() - begin_ns);
    GenerationRequest request;
    const auto room = static_cast<int64_t>(plan.request.context);
    SLUICE_ASSIGN_OR_RETURN(request.prompt, Prompt(plan));
    request.ignore_eos = true;
    request.n_predict = room - static_cast<int64_t>(request.prompt.size());
    request.sampler.temperature = 0;
    request.stop = stop;
    // A small model makes its tokens in no time; a second of them says more.
    const uint64_t end_ns = NowNs() + 1'500'000'000;
    std::vector<TokenMark> marks;
    SLUICE_ASSIGN_OR_RETURN(
        const GenerationResult result, Generate(*decoder, *tokenizer_, request, [&](int32_t) {
          marks.push_back({NowNs(), decoder->stats().stall_ns});
          return std::ssize(marks) < flags_.run_tokens || marks.back().ns < end_ns;
        }));
    if (result.stop == StopReason::kInterrupted) return absl::CancelledError("interrupted");
    MeasuredRun run;
    SLUICE_ASSIGN_OR_RETURN(
        run.demand, ForecastDemand(*file_, plan, *device_.profile, sparse() ? &trace : nullptr));
    if (!trace_ && sparse()) {
      report_.activations = absl::StrFormat("%u tokens of the runs below", trace.n_tokens());
      trace_.emplace(std::move(trace));
    }
    run.planned_bytes = static_cast<double>(plan.total);
    run.load_ns = load_ns;
    run.prefill_compute_ns = static_cast<double>(result.prefill.compute_ns()) /
                             static_cast<double>(result.prefill.tokens);
    SetTokenTime(marks, run);
    Note(budget, result, run);
    return run;
  }

  // The text, over and over: a chunk of a prompt like the one that is asked for.
  absl::StatusOr<std::vector<int32_t>> Prompt(const MemoryPlan& plan) const {
    constexpr uint32_t kMost = 128;
    const std::vector<int32_t> text = tokenizer_->Encode(kText, {});
    if (text.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(flags_.model,
                       ": its vocabulary has no tokens for an English text, with which plan runs"));
    }
    std::vector<int32_t> prompt(
        std::min({kMost, report_.prompt_tokens, plan.chunk, plan.request.context / 2 + 1}));
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = text[i % text.size()];
    return prompt;
  }

  // When a token was out, and how long reads had been waited for until then.
  struct TokenMark {
    uint64_t ns = 0, stall_ns = 0;
  };
  // Means over the tokens after the first quarter, with which the cache was warmed: a rate is one
  // of all tokens, those with many misses too. What took many times the median is left out: that
  // was something else.
  static void SetTokenTime(std::span<const TokenMark> marks, MeasuredRun& run) {
    constexpr double kDisturbed = 8;
    std::vector<TokenMark> taken;
    for (size_t i = std::max<size_t>(marks.size() / 4, 1); i < marks.size(); ++i) {
      taken.push_back({marks[i].ns - marks[i - 1].ns, marks[i].stall_ns - marks[i - 1].stall_ns});
    }
    if (taken.empty()) return;
    const auto middle = taken.begin() + std::ssize(taken) / 2;
    const auto is_below = [](const TokenMark& a, const TokenMark& b) { return a.ns < b.ns; };
    std::nth_element(taken.begin(), middle, taken.end(), is_below);
    const double most_ns = kDisturbed * static_cast<double>(middle->ns);
    double ns = 0, stall_ns = 0, n = 0;
    for (const TokenMark& token : taken) {
      if (static_cast<double>(token.ns) > most_ns) continue;
      ns += static_cast<double>(token.ns);
      stall_ns += static_cast<double>(token.stall_ns);
      ++n;
    }
    run.token_ns = ns / n;
    run.compute_ns = (ns - stall_ns) / n;
  }

  void Note(uint64_t budget, const GenerationResult& result, const MeasuredRun& run) {
    const PhaseCost& decode = result.decode;
    const auto n = static_cast<double>(std::max<uint64_t>(decode.tokens, 1));
    report_.measured.push_back(absl::StrFormat(
        "%s: %.2f tokens/s, compute %.2f ms, %.1f MB from flash a token, over %u tokens",
        FormatBytes(budget), decode.tokens_per_second(), run.compute_ns / 1e6,
        static_cast<double>(decode.decoder.flash_bytes) / n / 1e6, decode.tokens));
  }
  std::string ReadingNote(const MeasuredRun& run) const {
    if (!device_.is_profiled) return "; what reading took says nothing of the profile's device";
    return absl::StrFormat("; reading took %.2f times what the profile says",
                           cost_.At(run.demand.bytes()).token.io_factor);
  }

  const PlanFlags& flags_;
  PlanRequest request_;
  DirectMode direct_ = DirectMode::kAuto;
  std::vector<uint64_t> budgets_;
  std::unique_ptr<SluiceFile> file_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ActivationTrace> trace_;
  Device device_;
  MeasuredCost cost_;
  PlanReport report_;
};

int RunPlan(const PlanFlags& flags) {
  Planner planner(flags);
  absl::Status status = planner.ReadFlags();
  if (!status.ok()) return ReportUsage(status);
  OutputFiles outputs;
  std::vector<NamedFile> inputs = DeviceInputs(flags.device, flags.model);
  inputs.insert(inputs.end(), {{"-m", flags.model}, {"--profile", flags.trace}});
  status = outputs.Open(inputs, {{"--html", flags.html}});
  if (absl::IsInvalidArgument(status)) return ReportUsage(status);
  if (!status.ok()) return ReportError(status);
  const StopSignals signals;
  const std::atomic<int>* stop = &signals.received();
  status = planner.OpenFile();
  if (!status.ok()) return ReportError(status);
  if (status = planner.ReadMode(); !status.ok()) return ReportUsage(status);
  status = planner.Open();
  if (status.ok()) {
    status = planner.FindDevice(stop);
    // A profile that a flag names, and that is none.
    if (absl::IsNotFound(status) || absl::IsInvalidArgument(status)) return ReportUsage(status);
  }
  if (status.ok()) status = planner.Measure(stop);
  if (status.ok()) status = planner.Predict();
  if (absl::IsCancelled(status)) return signals.exit_code();
  if (status.ok() && outputs.has("--html")) {
    status = outputs.Write("--html", PlanPage(planner.report()));
  }
  if (!status.ok()) return ReportError(status);
  const std::string text = flags.json ? PlanJson(planner.report()) : PlanTable(planner.report());
  fwrite(text.data(), 1, text.size(), stdout);
  return kExitOk;
}

}  // namespace

void RegisterPlan(CLI::App& app, std::function<int()>* action) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* cmd = app.add_subcommand(
      "plan", "Foretell speed, flash traffic and memory of a model for budgets and a device");
  cmd->add_option("-m,--model", flags->model, "Model file")->required()->check(NotEmpty());
  cmd->add_option(
         "--mem-budget", flags->budgets,
         "Budgets with units, comma-separated: 512M,2G (default: six from the least to the "
         "one that holds everything)")
      ->check(NotEmpty());
  AddDeviceFlags(*cmd, &flags->device);
  cmd->add_option(
         "--profile", flags->trace,
         "Activations, of sluice profile or generate --record-activations (default: those of "
         "the runs that plan makes)")
      ->check(NotEmpty());
  cmd->add_option("-c,--ctx-size", flags->context, "Context in tokens, as in generate");
  cmd->add_option("-t,--threads", flags->threads, "Compute threads, as in generate");
  cmd->add_option("--mode", flags->mode, "auto, dense, exact, predicted")->capture_default_str();
  cmd->add_option("--direct", flags->direct, "Direct I/O in the runs: auto, on, off")
      ->capture_default_str();
  cmd->add_option("--prompt-tokens", flags->prompt_tokens, "Length of the prompt that TTFT is for")
      ->capture_default_str();
  cmd->add_option("--run-tokens", flags->run_tokens,
                  "Least number of tokens of each of the runs in which compute time is measured")
      ->capture_default_str();
  cmd->add_option("--html", flags->html, "Also write a page with curves")->check(NotEmpty());
  cmd->add_flag("--json", flags->json, "One JSON document on stdout instead of a table");
  cmd->callback([flags, action] { *action = [flags] { return RunPlan(*flags); }; });
}

}  // namespace sluice
