#include "tools/synth_command.h"

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/synth.h"
#include "layout/synth_measure.h"
#include "layout/synth_plan.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

struct SynthArguments {
  std::string preset;
  std::string type = "q4_0";
  SynthOptions options;
  std::string out;
  std::optional<uint32_t> measure;
  uint32_t threads = 2;
  bool force = false;
};

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A line that is rewritten in place on a terminal; nothing elsewhere.
class ProgressLine {
 public:
  void Show(uint64_t done, uint64_t total) {
    if (!enabled_ || (done < total && SecondsSince(shown_) < 0.2)) return;
    shown_ = Clock::now();
    const double seconds = SecondsSince(start_);
    const double rate = static_cast<double>(done) / std::max(seconds, 1e-3);
    absl::FPrintF(stderr, "\rwriting: %3d %%, %.0f MB/s, %.0f s left   ", 100 * done / total,
                  rate / 1e6, static_cast<double>(total - done) / rate);
    if (done == total) absl::FPrintF(stderr, "\n");
  }

 private:
  const bool enabled_ = isatty(STDERR_FILENO) == 1;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = start_;
};

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

absl::Status RunSynth(const SynthArguments& arguments) {
  SynthOptions options = arguments.options;
  SLUICE_ASSIGN_OR_RETURN(options.shape, FindSynthPreset(arguments.preset));
  SLUICE_ASSIGN_OR_RETURN(options.type, ParseSynthType(arguments.type));
  SLUICE_ASSIGN_OR_RETURN(const SynthPlan plan, SynthPlan::Make(options));

  const Clock::time_point start = Clock::now();
  ProgressLine progress;
  SynthWriteOptions write;
  write.overwrite = arguments.force;
  write.n_threads = arguments.threads;
  write.progress = [&progress](uint64_t done, uint64_t total) { progress.Show(done, total); };
  SLUICE_ASSIGN_OR_RETURN(const uint64_t bytes, WriteSynthModel(plan, arguments.out, write));
  absl::FPrintF(stderr, "%s: generated %s model, %.2f GB in %.1f s (seed %d)\n", arguments.out,
                options.shape.name, static_cast<double>(bytes) / 1e9, SecondsSince(start),
                options.seed);

  const uint32_t n_tokens = arguments.measure.value_or(DefaultMeasuredTokens(options.shape));
  if (n_tokens == 0) return absl::OkStatus();
  const Clock::time_point measuring = Clock::now();
  SLUICE_ASSIGN_OR_RETURN(const SynthMeasurement measurement,
                          MeasureSynthModel(plan, arguments.out, n_tokens, arguments.threads));
  PrintMeasurement(plan, measurement);
  absl::FPrintF(stderr, "  measuring took %.1f s\n", SecondsSince(measuring));
  return absl::OkStatus();
}

}  // namespace

void AddSynthCommand(CLI::App& app, std::function<absl::Status()>& run) {
  CLI::App* command = app.add_subcommand(
      "synth",
      "Write a generated model of real size, for benchmarks: random weights with a planted "
      "structure of activity");
  const auto arguments = std::make_shared<SynthArguments>();
  SynthOptions& options = arguments->options;
  command->add_option("OUT", arguments->out, "The GGUF file to write")->required();
  command->add_option("--preset", arguments->preset, "Shape: tiny, 1b, 3b, 7b")->required();
  command->add_option("--type", arguments->type, "Type of all matrices: q4_0, f16, f32")
      ->capture_default_str();
  command->add_option("-s,--seed", options.seed, "The same seed and options give the same bytes")
      ->capture_default_str();
  command->add_option("--active", options.active, "Mean share of neurons that fire for a token")
      ->capture_default_str();
  command->add_option("--zipf", options.zipf, "How unevenly neurons fire: exponent over their rank")
      ->capture_default_str();
  command->add_option("--groups", options.groups,
                      "Groups of neurons that fire together; 0 for none (default: d_ff / 64)");
  command->add_option("--persistence", options.persistence,
                      "Share of a token's active cold neurons that fired for the token before "
                      "(default: 0.5 or the nearest possible)");
  command->add_option("--measure", arguments->measure,
                      "Measure on this many greedy tokens; 0 for none (default: by preset)");
  command->add_option("-t,--threads", arguments->threads, "Threads")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->add_flag("--force", arguments->force, "Replace OUT if it exists");
  command->callback([arguments, &run] { run = [arguments] { return RunSynth(*arguments); }; });
}

}  // namespace sluice
