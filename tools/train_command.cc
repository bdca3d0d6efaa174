#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/atomic_file.h"
#include "io/clock.h"
#include "io/status.h"
#include "layout/relayout.h"
#include "predictor/activation_profile.h"
#include "runtime/memory_plan.h"
#include "runtime/predictor_training.h"
#include "tools/flags.h"
#include "tools/profile_order.h"
#include "tools/run_flags.h"
#include "tools/stop_signals.h"
#include "tools/train_report.h"

namespace sluice {
namespace {

struct TrainFlags {
  std::string model, profile, out, input = "residual", memory = "1G", device;
  std::optional<std::string> budget;
  double recall = 0.95, head_share = 0.95;
  std::optional<double> density_ratio, share;
  int64_t seed = 0, epochs = 10, samples = 200'000, threads = -1;
  bool heads = false, resume = false, force = false, json = false;

  // Most heads are needed: with twice as many every predictor would do.
  double density() const { return density_ratio.value_or(heads ? 1.25 : 2.0); }
  // Of the model's bytes, for all predictors. Heads are few: much smaller ones will do.
  double size() const { return share.value_or(heads ? 0.02 : 0.1); }
};

absl::StatusOr<PredictorInput> ParseInput(const std::string& text) {
  if (text == "normed") return PredictorInput::kNormed;
  if (text == "residual") return PredictorInput::kResidual;
  if (text == "previous") return PredictorInput::kPrevious;
  return absl::InvalidArgumentError(
      absl::StrFormat("--input is \"%s\"; known are normed, residual, previous", text));
}

// "a/model.sluice" gives "a/model.predicted.sluice".
std::string DefaultOut(const std::string& model) {
  const std::string extension = ".sluice";
  const bool has_it = model.ends_with(extension);
  return model.substr(0, model.size() - (has_it ? extension.size() : 0)) + ".predicted" + extension;
}

absl::Status ReadFlags(TrainFlags& flags, PredictorTraining* training) {
  SLUICE_ASSIGN_OR_RETURN(training->sampler.input, ParseInput(flags.input));
  SLUICE_ASSIGN_OR_RETURN(training->sampler.n_threads, ChooseThreads(flags.threads));
  const auto memory = ParseBytes(flags.memory);
  if (!memory.ok()) return Annotate(memory.status(), "--sample-memory");
  training->sampler.max_bytes = *memory;
  if (flags.budget) {
    const auto budget = ParseBytes(*flags.budget);
    if (!budget.ok()) return Annotate(budget.status(), "--mem-budget");
    training->sampler.budget = *budget;
  }
  SLUICE_RETURN_IF_ERROR(InRange("--samples", flags.samples, 1, int64_t{1} << 32));
  SLUICE_RETURN_IF_ERROR(InRange("--epochs", flags.epochs, 1, 1000));
  SLUICE_RETURN_IF_ERROR(InRange("--seed", flags.seed, 0, INT64_MAX));
  if (!(flags.recall > 0 && flags.recall <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--recall is %g; it must be above 0 and at most 1", flags.recall));
  }
  if (!(flags.density() >= 1)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--density is %g; it must be at least 1", flags.density()));
  }
  if (!(flags.size() > 0 && flags.size() <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--size is %g; it must be above 0 and at most 1", flags.size()));
  }
  if (flags.heads && !flags.device.empty()) {
    return absl::InvalidArgumentError(
        "--device is for placement plans of neurons, which --heads leaves as they are");
  }
  if (!(flags.head_share > 0 && flags.head_share <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--head-share is %g; it must be above 0 and at most 1", flags.head_share));
  }
  training->sampler.head_share = flags.heads ? flags.head_share : 0;
  training->sampler.max_samples = static_cast<size_t>(flags.samples);
  training->trainer.recall = flags.recall;
  training->trainer.density_ratio = flags.density();
  training->trainer.epochs = static_cast<uint32_t>(flags.epochs);
  training->trainer.seed = static_cast<uint64_t>(flags.seed);
  training->share = flags.size();
  if (flags.out.empty()) flags.out = DefaultOut(flags.model);
  training->checkpoints = flags.out + ".train";
  training->resume = flags.resume;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SampleText>> TextOf(const ActivationProfile& profile,
                                               const SluiceFile& file, const TrainFlags& flags) {
  SLUICE_RETURN_IF_ERROR(profile.CheckModel(file, flags.profile));
  if (flags.heads && file.predictor() == nullptr) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: has no predictors of neurons, beside which those of heads are used; make them first, "
        "with sluice train without --heads",
        file.path()));
  }
  if (!flags.heads && !file.config().sparse() && profile.thresholds().empty()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: activation %s gives no exact zeros, so there is nothing to predict; profile it with "
        "--sparsify",
        file.path(), ActivationName(file.config().activation)));
  }
  std::vector<SampleText> text;
  for (const ProfileSequence& s : profile.sequences()) {
    if (s.n_tokens == 0) continue;
    text.push_back({profile.tokens().subspan(s.begin, s.n_tokens), s.held_out});
  }
  return text;
}

// The model with its predictors: of neurons, and with its neurons in the order of the profile; or
// of heads, and with all else as it was.
absl::Status WriteOut(const SluiceFile& file, const ActivationProfile& profile,
                      const TrainFlags& flags, const PredictorTraining& training,
                      const std::vector<PredictorCheckpoint>& layers, const StopSignals& signals) {
  std::vector<PredictorWeights> weights;
  RelayoutOptions options;
  PredictorRecord record;
  record.input = training.sampler.input;
  for (const PredictorCheckpoint& l : layers) {
    weights.push_back({l.predictor.rank, l.predictor.fc1, l.predictor.fc2});
    record.thresholds.push_back(l.predictor.threshold);
  }
  options.thresholds = profile.thresholds();
  options.overwrite = flags.force;
  ProfileOrder order;
  if (flags.heads) {
    options.head_predictors = weights;
    options.head_predictor_record = {record, static_cast<float>(flags.head_share)};
  } else {
    options.predictors = weights;
    options.predictor_record = record;
    SLUICE_ASSIGN_OR_RETURN(const PlacementCosts costs, PlacementCostsFor(file, flags.device));
    SLUICE_ASSIGN_OR_RETURN(
        order, OrderByProfile(profile, costs, training.sampler.n_threads,
                              [&](uint32_t, uint32_t) { return signals.received() == 0; }));
    absl::FPrintF(stderr, "order: %s\n", OrderNote(order));
    options.order = order.order;
    options.activity = &order.activity;
  }
  ProgressLine line("write");
  options.progress = [&](uint64_t done, uint64_t total) {
    line.Update(done, total);
    return signals.received() == 0;
  };
  return Relayout(file, flags.out, options).status();
}

// What is going on, on a terminal only: how long it will take is not known before the ranks are.
class StatusLine {
 public:
  void Show(const std::string& text) const {
    if (terminal_) absl::FPrintF(stderr, "\r\033[Ktrain: %s", text);
  }
  void Clear() const {
    if (terminal_) absl::FPrintF(stderr, "\r\033[K");
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
};

class Train {
 public:
  explicit Train(TrainFlags& flags) : flags_(flags) {}

