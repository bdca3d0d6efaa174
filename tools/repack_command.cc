#include <algorithm>
#include <bit>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/atomic_file.h"
#include "io/status.h"
#include "layout/model_source.h"
#include "layout/relayout.h"
#include "layout/repack.h"
#include "predictor/activation_profile.h"
#include "runtime/memory_plan.h"
#include "tools/flags.h"
#include "tools/profile_order.h"
#include "tools/range_text.h"
#include "tools/run_flags.h"
#include "tools/stop_signals.h"

namespace sluice {
namespace {

struct RepackFlags {
  std::string in, out, type, resident_type, activation, profile, device;
  std::optional<float> activation_threshold;
  std::optional<uint32_t> block;
  bool force = false, dry_run = false, no_progress = false;
};

absl::Status ReadFlags(const RepackFlags& flags, ImportOptions* import, RepackOptions* repack) {
  if (!flags.type.empty()) {
    SLUICE_ASSIGN_OR_RETURN(repack->type, ParseWeightType(flags.type));
  }
  if (!flags.resident_type.empty()) {
    SLUICE_ASSIGN_OR_RETURN(repack->resident_type, ParseWeightType(flags.resident_type));
  }
  if (!flags.activation.empty()) {
    SLUICE_ASSIGN_OR_RETURN(import->activation, ParseActivation(flags.activation));
  }
  import->activation_threshold = flags.activation_threshold;
  if (flags.block) {
    repack->block = *flags.block;
    if (!std::has_single_bit(*flags.block) || *flags.block < 512 || *flags.block > 65536) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--block is %u; it must be a power of two in 512..65536", *flags.block));
    }
  }
  repack->overwrite = flags.force;
  return absl::OkStatus();
}

void PrintDirectory(const ModelConfig& config, const Directory& d) {
  const BundleLayout& b = d.bundles;
  absl::FPrintF(
      stderr,
      "%s: %u layers, width %u, FFN %u%s, activation %s%s\n"
      "bundles: %s, %u bytes in a stride of %u, %u a blob, %u blobs a layer\n",
      config.name.empty() ? config.architecture : config.name, config.n_layers, config.d_model,
      config.d_ff, config.gated ? "" : " without a gate", ActivationName(config.activation),
      config.activation_origin == ActivationOrigin::kAssumed
          ? " (assumed: the source does not say; see --activation)"
          : "",
      WeightTypeName(b.type), b.payload_bytes(), b.stride, b.bundles_per_blob, b.blobs_per_layer());
  const uint32_t padding = 100 - 100 * b.payload_bytes() / b.stride;
  if (padding >= 20) {
    absl::FPrintF(stderr,
                  "sluice: %u %% of the FFN's bytes are padding: these neurons are small beside "
                  "blocks of %u bytes\n",
                  padding, b.block);
  }
}

// The predictors that the source brings.
void PrintPredictors(const SourcePredictors& p, const Directory& d) {
  uint64_t bytes = 0;
  for (const MatrixEntry& m : d.matrices) {
    if (IsPredictor(m.role)) bytes += m.n_bytes();
  }
  absl::FPrintF(stderr, "predictors: %u layers, rank %s, %.1f %% of the bytes, threshold %g\n",
                p.ranks.size(), RangeText(p.ranks),
                100.0 * static_cast<double>(bytes) / static_cast<double>(DirectoryEnd(d)),
                p.record.thresholds[0]);
}

// Down columns lie across the blocks of a quantised source.
bool DownIsRequantised(const ModelSource& source) {
  const SourceTensor* down = source.Find("blk.0.ffn_down.weight");
  return down != nullptr && BlockElements(down->type) > 1;
}

// A .sluice file with its neurons in the order of an activation profile.
int RunReorder(const RepackFlags& flags) {
  if (!flags.type.empty() || !flags.resident_type.empty() || !flags.activation.empty() ||
      flags.activation_threshold || flags.block || flags.dry_run) {
    return ReportUsage(absl::InvalidArgumentError(
        "with --profile weights stay as they are packed; of the other flags only --device, "
        "--force and --no-progress go with it"));
  }
  const StopSignals signals;
  const auto in = SluiceFile::Open(flags.in);
  if (!in.ok()) {
    return ReportError(Annotate(in.status(), "--profile needs the .sluice file that was profiled"));
  }
  const auto profile = ActivationProfile::Load(flags.profile);
  if (!profile.ok()) return ReportError(profile.status());
  if (const auto status = profile->CheckModel(**in, flags.profile); !status.ok()) {
    return ReportError(status);
  }
  const auto costs = PlacementCostsFor(**in, flags.device);
  if (!costs.ok()) return ReportError(costs.status());
  {  // What makes writing impossible is said before anything else.
    const auto writable = AtomicFile::Create(
        flags.out, {.overwrite = flags.force, .expected_bytes = (*in)->file_size()});
    if (!writable.ok()) return ReportError(writable.status());
  }
  absl::StatusOr<ProfileOrder> order;
  {
    ProgressLine line("order");
    const auto threads = ChooseThreads(-1);
    order = OrderByProfile(*profile, *costs, *threads, [&](uint32_t done, uint32_t total) {
      if (!flags.no_progress) line.Update(done, total);
      return signals.received() == 0;
    });
  }
  if (absl::IsCancelled(order.status())) return ReportStopped(signals, flags.out);
  if (!order.ok()) return ReportError(order.status());
  RelayoutOptions options;
  options.order = order->order;
  options.activity = &order->activity;
  options.thresholds = profile->thresholds();
  options.overwrite = flags.force;
  absl::StatusOr<uint64_t> bytes;
  {
    ProgressLine line("repack");
    options.progress = [&](uint64_t done, uint64_t total) {
      if (!flags.no_progress) line.Update(done, total);
      return signals.received() == 0;
    };
    bytes = Relayout(**in, flags.out, options);
  }
  if (absl::IsCancelled(bytes.status())) return ReportStopped(signals, flags.out);
  if (!bytes.ok()) return ReportError(bytes.status());
  absl::FPrintF(stderr, "%s: %s; %s\n", flags.out, FormatBytes(*bytes), OrderNote(*order));
  return kExitOk;
}

int RunRepack(const RepackFlags& flags) {
  if (!flags.profile.empty()) return RunReorder(flags);
  if (!flags.device.empty()) {
    return ReportUsage(
        absl::InvalidArgumentError("--device is for placement plans; it goes with "
                                   "--profile"));
  }
  ImportOptions import;
  RepackOptions options;
  if (const auto status = ReadFlags(flags, &import, &options); !status.ok()) {
    return ReportUsage(status);
  }
  const StopSignals signals;
  const auto source = OpenModelSource(flags.in, import);
  if (!source.ok()) return ReportError(source.status());
  for (const std::string& warning : (*source)->warnings()) {
    absl::FPrintF(stderr, "sluice: %s\n", warning);
  }
  const Directory planned = PlanRepack(**source, options);
  {  // What makes writing impossible is said before anything else.
    const auto writable = AtomicFile::Create(
        flags.out, {.overwrite = flags.force, .expected_bytes = DirectoryEnd(planned)});
    if (!writable.ok()) return ReportError(writable.status());
  }
  PrintDirectory((*source)->config(), planned);
  if (const auto* p = (*source)->predictors()) PrintPredictors(*p, planned);
  for (const std::string& note : NarrowedTensors(**source, planned)) {
    absl::FPrintF(stderr, "sluice: %s (--type chooses another)\n", note);
  }
  if (flags.dry_run) {
    absl::PrintF("%s would take about %s\n", flags.out, FormatBytes(DirectoryEnd(planned)));
    return kExitOk;
  }
  absl::StatusOr<RepackReport> report;
  {
    ProgressLine line("repack");
    options.progress = [&](uint64_t done, uint64_t total) {
      if (!flags.no_progress) line.Update(done, total);
      return signals.received() == 0;
    };
    report = Repack(**source, flags.out, options);
  }
  if (absl::IsCancelled(report.status())) return ReportStopped(signals, flags.out);
  if (!report.ok()) return ReportError(report.status());
  const Provenance& p = report->provenance;
  const bool gated = (*source)->config().gated;
  absl::FPrintF(
      stderr,
      "relative error of packing: resident %.2e, %sup %.2e, down %.2e\n"
      "%s%s: %s\n",
      p.resident_error, gated ? absl::StrFormat("gate %.2e, ", p.gate_error) : "", p.up_error,
      p.down_error,
      DownIsRequantised(**source)
          ? "(down columns lie across the source's blocks and are quantised anew; a source "
            "of F16 or F32 loses less)\n"
          : "",
      flags.out, FormatBytes(report->file_bytes));
  return kExitOk;
}

}  // namespace

