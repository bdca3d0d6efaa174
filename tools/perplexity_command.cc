#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/sluice_file.h"
#include "predictor/activation_profile.h"
#include "runtime/perplexity.h"
#include "runtime/predictor_meter.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tools/device_flags.h"
#include "tools/flags.h"
#include "tools/perplexity_report.h"
#include "tools/prediction_flags.h"
#include "tools/run_flags.h"
#include "tools/stop_signals.h"
#include "tools/text_input.h"

namespace sluice {
namespace {

struct PerplexityFlags {
  std::string model, text, profile, mode = "auto", against;
  std::optional<std::string> budget;
  DeviceFlags device;
  PredictionFlags prediction;
  int64_t context = -1, windows = -1, threads = -1, chunk = 256;
  bool layers = false, json = false;
};

constexpr uint32_t kDefaultWindow = 512;
constexpr uint32_t kLogitRows = 32;  // the head is read once for so many tokens

// In the order of its methods; what one needs the one before has set.
class Scorer {
 public:
  explicit Scorer(const PerplexityFlags& flags) : flags_(flags) {}

  absl::Status ReadFlags() {
    SLUICE_RETURN_IF_ERROR(InRange("-c", flags_.context, -1, 1 << 27));
    if (flags_.context > 0) {
      SLUICE_RETURN_IF_ERROR(InRange("-c", flags_.context, kLeastWindow, 1 << 27));
    }
    SLUICE_RETURN_IF_ERROR(InRange("--chunks", flags_.windows, -1, INT32_MAX));
    if (flags_.windows == 0) {
      return absl::InvalidArgumentError("--chunks is 0; give at least 1, or -1 for all");
    }
    SLUICE_RETURN_IF_ERROR(InRange("-b", flags_.chunk, 1, 4096));
    if (flags_.text.empty() == flags_.profile.empty()) {
      return absl::InvalidArgumentError(
          "a text is needed: --file TEXT, or --held-out PROFILE for what a profile held out");
    }
    if (!flags_.profile.empty() && flags_.context >= 0) {
      return absl::InvalidArgumentError(
          "-c does not go with --held-out: a window is a sequence of the profile");
    }
    SLUICE_ASSIGN_OR_RETURN(request_.n_threads, ChooseThreads(flags_.threads));
    request_.chunk = static_cast<uint32_t>(flags_.chunk);
    request_.logit_rows = kLogitRows;
    if (!flags_.budget) return absl::OkStatus();
    const auto budget = ParseBytes(*flags_.budget);
    if (!budget.ok()) return Annotate(budget.status(), "--mem-budget");
    request_.budget = *budget;
    return absl::OkStatus();
  }

  absl::Status Open() {
    SLUICE_ASSIGN_OR_RETURN(file_, SluiceFile::Open(flags_.model));
    return absl::OkStatus();
  }