  absl::Status ReadFlags() { return sluice::ReadFlags(flags_, &training_); }

  absl::Status Run(const StopSignals& signals) {
    const uint64_t begin_ns = NowNs();
    SLUICE_ASSIGN_OR_RETURN(const auto file, SluiceFile::Open(flags_.model));
    SLUICE_ASSIGN_OR_RETURN(const auto profile, ActivationProfile::Load(flags_.profile));
    SLUICE_ASSIGN_OR_RETURN(const auto text, TextOf(profile, *file, flags_));
    if (SameFile(flags_.model, flags_.out)) {
      return absl::InvalidArgumentError(flags_.out + ": is the model that is read; name another");
    }
    {  // What makes writing impossible is said before hours of training.
      SLUICE_RETURN_IF_ERROR(PlacementCostsFor(*file, flags_.device).status());
      const auto size = static_cast<double>(file->file_size()) * (1 + flags_.size());
      SLUICE_RETURN_IF_ERROR(
          AtomicFile::Create(flags_.out, {.overwrite = flags_.force,
                                          .expected_bytes = static_cast<uint64_t>(size)})
              .status());
    }
    if (!flags_.resume && !flags_.force &&
        HasCheckpoints(training_.checkpoints, file->config().n_layers)) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s: has layers of a training that was interrupted; --resume goes on with it, --force "
          "begins anew",
          training_.checkpoints));
    }
    if (!flags_.heads) {
      training_.sampler.thresholds.assign(profile.thresholds().begin(), profile.thresholds().end());
    }
    training_.sampler.stop = &signals.received();
    training_.sampler.progress = [&](size_t done, size_t n_tokens) {
      status_.Show(absl::StrFormat("running the text, token %u of %u", done, n_tokens));
    };
    training_.progress = [&](uint32_t layer, const TrainProgress& p) {
      status_.Show(absl::StrFormat("layer %u of %u, rank %u, epoch %u of %u: %.2f %% predicted",
                                   layer, file->config().n_layers, p.rank, p.epoch, p.epochs,
                                   100 * p.density));
    };
    training_.finished = [&](const PredictorCheckpoint& layer, bool from_before) {
      status_.Clear();
      absl::FPrintF(stderr, "train: %s%s\n", LayerLine(layer),
                    from_before ? " (of the run before)" : "");
      ++n_finished_;
    };
    auto layers = TrainPredictors(*file, text, training_);
    status_.Clear();
    if (!layers.ok()) return layers.status();
    report_.layers = *std::move(layers);
    SLUICE_RETURN_IF_ERROR(WriteOut(*file, profile, flags_, training_, report_.layers, signals));
    RemoveCheckpoints(training_.checkpoints, file->config().n_layers);
    report_.out = flags_.out;
    report_.input = flags_.input;
    report_.d_model = file->config().d_model;
    report_.n_outputs = PredictorSampler::NumOutputs(*file, training_.sampler);
    report_.what = flags_.heads ? "heads" : "neurons";
    report_.model_bytes = file->file_size();
    report_.recall = flags_.recall;
    report_.density_ratio = flags_.density();
    report_.share = flags_.size();
    report_.seconds = static_cast<double>(NowNs() - begin_ns) / 1e9;
    return absl::OkStatus();
  }

  // Where a run that did not come to its end left what it had.
  void SayHowToGoOn() const {
    if (n_finished_ == 0) return;
    absl::FPrintF(stderr,
                  "sluice: %d finished layers are kept in %s; the same command with --resume goes "
                  "on from there\n",
                  n_finished_, training_.checkpoints);
  }
  const TrainReport& report() const { return report_; }

 private:
  TrainFlags& flags_;
  PredictorTraining training_;
  StatusLine status_;
  int n_finished_ = 0;
  TrainReport report_;
};