void RegisterRepack(CLI::App& app, std::function<int()>* action) {
  auto flags = std::make_shared<RepackFlags>();
  CLI::App* cmd =
      app.add_subcommand("repack", "Make a .sluice file of a GGUF or a Hugging Face folder");
  cmd->add_option("IN", flags->in,
                  "GGUF file (any part of a split one), Hugging Face folder, or with --profile a "
                  ".sluice file")
      ->required()
      ->check(NotEmpty());
  cmd->add_option("OUT", flags->out, "The .sluice file to write")->required()->check(NotEmpty());
  cmd->add_option("--type", flags->type,
                  "Type of FFN weights: f32, f16, q8, q4 (default: nearest to the source)")
      ->check(NotEmpty());
  cmd->add_option("--resident-type", flags->resident_type,
                  "Type of all other matrices (default: nearest to the source)")
      ->check(NotEmpty());
  cmd->add_option(
         "--activation", flags->activation,
         "FFN activation: silu, relu, relu2, fatrelu, drelu (default: what the source says, else "
         "silu)")
      ->check(NotEmpty());
  cmd->add_option("--activation-threshold", flags->activation_threshold, "Threshold of fatrelu");
  cmd->add_option(
      "--block", flags->block,
      "Alignment of bundles in bytes, a power of two in 512..65536 (default: 4096, or 512 "
      "where 4096 wastes much)");
  cmd->add_option("--profile", flags->profile,
                  "IN is a .sluice file: lay its neurons in the order of this profile of it, of "
                  "sluice profile, and store the thresholds of --sparsify; no weight is changed")
      ->check(NotEmpty());
  cmd->add_option("--device", flags->device,
                  "With --profile: device profile (of iobench --profile) whose costs say what is "
                  "worth a place in DRAM (default: a UFS 4.0 phone)")
      ->check(NotEmpty());
  cmd->add_flag("--force", flags->force, "Overwrite OUT");
  cmd->add_flag("--dry-run", flags->dry_run, "Say what would be written, and write nothing");
  cmd->add_flag("--no-progress", flags->no_progress, "No progress line");
  cmd->callback([flags, action] { *action = [flags] { return RunRepack(*flags); }; });
}

}  // namespace sluice
