#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "io/clock.h"
#include "io/span_log.h"
#include "io/status.h"
#include "layout/sluice_file.h"
#include "predictor/activation_trace.h"
#include "runtime/generation.h"
#include "runtime/memory_plan.h"
#include "runtime/tokenizer/text_stream.h"
#include "tools/device_flags.h"
#include "tools/engine_flags.h"
#include "tools/flags.h"
#include "tools/generate_report.h"
#include "tools/output_files.h"
#include "tools/prediction_flags.h"
#include "tools/prompt_input.h"
#include "tools/run_flags.h"
#include "tools/span_trace.h"
#include "tools/stop_signals.h"

namespace sluice {
namespace {

struct GenerateFlags {
  std::string model, prompt, prompt_file, mode = "auto";
  std::optional<std::string> budget;
  EngineFlags engine;
  DeviceFlags device;
  PredictionFlags prediction;
  std::string activations, trace;
  int64_t n_predict = -1, seed = -1;
  int64_t context = kDefaultContext;
  int64_t threads = -1;
  int64_t chunk = 256;
  SamplerOptions sampler;
  bool json = false, dry_run = false, ignore_eos = false, no_display_prompt = false;
  bool escape = true, special = false;

  static constexpr int64_t kDefaultContext = -1;
};

struct Options {
  PlanRequest plan;
  DecoderOptions decoder;
  GenerationRequest generation;
};

constexpr char kActivations[] = "--record-activations", kTrace[] = "--trace";

std::vector<NamedFile> InputsOf(const GenerateFlags& flags) {
  std::vector<NamedFile> inputs = DeviceInputs(flags.device, flags.model);
  inputs.insert(inputs.end(), {{"-m", flags.model}, {"-f", flags.prompt_file}});
  return inputs;
}

std::vector<NamedFile> OutputsOf(const GenerateFlags& flags) {
  return {{kActivations, flags.activations}, {kTrace, flags.trace}};
}

absl::StatusOr<Options> ReadFlags(const GenerateFlags& flags) {
  Options o;
  SLUICE_RETURN_IF_ERROR(ReadEngineFlags(flags.engine, &o.plan.mapped, &o.decoder));
  SLUICE_RETURN_IF_ERROR(InRange("-n", flags.n_predict, -2, 1 << 30));
  SLUICE_RETURN_IF_ERROR(InRange("-c", flags.context, -1, 1 << 27));
  SLUICE_RETURN_IF_ERROR(InRange("-b", flags.chunk, 1, 4096));
  SLUICE_RETURN_IF_ERROR(InRange("--seed", flags.seed, -1, INT64_MAX));
  SLUICE_ASSIGN_OR_RETURN(o.plan.n_threads, ChooseThreads(flags.threads));
  o.plan.chunk = static_cast<uint32_t>(flags.chunk);
  if (o.plan.mapped && flags.budget) {
    return absl::InvalidArgumentError(
        "--mem-budget and --io-engine mmap exclude each other: of mapped weights the kernel holds "
        "what "
        "it likes; leave one of them out");
  }
  SLUICE_RETURN_IF_ERROR(CheckDistinct(InputsOf(flags), OutputsOf(flags)));
  if (o.plan.mapped && !flags.device.emulate.empty()) {
    return absl::InvalidArgumentError(
        "--emulate and --io-engine mmap exclude each other: the kernel reads mapped weights; leave "
        "one of them out");
  }
  if (flags.budget) {
    auto budget = ParseBytes(*flags.budget);
    if (!budget.ok()) return Annotate(budget.status(), "--mem-budget");
    o.plan.budget = *budget;
  }
  o.generation.n_predict = flags.n_predict;
  o.generation.ignore_eos = flags.ignore_eos || flags.n_predict == -2;
  o.generation.sampler = flags.sampler;
  o.generation.sampler.seed =
      flags.seed >= 0 ? static_cast<uint64_t>(flags.seed) : std::random_device()();
  SLUICE_RETURN_IF_ERROR(ValidateSampler(o.generation.sampler));
  return o;
}

// Standard output without a buffer, so that text appears as it is made. The first error is kept;
// nothing is written after it.
class Output {
 public:
  // False once stdout is closed or full.
  bool Write(std::string_view text) {
    while (error_ == 0 && !text.empty()) {
      const ssize_t n = write(STDOUT_FILENO, text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        error_ = n < 0 ? errno : EIO;
      } else {
        text.remove_prefix(static_cast<size_t>(n));
      }
    }
    return error_ == 0;
  }
  absl::Status status() const {
    return error_ == 0 ? absl::OkStatus() : ErrnoStatus(error_, "stdout");
  }