int RunTrain(TrainFlags flags) {
  Train train(flags);
  absl::Status status = train.ReadFlags();
  if (!status.ok()) return ReportUsage(status);
  const StopSignals signals;
  status = train.Run(signals);
  if (!status.ok()) {
    const bool stopped = absl::IsCancelled(status);
    const int exit_code = stopped ? ReportStopped(signals, flags.out) : ReportError(status);
    train.SayHowToGoOn();
    return exit_code;
  }
  const std::string text = flags.json ? TrainJson(train.report()) : TrainTable(train.report());
  fwrite(text.data(), 1, text.size(), stdout);
  return kExitOk;
}

}  // namespace

void RegisterTrain(CLI::App& app, std::function<int()>* action) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* cmd = app.add_subcommand(
      "train",
      "Train predictors of active neurons on a profile's text; write a model with them, and with "
      "its neurons in the order of the profile. With --heads: predictors of attention heads, for a "
      "model that has those of neurons");
  cmd->add_option("-m,--model", flags->model, "Model file")->required()->check(NotEmpty());
  cmd->add_option("--profile", flags->profile, "Profile of this model, of sluice profile")
      ->required()
      ->check(NotEmpty());
  cmd->add_option("-o,--out", flags->out, "File to write (default: MODEL.predicted.sluice)")
      ->check(NotEmpty());
  cmd->add_option("--input", flags->input,
                  "What predictors look at: normed (the FFN's input), residual (before its norm), "
                  "previous (that of the layer before: reads can begin a layer ahead)")
      ->capture_default_str();
  CLI::Option* const heads = cmd->add_flag(
      "--heads", flags->heads,
      "Train predictors of the attention heads that a token needs; --input is then of the "
      "attention, and for neurons below read heads");
  cmd->add_option("--head-share", flags->head_share,
                  "With --heads: a token needs the fewest heads that make up this share of the sum "
                  "of all heads' squared norms, of what each adds to the residual")
      ->capture_default_str()
      ->needs(heads);
  cmd->add_option("--recall", flags->recall, "Share of the active neurons to find")
      ->capture_default_str();
  cmd->add_option(
      "--density", flags->density_ratio,
      "How many neurons may be predicted for an active one, if the size allows (default: 2, of "
      "heads 1.25)");
  cmd->add_option(
      "--size", flags->share,
      "Size of all predictors, at most, as share of the model (default: 0.1, of heads 0.02)");
  cmd->add_option("--samples", flags->samples, "Tokens to train and judge on, at most")
      ->capture_default_str();
  cmd->add_option("--epochs", flags->epochs, "Times that a rank sees all samples, at most")
      ->capture_default_str();
  cmd->add_option("--sample-memory", flags->memory,
                  "Memory for samples, with unit; the text is run again for layers that do not fit")
      ->capture_default_str();
  cmd->add_option("--mem-budget", flags->budget, "DRAM for the model that is run, as in generate");
  cmd->add_option("--device", flags->device,
                  "Device profile (of iobench --profile) whose costs say what is worth a place in "
                  "DRAM (default: a UFS 4.0 phone)")
      ->check(NotEmpty());
  cmd->add_option("--seed", flags->seed, "Seed of the random numbers")->capture_default_str();
  cmd->add_option("-t,--threads", flags->threads, "Threads; they do not change the result");
  cmd->add_flag("--resume", flags->resume, "Go on with a training that was interrupted");
  cmd->add_flag("--force", flags->force, "Overwrite OUT, and drop a training that was interrupted");
  cmd->add_flag("--json", flags->json, "One JSON document on stdout instead of a table");
  cmd->callback([flags, action] { *action = [flags] { return RunTrain(*flags); }; });
}

}  // namespace sluice