  absl::Status ChooseModes() {
    SLUICE_ASSIGN_OR_RETURN(const DecodeMode mode, ChooseMode("--mode", flags_.mode, *file_));
    modes_.push_back(mode);
    if (!flags_.against.empty()) {
      SLUICE_ASSIGN_OR_RETURN(const DecodeMode other,
                              ChooseMode("--against", flags_.against, *file_));
      if (other == mode && !flags_.prediction.heads) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "--against names the mode of the run itself, %s; give another", DecodeModeName(mode)));
      }
      modes_.push_back(other);
    }
    const bool predicts = std::count(modes_.begin(), modes_.end(), DecodeMode::kPredicted) > 0;
    SLUICE_RETURN_IF_ERROR(CheckPrediction(flags_.prediction, predicts));
    if (flags_.prediction.heads && mode != DecodeMode::kPredicted) {
      return absl::InvalidArgumentError(
          "--predict-heads is about the run of --mode, not that of --against; give --mode "
          "predicted");
    }
    if (flags_.layers && !predicts) {
      return absl::InvalidArgumentError(
          "--layers is about predictors; give --mode predicted and a model that has some");
    }
    return absl::OkStatus();
  }

  absl::Status ReadTokens() {
    SLUICE_RETURN_IF_ERROR(flags_.profile.empty() ? EncodeText() : TakeHeldOut());
    report_.model = flags_.model;
    report_.text = flags_.profile.empty() ? flags_.text : "the held-out text of " + flags_.profile;
    report_.text_tokens = tokens_.size();
    report_.window = request_.context;
    return absl::OkStatus();
  }

  // All plans, so that a budget that is too small for one is known before the other has run.
  absl::Status Plan() {
    for (const DecodeMode mode : modes_) {
      request_.mode = mode;
      // What a run is held against has all its heads.
      request_.predict_heads = flags_.prediction.heads && report_.runs.empty();
      SLUICE_ASSIGN_OR_RETURN(MemoryPlan plan, PlanRun(*file_, request_));
      request_.budget = plan.request.budget;
      report_.runs.push_back({std::move(plan), {}, {}, {}});
    }
    return absl::OkStatus();
  }

  absl::Status FindDevice(const std::atomic<int>* stop) {
    const MemoryPlan& plan = report_.runs.front().plan;
    const bool reads = plan.total < plan.everything;
    SLUICE_ASSIGN_OR_RETURN(device_,
                            ReadDevice(flags_.device, *file_, reads ? plan.total / 2 : 0, stop));
    if (!device_.note.empty()) absl::FPrintF(stderr, "device: %s\n", device_.note);
    return absl::OkStatus();
  }

  // Cancelled once *stop is not 0; what was scored until then is told on stderr.
  absl::Status Score(const std::atomic<int>* stop) {
    for (PerplexityRun& run : report_.runs) {
      DecoderOptions options;
      UseDevice(device_, &options);
      UsePrediction(flags_.prediction, &options);
      PredictorMeter meter(file_->config(), file_->thresholds());
      const bool measures = flags_.layers && run.plan.request.mode == DecodeMode::kPredicted;
      if (measures) options.observer = &meter;
      if (measures && run.plan.request.predicts_heads()) {
        SLUICE_ASSIGN_OR_RETURN(HeadNeeds needs,
                                HeadNeeds::Create(*file_, 0, file_->config().n_layers,
                                                  file_->head_predictor()->label_share));
        meter.MeasureHeads(std::move(needs));
      }
      SLUICE_ASSIGN_OR_RETURN(const auto decoder, Decoder::Create(*file_, run.plan, options));
      for (const std::string& note : decoder->Notes()) absl::FPrintF(stderr, "%s\n", note);
      ScoreRequest request;
      request.tokens = tokens_;
      request.window = request_.context;
      if (flags_.windows > 0) request.max_windows = static_cast<uint32_t>(flags_.windows);
      request.bos = bos_;
      request.stop = stop;
      SLUICE_ASSIGN_OR_RETURN(run.scores, ScoreText(*decoder, request, ShowProgress));
      if (terminal()) absl::FPrintF(stderr, "\r\033[K");
      const std::string change = decoder->ModeChangeNote();
      if (!change.empty()) absl::FPrintF(stderr, "sluice: %s\n", change);
      if (run.scores.stopped) return Stopped(run);
      if (measures) run.layers.assign(meter.layers().begin(), meter.layers().end());
      run.head_layers.assign(meter.head_layers().begin(), meter.head_layers().end());
    }
    return absl::OkStatus();
  }

  const PerplexityReport& report() const { return report_; }

 private:
  absl::Status EncodeText() {
    SLUICE_ASSIGN_OR_RETURN(const uint32_t context, ChooseContext(file_->config(), flags_.context));
    request_.context = flags_.context < 0 ? std::min(context, kDefaultWindow) : context;
    SLUICE_ASSIGN_OR_RETURN(auto data, file_->LoadTokenizer());
    auto tokenizer = Tokenizer::Create(std::move(data));
    if (!tokenizer.ok()) return Annotate(tokenizer.status(), flags_.model);
    request_.tokenizer_bytes = (*tokenizer)->memory_bytes();
    SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadText(flags_.text));
    tokens_ = (*tokenizer)->Encode(text);
    if (tokens_.size() < request_.context) return TooShort();
    if ((*tokenizer)->adds_bos()) bos_ = (*tokenizer)->bos();
    return absl::OkStatus();
  }

  // Each sequence is a window and has its BOS already. One cut short by the end of a text is left
  // out, since windows are of one length.
  absl::Status TakeHeldOut() {
    SLUICE_ASSIGN_OR_RETURN(const auto profile, ActivationProfile::Load(flags_.profile));
    SLUICE_RETURN_IF_ERROR(profile.CheckModel(*file_, flags_.profile));
    for (const ProfileSequence& s : profile.sequences()) {
      if (s.held_out) request_.context = std::max(request_.context, s.n_tokens);
    }
    if (request_.context < kLeastWindow) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s: holds out no sequence of at least %u tokens; profile more text, or give a text "
          "with -f",
          flags_.profile, kLeastWindow));
    }
    for (const ProfileSequence& s : profile.sequences()) {
      if (!s.held_out || s.n_tokens < request_.context) continue;
      const auto tokens = profile.tokens().subspan(s.begin, s.n_tokens);
      tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    }
    return absl::OkStatus();
  }

  static bool terminal() { return isatty(STDERR_FILENO) == 1; }

  static void ShowProgress(const TextScores& so_far, uint32_t n_windows) {
    if (!terminal()) return;
    const double seconds = static_cast<double>(so_far.wall_ns) / 1e9 / so_far.n_windows;
    absl::FPrintF(stderr, "\r\033[Kwindow %u of %u: perplexity %s, %.0f s left", so_far.n_windows,
                  n_windows, PerplexityText(so_far), seconds * (n_windows - so_far.n_windows));
  }

  absl::Status TooShort() const {
    const std::string hint =
        tokens_.size() < kLeastWindow ? "" : absl::StrFormat(", or -c %u or less", tokens_.size());
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: has %u tokens, fewer than one window of %u; give a longer text%s",
                        flags_.text, tokens_.size(), request_.context, hint));
  }

  static absl::Status Stopped(const PerplexityRun& run) {
    const char* mode = DecodeModeName(run.plan.request.mode);
    if (run.scores.n_windows == 0) {
      absl::FPrintF(stderr, "%s: stopped before the first window was scored\n", mode);
    } else {
      absl::FPrintF(stderr, "%s: stopped after %u windows: perplexity %s\n", mode,
                    run.scores.n_windows, PerplexityText(run.scores));
    }
    return absl::CancelledError("interrupted");
  }

  const PerplexityFlags& flags_;
  std::vector<DecodeMode> modes_;
  PlanRequest request_;
  std::unique_ptr<SluiceFile> file_;
  std::vector<int32_t> tokens_;
  int32_t bos_ = -1;
  Device device_;
  PerplexityReport report_;
};

