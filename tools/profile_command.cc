#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/clock.h"
#include "io/status.h"
#include "layout/sluice_file.h"
#include "predictor/activation_profile.h"
#include "runtime/decoder.h"
#include "runtime/profile_run.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tools/flags.h"
#include "tools/output_files.h"
#include "tools/profile_page.h"
#include "tools/profile_report.h"
#include "tools/run_flags.h"
#include "tools/stop_signals.h"
#include "tools/text_input.h"

namespace sluice {
namespace {

struct ProfileFlags {
  std::string model, out, html;
  std::vector<std::string> texts;
  std::optional<std::string> budget;
  std::optional<double> sparsify;
  int64_t max_tokens = -1, context = -1, threads = -1;
  int64_t max_mib = ActivationProfile::kDefaultSetBytes >> 20;
  bool json = false;
};

constexpr uint32_t kMostSequenceTokens = 512, kLeastSequenceTokens = 16;

// In the order of its methods; what one needs the one before has set.
class Profiler {
 public:
  explicit Profiler(const ProfileFlags& flags) : flags_(flags) {}

  absl::Status ReadFlags() {
    SLUICE_RETURN_IF_ERROR(InRange("--max-tokens", flags_.max_tokens, -1, INT32_MAX));
    SLUICE_RETURN_IF_ERROR(InRange("--max-mib", flags_.max_mib, 1, 2048));
    SLUICE_RETURN_IF_ERROR(InRange("-c", flags_.context, -1, 1 << 27));
    if (flags_.max_tokens == 0) {
      return absl::InvalidArgumentError("--max-tokens is 0; give at least 1, or -1 for all");
    }
    if (flags_.context == 1) {
      return absl::InvalidArgumentError("-c is 1; a sequence has at least 2 tokens");
    }
    if (flags_.sparsify && !(*flags_.sparsify > 0 && *flags_.sparsify < 1)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--sparsify is %g; it must be more than 0 and less than 1", *flags_.sparsify));
    }
    plan_.mode = DecodeMode::kDense;
    SLUICE_ASSIGN_OR_RETURN(plan_.n_threads, ChooseThreads(flags_.threads));
    if (!flags_.budget) return absl::OkStatus();
    const auto budget = ParseBytes(*flags_.budget);
    if (!budget.ok()) return Annotate(budget.status(), "--mem-budget");
    plan_.budget = *budget;
    return absl::OkStatus();
  }

  absl::Status Open() {
    SLUICE_ASSIGN_OR_RETURN(file_, SluiceFile::Open(flags_.model));
    SLUICE_RETURN_IF_ERROR(CheckSparsity());
    SLUICE_ASSIGN_OR_RETURN(auto data, file_->LoadTokenizer());
    SLUICE_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Create(std::move(data)));
    for (const std::string& path : flags_.texts) {
      SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
      SLUICE_RETURN_IF_ERROR(Encode(*tokenizer, path, text));
    }
    if (tokenizer->adds_bos()) request_.bos = tokenizer->bos();
    return ChooseLength();
  }

  absl::StatusOr<ActivationProfile> Run(const std::atomic<int>* stop) {
    SLUICE_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanRun(*file_, plan_));
    ProgressLine line("profile", "tokens");
    request_.texts = tokens_;
    request_.set_bytes = static_cast<uint64_t>(flags_.max_mib) << 20;
    request_.sparsify = flags_.sparsify;
    request_.stop = stop;
    request_.progress = [&](uint64_t done, uint64_t total) { line.Update(done, total); };
    ProfileRun run(*file_, request_);
    DecoderOptions options;
    options.observer = &run;
    SLUICE_ASSIGN_OR_RETURN(const auto decoder, Decoder::Create(*file_, plan, options));
    for (const std::string& note : decoder->Notes()) absl::FPrintF(stderr, "%s\n", note);
    absl::FPrintF(stderr,
                  "memory: %s planned; the profile takes up to %d MiB for sets, twice that while "
                  "it is written\n",
                  FormatBytes(plan.total), flags_.max_mib);
    const uint64_t begin_ns = NowNs();
    auto profile = run.Run(*decoder);
    if (profile.ok()) NoteRun(*profile, static_cast<double>(NowNs() - begin_ns) / 1e9);
    return profile;
  }

  ProfileReport Report(const ActivationProfile& profile, const std::string& out) const {
    ProfileReport report = DescribeProfile(profile, *file_);
    report.model = flags_.model;
    report.out = out;
    report.texts = flags_.texts;
    report.n_text_tokens = n_text_tokens_;
    return report;
  }