 private:
  int error_ = 0;
};

// Generates and writes the text, or the JSON document in its place, and the summary.
int WriteText(const GenerateFlags& flags, const std::string& prompt, const Tokenizer& tokenizer,
              const MemoryPlan& plan, const GenerationRequest& request, Decoder& decoder,
              uint64_t load_ns, const StopSignals& signals) {
  std::string all, piece;  // the text so far; what the last token added
  if (!flags.no_display_prompt) all = prompt;
  Output out;
  if (!flags.json && !out.Write(all)) return ReportError(out.status());
  TextStream stream(tokenizer, /*begins_text=*/prompt.empty());
  const auto emit = [&] {
    const bool open = flags.json || out.Write(piece);
    all += piece;
    piece.clear();
    return open;
  };
  const auto result = Generate(decoder, tokenizer, request, [&](int32_t token) {
    stream.Append(token, piece);
    return emit();
  });
  const std::string changed = decoder.ModeChangeNote();
  if (!result.ok()) {
    if (!flags.json && !all.empty()) out.Write("\n");
    if (!changed.empty()) absl::FPrintF(stderr, "\nsluice: %s\n", changed);
    return ReportError(result.status());
  }
  stream.Flush(piece);
  emit();
  if (!flags.json && isatty(STDOUT_FILENO) == 1) out.Write("\n");
  if (!changed.empty()) absl::FPrintF(stderr, "\nsluice: %s", changed);
  const RunReport run = {request, *result, decoder, plan, load_ns};
  PrintSummary(run);
  if (flags.json) out.Write(SummaryJson(run, flags.model, all));
  if (!out.status().ok()) return ReportError(out.status());
  return result->stop == StopReason::kInterrupted ? signals.exit_code() : kExitOk;
}

// What a run records beside its text. The files are made before it: what cannot be written is
// better known before than after.
class Recording {
 public:
  absl::Status Open(const GenerateFlags& flags, const SluiceFile& file, int n_threads) {
    // A token of a model of 7e9 weights has some ten thousand; 40 bytes each.
    constexpr size_t kSpans = 1 << 16;
    SLUICE_RETURN_IF_ERROR(outputs_.Open(InputsOf(flags), OutputsOf(flags)));
    if (outputs_.has(kActivations)) {
      const ModelConfig& c = file.config();
      activations_.emplace(file.model_id(), c.n_layers, c.d_ff);
    }
    if (outputs_.has(kTrace)) spans_.emplace(static_cast<size_t>(n_threads) + 1, kSpans);
    return absl::OkStatus();
  }
  void Use(DecoderOptions* options) {
    if (activations_) options->trace = &*activations_;
    if (spans_) options->spans = &*spans_;
  }
  // After the decoder, whose notes these are.
  absl::Status Save(const GenerateFlags& flags, const std::vector<std::string>& notes) {
    if (activations_) {
      SLUICE_RETURN_IF_ERROR(activations_->SaveTo(outputs_.file(kActivations)));
      absl::FPrintF(stderr, "activations of %u tokens are in %s\n", activations_->n_tokens(),
                    flags.activations);
    }
    if (!spans_) return absl::OkStatus();
    const auto trace = TraceOfLastToken(*spans_, flags.model, notes);
    if (!trace.ok()) return Annotate(trace.status(), kTrace);
    SLUICE_RETURN_IF_ERROR(outputs_.Write(kTrace, trace->json));
    absl::FPrintF(stderr,
                  "trace of the token at position %u (%.2f ms, %.2f ms of it stalled, %u reads) is "
                  "in %s; ui.perfetto.dev shows it%s\n",
                  trace->position, static_cast<double>(trace->token_ns) / 1e6,
                  static_cast<double>(trace->stall_ns) / 1e6, trace->reads, flags.trace,
                  trace->is_complete ? "" : "; its first part was too much to keep");
    return absl::OkStatus();
  }

