#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/synth.h"
#include "layout/synth_measure.h"
#include "layout/synth_plan.h"
#include "runtime/memory_plan.h"
#include "tools/flags.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

struct SynthFlags {
  std::string preset, type = "q4_0", out;
  SynthOptions options;
  std::optional<uint32_t> measure;
  uint32_t threads = 2;
  bool force = false, no_progress = false;
};

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Enough tokens for steady figures, few enough to take about half a minute.
uint32_t DefaultMeasuredTokens(const SynthShape& shape) {
  if (shape.d_model <= 1024) return 256;
  return shape.d_model <= 2048 ? 96 : 32;
}

void PrintMeasurement(const SynthPlan& plan, const SynthMeasurement& m) {
  const SynthOptions& o = plan.options();
  absl::FPrintF(stderr, "measured on %d greedy tokens after %d others (generated model)\n",
                m.n_tokens, m.n_warm_up);
  absl::FPrintF(stderr, "  active neurons            %.1f %% (layers %.1f .. %.1f), asked %.1f\n",
                100 * m.active_mean, 100 * m.active_min, 100 * m.active_max, 100 * o.active);
  absl::FPrintF(stderr, "  80 %% of firings come from %.1f %% of the neurons\n",
                100 * m.neurons_for_80_percent);
  absl::FPrintF(stderr, "  also active a token ago   %.1f %%; of the cold %.1f, asked %.1f\n",
                100 * m.overlap, 100 * m.cold_overlap, 100 * plan.persistence());
  if (plan.n_groups() > 0) {
    absl::FPrintF(stderr,
                  "  a cold neuron is active   %.1f %% if one of its group is, %.1f %% if one of "
                  "another is (%d groups)\n",
                  100 * m.coactivation_within, 100 * m.coactivation_across, plan.n_groups());
  }
  absl::FPrintF(stderr,
                "  greedy text               as planted; the closest choice leads by %.2f\n",
                m.least_margin);
}

absl::StatusOr<SynthPlan> ReadFlags(const SynthFlags& flags) {
  SynthOptions options = flags.options;
  SLUICE_ASSIGN_OR_RETURN(options.shape, FindSynthPreset(flags.preset));
  SLUICE_ASSIGN_OR_RETURN(options.type, ParseSynthType(flags.type));
  if (flags.measure.value_or(0) > kMaxMeasuredTokens) {
    return absl::InvalidArgumentError(absl::StrFormat("--measure is %u; it must be at most %u",
                                                      *flags.measure, kMaxMeasuredTokens));
  }
  return SynthPlan::Make(options);
}

int RunSynth(const SynthFlags& flags) {
  const auto plan = ReadFlags(flags);
  if (!plan.ok()) return ReportUsage(plan.status());
  const SynthShape& shape = plan->options().shape;
  const Clock::time_point writing = Clock::now();
  absl::StatusOr<uint64_t> bytes;
  {
    const StopSignals signals;
    ProgressLine line("synth");
    SynthWriteOptions options;
    options.overwrite = flags.force;
    options.n_threads = flags.threads;
    options.progress = [&](uint64_t done, uint64_t total) {
      if (!flags.no_progress) line.Update(done, total);
      return signals.received() == 0;
    };
    bytes = WriteSynthModel(*plan, flags.out, options);
    if (absl::IsCancelled(bytes.status())) return ReportStopped(signals, flags.out);
  }
  if (!bytes.ok()) return ReportError(bytes.status());
  absl::FPrintF(stderr, "%s: generated model, shape %s, seed %d, %s in %.1f s\n", flags.out,
                shape.name, plan->options().seed, FormatBytes(*bytes), SecondsSince(writing));

  const uint32_t n_tokens = flags.measure.value_or(DefaultMeasuredTokens(shape));
  if (n_tokens == 0) return kExitOk;
  const Clock::time_point measuring = Clock::now();
  const auto measurement = MeasureSynthModel(*plan, flags.out, n_tokens, flags.threads);
  if (!measurement.ok()) return ReportError(measurement.status());
  PrintMeasurement(*plan, *measurement);
  absl::FPrintF(stderr, "  measuring took            %.1f s\n", SecondsSince(measuring));
  return kExitOk;
}

}  // namespace

void RegisterSynth(CLI::App& app, std::function<int()>* action) {
  auto flags = std::make_shared<SynthFlags>();
  SynthOptions& options = flags->options;
  CLI::App* cmd = app.add_subcommand(
      "synth",
      "Write a generated model of real size, for benchmarks: random weights with a planted "
      "structure of activity");
  cmd->add_option("OUT", flags->out, "The GGUF file to write")->required()->check(NotEmpty());
  cmd->add_option("--preset", flags->preset, "Shape: tiny, 1b, 3b, 7b")->required();
  cmd->add_option("--type", flags->type, "Type of all matrices: q4_0, f16, f32")
      ->capture_default_str();
  cmd->add_option("-s,--seed", options.seed, "The same seed and flags give the same bytes")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  cmd->add_option("--active", options.active, "Mean share of FFN neurons that fire for a token")
      ->capture_default_str();
  cmd->add_option("--zipf", options.zipf, "How unevenly neurons fire: exponent over their rank")
      ->capture_default_str();
  cmd->add_option("--groups", options.groups,
                  "Groups of neurons that fire together; 0 for none (default: FFN width / 64)");
  cmd->add_option(
         "--group-correlation", options.group_correlation,
         "How closely the neurons of a group agree, 0 to 0.99; with 0.95 they are clusters")
      ->capture_default_str();
  cmd->add_option("--persistence", options.persistence,
                  "Share of a token's active cold neurons that fired for the token before "
                  "(default: 0.5 or the nearest possible)");
  cmd->add_option("--measure", flags->measure,
                  "Measure on this many greedy tokens; 0 for none (default: by preset)");
  cmd->add_option("-t,--threads", flags->threads, "Threads; any number gives the same bytes")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  cmd->add_flag("--force", flags->force, "Overwrite OUT");
  cmd->add_flag("--no-progress", flags->no_progress, "No progress line");
  cmd->callback([flags, action] { *action = [flags] { return RunSynth(*flags); }; });
}

}  // namespace sluice