int RunPerplexity(const PerplexityFlags& flags) {
  Scorer scorer(flags);
  absl::Status status = scorer.ReadFlags();
  if (!status.ok()) return ReportUsage(status);
  const StopSignals signals;
  status = scorer.Open();
  if (!status.ok()) return ReportError(status);
  status = scorer.ChooseModes();
  if (!status.ok()) return ReportUsage(status);
  status = scorer.ReadTokens();
  if (status.ok()) status = scorer.Plan();
  if (!status.ok()) return ReportError(status);
  status = scorer.FindDevice(&signals.received());
  if (absl::IsCancelled(status)) return signals.exit_code();
  if (!status.ok()) return ReportUsage(status);
  status = scorer.Score(&signals.received());
  if (absl::IsCancelled(status)) return signals.exit_code();
  if (!status.ok()) return ReportError(status);
  const PerplexityReport& report = scorer.report();
  const std::string text = flags.json ? PerplexityJson(report) : PerplexityTable(report);
  fwrite(text.data(), 1, text.size(), stdout);
  return kExitOk;
}

}  // namespace

void RegisterPerplexity(CLI::App& app, std::function<int()>* action) {
  auto flags = std::make_shared<PerplexityFlags>();
  CLI::App* cmd = app.add_subcommand("perplexity", "Measure how well a model foretells a text");
  cmd->add_option("-m,--model", flags->model, "Model file")->required()->check(NotEmpty());
  cmd->add_option("-f,--file", flags->text,
                  "Text file, UTF-8, at most 64 MiB; it and its tokens take memory beyond the "
                  "budget")
      ->check(NotEmpty());
  cmd->add_option("--held-out", flags->profile,
                  "Instead of -f: the sequences that this profile of the model, of sluice profile, "
                  "held out")
      ->check(NotEmpty());
  cmd->add_option("-c,--ctx-size", flags->context,
                  "Tokens of a window, of which the second half is scored; 0: what the model was "
                  "trained with; -1 (default): that, at most 512");
  cmd->add_option("--chunks", flags->windows, "Windows to score, at most; -1 (default): all");
  cmd->add_option("--mode", flags->mode, "auto, dense, exact, predicted")->capture_default_str();
  AddPredictionFlags(*cmd, &flags->prediction);
  cmd->add_option("--against", flags->against,
                  "Mode to run the text in as well, and to hold the first run against token by "
                  "token; with all heads, whatever --predict-heads says")
      ->check(NotEmpty());
  cmd->add_option("-t,--threads", flags->threads, "Compute threads, as in generate");
  cmd->add_option("-b,--batch-size", flags->chunk,
                  "Tokens that pass through a layer together, at most; 1: as in decoding")
      ->capture_default_str();
  cmd->add_option("--mem-budget", flags->budget, "DRAM, as in generate")->check(NotEmpty());
  AddDeviceFlags(*cmd, &flags->device);
  cmd->add_flag("--layers", flags->layers,
                "Also recall, precision and density of each layer's predictors; computes all gates "
                "and heads, so that the speed is not that of the mode");
  cmd->add_flag("--json", flags->json, "One JSON document on stdout instead of text");
  cmd->callback([flags, action] { *action = [flags] { return RunPerplexity(*flags); }; });
}

}  // namespace sluice