 private:
  OutputFiles outputs_;
  std::optional<ActivationTrace> activations_;
  std::optional<SpanLog> spans_;
};

int RunGenerate(const GenerateFlags& flags) {
  auto options = ReadFlags(flags);
  if (!options.ok()) return ReportUsage(options.status());
  const auto file = SluiceFile::Open(flags.model);
  if (!file.ok()) return ReportError(file.status());
  const auto mode = ChooseMode("--mode", flags.mode, **file);
  if (!mode.ok()) return ReportUsage(mode.status());
  options->plan.mode = *mode;
  const absl::Status prediction =
      CheckPrediction(flags.prediction, *mode == DecodeMode::kPredicted);
  if (!prediction.ok()) return ReportUsage(prediction);
  UsePrediction(flags.prediction, &options->decoder);
  options->plan.predict_heads = flags.prediction.heads;
  auto data = (*file)->LoadTokenizer();
  if (!data.ok()) return ReportError(data.status());
  PromptLimit limit;
  for (const std::string& token : data->tokens) {
    limit.longest_token = std::max(limit.longest_token, token.size());
  }
  const auto tokenizer = Tokenizer::Create(std::move(data).value());
  if (!tokenizer.ok()) return ReportError(Annotate(tokenizer.status(), flags.model));
  options->plan.tokenizer_bytes = (*tokenizer)->memory_bytes();

  const auto context = ChooseContext((*file)->config(), flags.context);
  if (!context.ok()) return ReportError(context.status());
  options->plan.context = *context;
  const auto plan = PlanRun(**file, options->plan);
  if (!plan.ok()) return ReportError(plan.status());
  if (flags.dry_run) {
    PrintPlan(*plan, flags.json);
    return kExitOk;
  }
  limit.context = plan->request.context;
  const auto prompt = ReadPrompt({flags.prompt, flags.prompt_file, flags.escape}, limit);
  if (!prompt.ok()) return ReportError(prompt.status());
  EncodeOptions encode;
  encode.parse_special = flags.special;
  GenerationRequest& request = options->generation;
  request.prompt = (*tokenizer)->Encode(*prompt, encode);
  if (request.prompt.empty()) {
    return ReportError(absl::InvalidArgumentError(
        "the prompt is empty and the vocabulary adds no BOS token; give a prompt with -p"));
  }
  if (request.prompt.size() > plan->request.context) {
    return ReportError(absl::OutOfRangeError(absl::StrFormat(
        "the prompt has %u tokens and the context holds %u; give a larger -c or a shorter prompt",
        request.prompt.size(), plan->request.context)));
  }
  Recording recording;
  const absl::Status opened = recording.Open(flags, **file, plan->request.n_threads);
  if (!opened.ok()) return ReportError(opened);
  const StopSignals signals;
  request.stop = &signals.received();
  // A profile is of use where reads go on after the first pass.
  const bool reads = !plan->request.mapped && plan->total < plan->everything;
  const uint64_t probe_memory = reads ? plan->total / 2 : 0;  // of which nothing is in use yet
  const auto device = ReadDevice(flags.device, **file, probe_memory, request.stop);
  if (absl::IsCancelled(device.status())) return signals.exit_code();
  if (!device.ok()) return ReportUsage(device.status());
  if (!device->note.empty()) absl::FPrintF(stderr, "device: %s\n", device->note);
  const uint64_t begin_ns = NowNs();
  UseDevice(*device, &options->decoder);
  recording.Use(&options->decoder);
  auto decoder = Decoder::Create(**file, *plan, options->decoder);
  const uint64_t load_ns = NowNs() - begin_ns;
  if (!decoder.ok()) return ReportError(decoder.status());
  const std::vector<std::string> notes = (*decoder)->Notes();
  for (const std::string& note : notes) absl::FPrintF(stderr, "%s\n", note);
  const SamplerOptions& sampler = request.sampler;
  absl::FPrintF(stderr, "memory: %s planned; %s\n\n", FormatBytes(plan->total),
                sampler.temperature > 0 ? absl::StrFormat("seed: %u", sampler.seed) : "greedy");
  const int code =
      WriteText(flags, *prompt, **tokenizer, *plan, request, **decoder, load_ns, signals);
  if (code == kExitError) return code;
  decoder->reset();  // its threads write what is recorded
  const absl::Status saved = recording.Save(flags, notes);
  return saved.ok() ? code : ReportError(saved);
}

}  // namespace

void RegisterGenerate(CLI::App& app, std::function<int()>* action) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* cmd = app.add_subcommand("generate", "Generate text from a .sluice model");
  cmd->add_option("-m,--model", flags->model, "Model file")->required()->check(NotEmpty());
  auto* prompt = cmd->add_option("-p,--prompt", flags->prompt, "Prompt (\\n and the like count)");
  cmd->add_option("-f,--file", flags->prompt_file, "File with the prompt; - for stdin")
      ->excludes(prompt)
      ->check(NotEmpty());
  cmd->add_option(
      "-n,--predict,--n-predict", flags->n_predict,
      "Tokens to generate; -1 (default): until an end token or the context is full, -2: until the "
      "context is full");
  cmd->add_option("-c,--ctx-size", flags->context,
                  "Context in tokens; 0: what the model was trained with; -1 (default): that, at "
                  "most 4096");
  cmd->add_option("-t,--threads", flags->threads,
                  "Compute threads, at most 256; -1 (default): one a core");
  cmd->add_option("-b,--batch-size", flags->chunk,
                  "Prompt tokens that pass through a layer together, at most; 1..4096")
      ->capture_default_str();
  cmd->add_option("--temp,--temperature", flags->sampler.temperature, "0: greedy")
      ->capture_default_str();
  cmd->add_option("--top-k", flags->sampler.top_k, "0: all")->capture_default_str();
  cmd->add_option("--top-p", flags->sampler.top_p, "1: off")->capture_default_str();
  cmd->add_option("--min-p", flags->sampler.min_p, "0: off")->capture_default_str();
  cmd->add_option("--repeat-penalty", flags->sampler.repeat_penalty, "1: off")
      ->capture_default_str();
  cmd->add_option("--repeat-last-n", flags->sampler.repeat_last_n,
                  "Tokens that the penalty looks at; -1: all")
      ->capture_default_str();
  cmd->add_option("-s,--seed", flags->seed, "-1 (default): random; the one used is printed");
  cmd->add_option("--mem-budget", flags->budget,
                  "DRAM for everything but the program itself (16 MiB), with a unit: 512M, 2G "
                  "(default: all in "
                  "memory, if that leaves a quarter of what is available)")
      ->check(NotEmpty());
  cmd->add_option("--mode", flags->mode, "auto, dense, exact, predicted")->capture_default_str();
  AddPredictionFlags(*cmd, &flags->prediction);
  AddEngineFlags(*cmd, &flags->engine);
  AddDeviceFlags(*cmd, &flags->device);
  cmd->add_option(kActivations, flags->activations,
                  "File for which neurons each token needed (exact mode); takes memory beyond the "
                  "budget")
      ->check(NotEmpty());
  cmd->add_option(kTrace, flags->trace,
                  "File for a picture of the last token, in the trace event format: threads, "
                  "reads, stalls; takes memory beyond the budget")
      ->check(NotEmpty());
  cmd->add_flag("--ignore-eos", flags->ignore_eos, "Go on after an end token");
  cmd->add_flag("--no-display-prompt", flags->no_display_prompt, "Do not print the prompt");
  cmd->add_flag("-e,--escape,!--no-escape", flags->escape,
                "\\n and the like in -p count, as they do by default");
  cmd->add_flag("--special", flags->special, "Special tokens in the prompt count as such");
  cmd->add_flag("--json", flags->json, "One JSON document on stdout instead of text");
  cmd->add_flag("--dry-run", flags->dry_run, "Print the memory plan and stop");
  cmd->callback([flags, action] { *action = [flags] { return RunGenerate(*flags); }; });
}

}  // namespace sluice
