// One command from a model and text to a sparse `.sluice` file. It runs the commands that do the
// steps, as a user would, so that each says the same and leaves the same.
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
#include "layout/sluice_file.h"
#include "tools/flags.h"

namespace sluice {
namespace {

struct SparsifyFlags {
  std::string in, out, sparsity, input, budget, max_tokens;
  std::vector<std::string> texts, repack;
  int64_t threads = -1, seed = 0;
  bool heads = false, force = false, resume = false;
};

using Step = std::vector<std::string>;

int RunStep(const Step& step) {
  absl::FPrintF(stderr, "== sluice %s\n", absl::StrJoin(step, " "));
  CLI::App app;
  app.require_subcommand(1);
  std::function<int()> action;
  RegisterRepack(app, &action);
  RegisterProfile(app, &action);
  RegisterTrain(app, &action);
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
  if (!flags.heads) return {train(model, flags.out)};
  std::vector<Step> steps;
  if (!(flags.resume && Exists(between))) steps.push_back(train(model, between));
  steps.push_back(train(between, flags.out));
  steps.back().emplace_back("--heads");
  return steps;
}

int RunSparsify(const SparsifyFlags& flags) {
  // Looked at before hours of work; what is there is a `.sluice` file, or else repack says what
  // not.
  if (Exists(flags.out) && !flags.force) {
    return ReportError(
        absl::AlreadyExistsError(absl::StrCat(flags.out, ": exists; --force overwrites it")));
  }
  const bool packed = SluiceFile::Open(flags.in).ok();
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
  CLI::App* cmd = app.add_subcommand(
      "sparsify",
      "From a model and text to a sparse .sluice file: repack, profile, order, plan and train");
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
