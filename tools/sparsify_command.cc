// One command from a model and text to a sparse `.sluice` file. It runs the commands that do the
// steps, as a user would, so that each says the same and leaves the same.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "io/device_profile.h"
#include "io/status.h"
#include "layout/model_source.h"
#include "layout/sluice_file.h"
#include "tools/flags.h"
#include "tools/text_input.h"

namespace sluice {
namespace {

struct SparsifyFlags {
  std::string in, out, sparsity, input, budget, max_tokens, device;
  std::vector<std::string> texts, repack;
  int64_t threads = -1, seed = 0;
  bool heads = false, force = false, resume = false;
};

using Step = std::vector<std::string>;

constexpr char kJudgedWindows[] = "40";  // enough for an interval of about one per cent

int RunStep(const Step& step) {
  absl::FPrintF(stderr, "== sluice %s\n", absl::StrJoin(step, " "));
  CLI::App app;
  app.require_subcommand(1);
  std::function<int()> action;
  RegisterRepack(app, &action);
  RegisterProfile(app, &action);
  RegisterTrain(app, &action);
  RegisterPerplexity(app, &action);
  try {
    Step from_the_back(step.rbegin(), step.rend());
    app.parse(from_the_back);
  } catch (const CLI::ParseError& e) {
    return ReportUsage(absl::InvalidArgumentError(e.what()));
  }
  return action();
}

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

void AddCommon(const SparsifyFlags& flags, Step* step) {
  step->insert(step->end(), {"-t", absl::StrCat(flags.threads)});
  if (!flags.budget.empty()) step->insert(step->end(), {"--mem-budget", flags.budget});
}

// Predictors of neurons and, with --heads, of heads: `between` is the model that has only the
// first.
std::vector<Step> TrainSteps(const SparsifyFlags& flags, const std::string& model,
                             const std::string& profile, const std::string& between) {
  const auto train = [&](const std::string& in, const std::string& out) {
    Step step = {
        "train", "-m", in, "--profile", profile, "-o", out, "--seed", absl::StrCat(flags.seed)};
    if (!flags.input.empty()) step.insert(step.end(), {"--input", flags.input});
    if (flags.force || out == between) step.emplace_back("--force");
    if (flags.resume) step.emplace_back("--resume");
    AddCommon(flags, &step);
    return step;
  };
  Step neurons = train(model, flags.heads ? between : flags.out);
  if (!flags.device.empty()) neurons.insert(neurons.end(), {"--device", flags.device});
  if (!flags.heads) return {neurons};
  std::vector<Step> steps;
  if (!(flags.resume && Exists(between))) steps.push_back(neurons);
  steps.push_back(train(between, flags.out));
  steps.back().emplace_back("--heads");
  return steps;
}

// What the model loses by what was left out, on the text that nothing was learned from. A model
// without exact zeros loses by thresholds already, which exact mode uses.
std::vector<Step> JudgeSteps(const SparsifyFlags& flags, const std::string& profile) {
  std::vector<Step> steps;
  const auto judge = [&](const std::string& mode) {
    Step step = {"perplexity", "-m",    flags.out,  "--held-out",   profile,    "--mode", mode,
                 "--against",  "dense", "--chunks", kJudgedWindows, "--device", "none"};
    AddCommon(flags, &step);
    steps.push_back(std::move(step));
  };
  if (!flags.sparsity.empty()) judge("exact");
  judge("predicted");
  return steps;
}

// Looked at before hours of work. A model that cannot be opened is left to repack, which says why.
absl::Status CheckInputs(const SparsifyFlags& flags, const SluiceFile* packed) {
  if (Exists(flags.out) && !flags.force) {
    return absl::AlreadyExistsError(absl::StrCat(flags.out, ": exists; --force overwrites it"));
  }
  for (const std::string& text : flags.texts) SLUICE_RETURN_IF_ERROR(ReadText(text).status());
  if (!flags.device.empty()) {
    SLUICE_RETURN_IF_ERROR(DeviceProfile::Load(flags.device).status());
  }
  if (!flags.sparsity.empty()) return absl::OkStatus();
  const auto sparse = [&]() -> absl::StatusOr<bool> {
    if (packed != nullptr) return packed->sparse();
    if (std::ranges::count(flags.repack, "--activation") > 0) return true;
    SLUICE_ASSIGN_OR_RETURN(const auto source, OpenModelSource(flags.in, {}));
    return source->config().sparse();
  }();
  if (sparse.value_or(true)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(flags.in,
                   ": is not naturally sparse: its activation gives no exact zeros; --sparsify 0.5 "
                   "leaves out half of its neurons by a threshold in each layer, at some loss"));
}

int RunSparsify(const SparsifyFlags& flags) {
  const auto in = SluiceFile::Open(flags.in);
  const bool packed = in.ok();
  const absl::Status inputs = CheckInputs(flags, packed ? in->get() : nullptr);
  if (!inputs.ok()) return ReportError(inputs);
  const std::string model = packed ? flags.in : flags.out + ".dense";
  const std::string profile = flags.out + ".profile", between = flags.out + ".neurons";
  std::vector<Step> steps;
  if (!packed && !(flags.resume && Exists(model))) {
    Step step = {"repack", flags.in, model, "--force"};
    step.insert(step.end(), flags.repack.begin(), flags.repack.end());
    steps.push_back(step);
  }
  if (!(flags.resume && Exists(profile))) {
    Step step = {"profile", "-m", model, "-o", profile, "--text"};
    step.insert(step.end(), flags.texts.begin(), flags.texts.end());
    if (!flags.sparsity.empty()) step.insert(step.end(), {"--sparsify", flags.sparsity});
    if (!flags.max_tokens.empty()) step.insert(step.end(), {"--max-tokens", flags.max_tokens});
    AddCommon(flags, &step);
    steps.push_back(step);
  }
  for (Step& step : TrainSteps(flags, model, profile, between)) steps.push_back(std::move(step));
  for (Step& step : JudgeSteps(flags, profile)) steps.push_back(std::move(step));
  for (const Step& step : steps) {
    if (const int code = RunStep(step); code != kExitOk) return code;
  }
  std::error_code ignored;
  if (!packed) std::filesystem::remove(model, ignored);
  if (flags.heads) std::filesystem::remove(between, ignored);
  absl::FPrintF(stderr, "%s is done; its profile is %s\n", flags.out, profile);
  return kExitOk;
}

}  // namespace

void RegisterSparsify(CLI::App& app, std::function<int()>* action) {
  auto flags = std::make_shared<SparsifyFlags>();
  CLI::App* cmd = app.add_subcommand("sparsify",
                                     "From a model and text to a sparse .sluice file: repack, "
                                     "profile, order, plan and train; then "
                                     "what it loses, in perplexity on the held-out text");
  cmd->add_option("IN", flags->in, "GGUF file, Hugging Face folder or .sluice file")
      ->required()
      ->check(NotEmpty());
  cmd->add_option("OUT", flags->out,
                  "The .sluice file to write; OUT.profile is kept beside it, OUT.dense and "
                  "OUT.neurons until the end")
      ->required()
      ->check(NotEmpty());
  cmd->add_option("--text", flags->texts, "Text files to learn from")->required();
  cmd->add_option("--max-tokens", flags->max_tokens, "Tokens of the texts, as in profile")
      ->check(NotEmpty());
  cmd->add_option("--sparsify", flags->sparsity,
                  "Share of neurons to leave out of a model without exact zeros, as in profile")
      ->check(NotEmpty());
  cmd->add_option("--input", flags->input, "What predictors look at, as in train")
      ->check(NotEmpty());
  cmd->add_flag("--heads", flags->heads,
                "Predictors of attention heads too, for --predict-heads; as in train");
  cmd->add_option("--device", flags->device, "Device that the model is placed for, as in train")
      ->check(NotEmpty());
  cmd->add_option("--mem-budget", flags->budget, "DRAM for the model while it runs")
      ->check(NotEmpty());
  cmd->add_option("-t,--threads", flags->threads, "Threads; they do not change the result");
  cmd->add_option("--seed", flags->seed, "Seed of the training")->capture_default_str();
  cmd->add_option("--repack-flags", flags->repack, "Further flags of repack, as --type q4");
  cmd->add_flag("--resume", flags->resume, "Take what an interrupted run has left");
  cmd->add_flag("--force", flags->force, "Overwrite OUT");
  cmd->callback([flags, action] { *action = [flags] { return RunSparsify(*flags); }; });
}

}  // namespace sluice