 private:
  absl::Status CheckSparsity() const {
    const std::string activation(ActivationName(file_->config().activation));
    if (!file_->sparse() && !flags_.sparsify) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s: is not naturally sparse: its activation, %s, gives no exact zeros; --sparsify 0.5 "
          "leaves out half of its neurons by a threshold in each layer, at some loss",
          flags_.model, activation));
    }
    if (file_->config().sparse() && flags_.sparsify) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: its activation, %s, gives exact zeros; leave --sparsify out",
                          flags_.model, activation));
    }
    return absl::OkStatus();
  }

  absl::Status Encode(const Tokenizer& tokenizer, const std::string& path,
                      const std::string& text) {
    EncodeOptions options;
    options.add_special = false;
    std::vector<int32_t> tokens = tokenizer.Encode(text, options);
    if (tokens.empty()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: the vocabulary of %s has no tokens for it", path, flags_.model));
    }
    n_text_tokens_ += tokens.size();
    if (flags_.max_tokens > 0) {
      const uint64_t left = static_cast<uint64_t>(flags_.max_tokens) - n_used_;
      tokens.resize(std::min<uint64_t>(tokens.size(), left));
    }
    n_used_ += tokens.size();
    tokens_.push_back(std::move(tokens));
    return absl::OkStatus();
  }

  // Where nothing is asked for, a short text is cut into pieces enough for one to be held out.
  absl::Status ChooseLength() {
    const ModelConfig& config = file_->config();
    if (flags_.context >= 0) {
      SLUICE_ASSIGN_OR_RETURN(plan_.context, ChooseContext(config, flags_.context));
    } else {
      const uint64_t wanted = n_used_ / kHeldOutEvery + (request_.bos ? 1 : 0);
      plan_.context =
          std::min(config.context_length, static_cast<uint32_t>(std::clamp<uint64_t>(
                                              wanted, kLeastSequenceTokens, kMostSequenceTokens)));
    }
    request_.sequence_tokens = std::max(plan_.context, 2u);
    plan_.context = request_.sequence_tokens;
    return absl::OkStatus();
  }

  void NoteRun(const ActivationProfile& profile, double seconds) const {
    const auto n = static_cast<double>(profile.tokens().size());
    absl::FPrintF(stderr, "%.0f tokens in %.1f s%s, %.1f tokens/s; the texts have %u\n", n, seconds,
                  flags_.sparsify ? ", run twice" : "", n / std::max(seconds, 1e-9),
                  n_text_tokens_);
    const uint32_t n_kept = profile.train().n_tokens() + profile.held_out().n_tokens();
    if (n_kept < profile.tokens().size()) {
      absl::FPrintF(stderr,
                    "sluice: the sets of the first %u tokens take %d MiB; later ones are only "
                    "counted (--max-mib)\n",
                    n_kept, flags_.max_mib);
    }
    if (profile.n_held_out_tokens() == 0) {
      absl::FPrintF(stderr,
                    "sluice: fewer than %u sequences: nothing is held out; give more text or a "
                    "smaller -c\n",
                    kHeldOutEvery);
    }
  }

  const ProfileFlags& flags_;
  PlanRequest plan_;
  ProfileRequest request_;
  std::unique_ptr<SluiceFile> file_;
  std::vector<std::vector<int32_t>> tokens_;  // by text
  uint64_t n_text_tokens_ = 0, n_used_ = 0;
};

int RunProfileCommand(const ProfileFlags& flags) {
  Profiler profiler(flags);
  absl::Status status = profiler.ReadFlags();
  if (!status.ok()) return ReportUsage(status);
  const std::string out = flags.out.empty() ? flags.model + ".profile" : flags.out;
  OutputFiles outputs;
  std::vector<NamedFile> inputs = {{"-m", flags.model}};
  for (const std::string& text : flags.texts) inputs.push_back({"--text", text});
  status = outputs.Open(inputs, {{"-o", out}, {"--html", flags.html}});
  if (absl::IsInvalidArgument(status)) return ReportUsage(status);
  if (!status.ok()) return ReportError(status);
  const StopSignals signals;
  status = profiler.Open();
  if (!status.ok()) return ReportError(status);
  const auto profile = profiler.Run(&signals.received());
  if (absl::IsCancelled(profile.status())) return ReportStopped(signals, out);
  if (!profile.ok()) return ReportError(profile.status());
  status = profile->SaveTo(outputs.file("-o"));
  const ProfileReport report = profiler.Report(*profile, out);
  if (status.ok() && outputs.has("--html")) status = outputs.Write("--html", ProfilePage(report));
  if (!status.ok()) return ReportError(status);
  const std::string text = flags.json ? ProfileJson(report) : ProfileTable(report);
  fwrite(text.data(), 1, text.size(), stdout);
  return kExitOk;
}

}  // namespace

void RegisterProfile(CLI::App& app, std::function<int()>* action) {
  auto flags = std::make_shared<ProfileFlags>();
  CLI::App* cmd =
      app.add_subcommand("profile", "Run a model over texts and record which neurons fire");
  cmd->add_option("-m,--model", flags->model, "Model file")->required()->check(NotEmpty());
  cmd->add_option("--text", flags->texts, "Text files, UTF-8; every tenth sequence is held out")
      ->required()
      ->check(NotEmpty());
  cmd->add_option("-o,--out", flags->out, "Profile to write (default: MODEL.profile)")
      ->check(NotEmpty());
  cmd->add_option("--max-tokens", flags->max_tokens,
                  "Use the first so many tokens of the texts; -1 (default): all");
  cmd->add_option(
      "-c,--ctx-size", flags->context,
      "Length of a sequence in tokens; 0: what the model was trained with; -1 (default): "
      "that, at most 512, and less for a short text");
  cmd->add_option("-t,--threads", flags->threads, "Compute threads, as in generate");
  cmd->add_option("--mem-budget", flags->budget, "DRAM for the model, as in generate")
      ->check(NotEmpty());
  cmd->add_option("--max-mib", flags->max_mib,
                  "Keep active sets of at most so many MiB; later tokens are only counted")
      ->capture_default_str();
  cmd->add_option("--sparsify", flags->sparsify,
                  "For models without exact zeros (SiLU): find thresholds that make this share of "
                  "the neurons inactive, such as 0.5");
  cmd->add_option("--html", flags->html, "Also write a page with curves")->check(NotEmpty());
  cmd->add_flag("--json", flags->json, "One JSON document on stdout instead of a table");
  cmd->callback([flags, action] { *action = [flags] { return RunProfileCommand(*flags); }; });
}

}  // namespace sluice
