#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "io/available_memory.h"
#include "io/clock.h"
#include "io/status.h"
#include "io/suite/axes.h"
#include "io/suite/load.h"
#include "io/suite/suite.h"
#include "layout/sluice_file.h"
#include "runtime/benchmark.h"
#include "runtime/memory_bandwidth.h"
#include "runtime/memory_plan.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tools/bench_report.h"
#include "tools/device_flags.h"
#include "tools/engine_flags.h"
#include "tools/flags.h"
#include "tools/prediction_flags.h"
#include "tools/run_flags.h"
#include "tools/stop_signals.h"
#include "tools/text_input.h"

namespace sluice {
namespace {

struct BenchFlags {
  std::string model, prompts = "512", gens = "128", depths = "0", threads = "-1";
  std::string budgets = "all", modes = "auto", cache = "warm", format = "md", text;
  EngineFlags engine;
  DeviceFlags device;
  PredictionFlags prediction;
  int64_t repetitions = 5, chunk = 256, seed = 1;
  bool no_warmup = false;
};

// Of the lists, which llama-bench takes with zeros: -p 0 leaves prompts out.
absl::StatusOr<std::vector<uint32_t>> ReadCounts(const char* flag, const std::string& text) {
  constexpr uint64_t kMost = 1u << 27;
  std::vector<uint32_t> counts;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    if (part == "0") {
      counts.push_back(0);
      continue;
    }
    const auto numbers = ParseNumbers(part);
    if (!numbers.ok()) return Annotate(numbers.status(), flag);
    for (const uint64_t n : *numbers) {
      SLUICE_RETURN_IF_ERROR(InRange(flag, static_cast<int64_t>(n), 0, kMost));
      counts.push_back(static_cast<uint32_t>(n));
    }
  }
  return counts;
}

struct Budget {
  std::string name;
  uint64_t bytes = UINT64_MAX;
};

// "all", "2G" or "50%", which is that share of the model file.
absl::StatusOr<std::vector<Budget>> ReadBudgets(const std::string& text, uint64_t file_bytes) {
  std::vector<Budget> budgets;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    Budget budget = {std::string(part), UINT64_MAX};
    double percent = 0;
    if (!part.empty() && part.back() == '%') {
      if (!absl::SimpleAtod(part.substr(0, part.size() - 1), &percent) || !(percent > 0) ||
          percent > 1000) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "--mem-budget has \"%s\"; give a share of the model file such as 50%%", part));
      }
      budget.bytes = static_cast<uint64_t>(percent / 100 * static_cast<double>(file_bytes));
    } else if (part != "all") {
      const auto bytes = ParseBytes(budget.name);
      if (!bytes.ok()) return Annotate(bytes.status(), "--mem-budget");
      budget.bytes = *bytes;
    }
    budgets.push_back(std::move(budget));
  }
  return budgets;
}

absl::StatusOr<BenchFormat> ParseFormat(const std::string& text) {
  if (text == "md") return BenchFormat::kMarkdown;
  if (text == "json") return BenchFormat::kJson;
  if (text == "jsonl") return BenchFormat::kJsonLines;
  if (text == "csv") return BenchFormat::kCsv;
  return absl::InvalidArgumentError(
      absl::StrFormat("-o is \"%s\"; known are md, json, jsonl, csv", text));
}

// What the page cache has of a file must not pass for flash.
void DropPages(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
}

// In the order of its methods; what one needs the one before has set.
class Bench {
 public:
  explicit Bench(const BenchFlags& flags) : flags_(flags) {}

  absl::Status ReadFlags() {
    SLUICE_RETURN_IF_ERROR(ReadEngineFlags(flags_.engine, &request_.mapped, &options_));
    SLUICE_RETURN_IF_ERROR(InRange("-r", flags_.repetitions, 1, 10'000));
    SLUICE_RETURN_IF_ERROR(InRange("-b", flags_.chunk, 1, 4096));
    SLUICE_RETURN_IF_ERROR(InRange("--seed", flags_.seed, 0, INT64_MAX));
    request_.chunk = static_cast<uint32_t>(flags_.chunk);
    SLUICE_ASSIGN_OR_RETURN(format_, ParseFormat(flags_.format));
    if (flags_.cache != "warm" && flags_.cache != "cold") {
      return absl::InvalidArgumentError(
          absl::StrFormat("--cache is \"%s\"; known are warm, cold", flags_.cache));
    }
    if (request_.mapped && (flags_.budgets != "all" || !flags_.device.emulate.empty())) {
      return absl::InvalidArgumentError(
          "--io-engine mmap leaves reading and holding to the kernel; give no --mem-budget and no "
          "--emulate with it");
    }
    SLUICE_RETURN_IF_ERROR(ReadThreads());
    return ReadTests();
  }

  absl::Status Open() {
    SLUICE_ASSIGN_OR_RETURN(file_, SluiceFile::Open(flags_.model));
    const uint32_t learned =
        file_->config().learned_positions ? file_->config().context_length : UINT32_MAX;
    if (request_.context > learned) {
      return absl::OutOfRangeError(
          absl::StrFormat("%s: has learned %u positions and no more; a test has %u tokens",
                          flags_.model, learned, request_.context));
    }
    return flags_.text.empty() ? absl::OkStatus() : ReadTokens();
  }

  absl::Status ChooseRuns() {
    SLUICE_ASSIGN_OR_RETURN(budgets_, ReadBudgets(flags_.budgets, file_->file_size()));
    for (const absl::string_view name : absl::StrSplit(flags_.modes, ',')) {
      SLUICE_ASSIGN_OR_RETURN(const DecodeMode mode,
                              ChooseMode("--mode", std::string(name), *file_));
      modes_.push_back(mode);
    }
    const bool predicts = std::count(modes_.begin(), modes_.end(), DecodeMode::kPredicted) > 0;
    SLUICE_RETURN_IF_ERROR(CheckPrediction(flags_.prediction, predicts));
    UsePrediction(flags_.prediction, &options_);
    request_.predict_heads = flags_.prediction.heads;
    return absl::OkStatus();
  }

  // All plans, so that a budget that is too small is known before an hour is spent.
  absl::Status Plan() {
    for (const DecodeMode mode : modes_) {
      for (const Budget& budget : budgets_) {
        for (const int n : n_threads_) {
          PlanRequest request = request_;
          request.mode = mode;
          request.budget = budget.bytes;
          request.n_threads = n;
          SLUICE_ASSIGN_OR_RETURN(MemoryPlan plan, PlanRun(*file_, request));
          plans_.emplace_back(budget.name, std::move(plan));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status FindDevice(const std::atomic<int>* stop) {
    uint64_t probe_memory = 0;
    for (const auto& [name, plan] : plans_) {
      if (!plan.request.mapped && plan.total < plan.everything) {
        probe_memory = std::max(probe_memory, plan.total / 2);
      }
    }
    SLUICE_ASSIGN_OR_RETURN(device_, ReadDevice(flags_.device, *file_, probe_memory, stop));
    if (!device_.note.empty()) absl::FPrintF(stderr, "device: %s\n", device_.note);
    UseDevice(device_, &options_);
    return absl::OkStatus();
  }

  // Rows go to stdout as they come, unless they make one document.
  absl::Status Run(const std::atomic<int>* stop) {
    absl::PrintF("%s", BenchHeader(format_));
    for (const auto& [name, plan] : plans_) {
      SLUICE_RETURN_IF_ERROR(RunPlan(name, plan, stop));
    }
    if (format_ == BenchFormat::kJson) absl::PrintF("%s", BenchJson(rows_));
    return absl::OkStatus();
  }

 private:
  bool cold() const { return flags_.cache == "cold"; }

  absl::Status ReadThreads() {
    for (const absl::string_view part : absl::StrSplit(flags_.threads, ',')) {
      int64_t wanted = 0;
      if (absl::SimpleAtoi(part, &wanted)) {
        SLUICE_ASSIGN_OR_RETURN(const int n, ChooseThreads(wanted));
        n_threads_.push_back(n);
        continue;
      }
      SLUICE_ASSIGN_OR_RETURN(const auto counts, ReadCounts("-t", std::string(part)));
      for (const uint32_t n : counts) {
        SLUICE_RETURN_IF_ERROR(InRange("-t", n, 1, 256));
        n_threads_.push_back(static_cast<int>(n));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadTests() {
    SLUICE_ASSIGN_OR_RETURN(const auto prompts, ReadCounts("-p", flags_.prompts));
    SLUICE_ASSIGN_OR_RETURN(const auto gens, ReadCounts("-n", flags_.gens));
    SLUICE_ASSIGN_OR_RETURN(const auto depths, ReadCounts("-d", flags_.depths));
    for (const uint32_t depth : depths) {
      for (const uint32_t n : prompts) {
        if (n > 0) tests_.push_back({.n_prompt = n, .depth = depth});
      }
      for (const uint32_t n : gens) {
        if (n > 0) tests_.push_back({.n_gen = n, .depth = depth});
      }
    }
    if (tests_.empty()) {
      return absl::InvalidArgumentError("-p and -n are both 0: there is nothing to measure");
    }
    for (const BenchTest& t : tests_) {
      request_.context = std::max(request_.context, t.depth + t.n_prompt + t.n_gen);
    }
    return absl::OkStatus();
  }

  absl::Status ReadTokens() {
    SLUICE_ASSIGN_OR_RETURN(auto data, file_->LoadTokenizer());
    auto tokenizer = Tokenizer::Create(std::move(data));
    if (!tokenizer.ok()) return Annotate(tokenizer.status(), flags_.model);
    SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadText(flags_.text));
    text_ = (*tokenizer)->Encode(text);
    if (text_.size() < request_.context) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: has %u tokens, and a test takes %u; give a longer text, or none for "
                          "random tokens",
                          flags_.text, text_.size(), request_.context));
    }
    return absl::OkStatus();
  }

  absl::Status RunPlan(const std::string& budget, const MemoryPlan& plan,
                       const std::atomic<int>* stop) {
    SLUICE_ASSIGN_OR_RETURN(const double bandwidth, MemoryBandwidth(plan));
    uint64_t load_ns = 0;
    std::unique_ptr<Decoder> decoder;
    for (const BenchTest& test : tests_) {
      BenchRow row;
      row.model = flags_.model;
      row.model_bytes = file_->file_size();
      row.budget = budget;
      row.plan = plan;
      row.test = test;
      row.cold = cold();
      row.memory_bandwidth = bandwidth;
      BenchTokens tokens(text_, file_->config().vocab_size, static_cast<uint64_t>(flags_.seed));
      const bool warms = !cold() && !flags_.no_warmup;
      for (int64_t i = warms ? -1 : 0; i < flags_.repetitions; ++i) {
        if (decoder == nullptr || cold()) {
          decoder.reset();  // two may be more than there is memory for
          SLUICE_ASSIGN_OR_RETURN(decoder, Load(plan, &load_ns));
          if (rows_.empty() && i <= 0) Say(*decoder);
        }
        SLUICE_ASSIGN_OR_RETURN(BenchSample sample, RunBenchTest(*decoder, test, tokens, stop));
        if (i >= 0) row.samples.push_back(std::move(sample));
      }
      row.load_ns = load_ns;
      row.notes = decoder->Notes();
      SLUICE_RETURN_IF_ERROR(MeasureDisk(*decoder, stop, &row));
      absl::PrintF("%s", BenchRowText(format_, row));
      std::fflush(stdout);
      rows_.push_back(std::move(row));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Decoder>> Load(const MemoryPlan& plan, uint64_t* load_ns) {
    if (cold()) DropPages(flags_.model);
    const uint64_t begin_ns = NowNs();
    auto decoder = Decoder::Create(*file_, plan, options_);
    *load_ns = NowNs() - begin_ns;
    return decoder;
  }

  void Say(const Decoder& decoder) {
    for (const std::string& note : decoder.Notes()) absl::FPrintF(stderr, "%s\n", note);
  }

  // Before anything of a plan is in memory.
  absl::StatusOr<double> MemoryBandwidth(const MemoryPlan& plan) {
    constexpr uint64_t kBufferBytes = 512 << 20;  // no cache holds a good part of it
    const auto [known, is_new] = bandwidths_.emplace(plan.request.n_threads, 0);
    if (!is_new) return known->second;
    uint64_t bytes = kBufferBytes;
    if (AvailableMemory() > 0) bytes = std::min(bytes, AvailableMemory() / 4);
    SLUICE_ASSIGN_OR_RETURN(known->second, MeasureMemoryBandwidth(plan.request.n_threads, bytes));
    absl::FPrintF(stderr, "memory: %.2f GB/s read by %d threads\n", known->second / 1e9,
                  plan.request.n_threads);
    return known->second;
  }

  // Random reads of the size that the test's had on average, as many in flight as the device likes.
  absl::Status MeasureDisk(const Decoder& decoder, const std::atomic<int>* stop, BenchRow* row) {
    uint64_t bytes = 0, operations = 0;
    for (const BenchSample& s : row->samples) {
      bytes += s.stats.flash_bytes;
      operations += s.stats.flash_operations;
    }
    if (operations == 0) return absl::OkStatus();
    constexpr uint64_t kStep = 4096, kMostBlock = 4 << 20;
    const uint64_t mean = bytes / operations;
    row->disk_block =
        static_cast<uint32_t>(std::clamp((mean + kStep / 2) / kStep * kStep, kStep, kMostBlock));
    if (file_->file_size() / row->disk_block < 2) return absl::OkStatus();  // no random reads there
    const auto [known, is_new] = disk_.emplace(row->disk_block, 0);
    if (is_new) {
      SLUICE_ASSIGN_OR_RETURN(known->second, DiskBandwidth(decoder, row->disk_block, stop));
      absl::FPrintF(stderr, "disk: %.1f MB/s in random reads of %u bytes\n", known->second / 1e6,
                    row->disk_block);
    }
    row->disk_bandwidth = known->second;
    return absl::OkStatus();
  }

  absl::StatusOr<double> DiskBandwidth(const Decoder& decoder, uint32_t block,
                                       const std::atomic<int>* stop) const {
    CellResult cell;
    cell.spec.block = block;
    cell.spec.range = file_->file_size();
    cell.spec.depth = static_cast<uint32_t>(std::min<uint64_t>(32, cell.spec.range / block / 2));
    cell.spec.direct = decoder.reads_directly();
    cell.spec.engine =
        options_.engine == EngineKind::kPread ? LoadEngine::kPread : LoadEngine::kUring;
    cell.spec.emulated = device_.emulated;
    cell.spec.emulated_core = device_.emulated_core;
    cell.spec.warm_up_s = 0.1;
    cell.spec.window_s = 0.3;
    if (!cell.spec.direct) DropPages(flags_.model);
    SLUICE_ASSIGN_OR_RETURN(cell.load, RunLoad(flags_.model, cell.spec, stop));
    if (cell.load.windows.empty()) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s: is too small to measure the disk with reads of %u bytes", flags_.model, block));
    }
    return cell.megabytes_per_second().median * 1e6;
  }

  const BenchFlags& flags_;
  PlanRequest request_;
  DecoderOptions options_;
  BenchFormat format_ = BenchFormat::kMarkdown;
  std::unique_ptr<SluiceFile> file_;
  std::vector<int32_t> text_;
  std::vector<int> n_threads_;
  std::vector<BenchTest> tests_;
  std::vector<Budget> budgets_;
  std::vector<DecodeMode> modes_;
  std::vector<std::pair<std::string, MemoryPlan>> plans_;
  Device device_;
  std::map<int, double> bandwidths_;  // by number of threads
  std::map<uint32_t, double> disk_;   // by size of reads
  std::vector<BenchRow> rows_;
};

int RunBench(const BenchFlags& flags) {
  Bench bench(flags);
  absl::Status status = bench.ReadFlags();
  if (!status.ok()) return ReportUsage(status);
  status = bench.Open();
  if (!status.ok()) return ReportError(status);
  status = bench.ChooseRuns();
  if (!status.ok()) return ReportUsage(status);
  status = bench.Plan();
  if (!status.ok()) return ReportError(status);
  const StopSignals signals;
  status = bench.FindDevice(&signals.received());
  if (absl::IsCancelled(status)) return signals.exit_code();
  if (!status.ok()) return ReportUsage(status);
  status = bench.Run(&signals.received());
  if (absl::IsCancelled(status)) {
    absl::FPrintF(stderr, "sluice: stopped\n");
    return signals.exit_code();
  }
  return status.ok() ? kExitOk : ReportError(status);
}

}  // namespace

void RegisterBench(CLI::App& app, std::function<int()>* action) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* cmd = app.add_subcommand(
      "bench", "Measure prompts and decoding, and hold them against what the machine can do");
  cmd->add_option("-m,--model", flags->model, "Model file")->required()->check(NotEmpty());
  cmd->add_option("-p,--n-prompt", flags->prompts, "Prompt tokens: 512, 128,512 or 128-1024; 0: no")
      ->capture_default_str();
  cmd->add_option("-n,--n-gen", flags->gens, "Tokens to decode, a list too; 0: none")
      ->capture_default_str();
  cmd->add_option("-d,--n-depth", flags->depths, "Tokens in the context before, a list too")
      ->capture_default_str();
  cmd->add_option("-r,--repetitions", flags->repetitions, "Of each test")->capture_default_str();
  cmd->add_option("-t,--threads", flags->threads, "Compute threads, a list too; -1: one a core")
      ->capture_default_str();
  cmd->add_option("-b,--batch-size", flags->chunk, "As in generate")->capture_default_str();
  cmd->add_option("--mode", flags->modes, "auto, dense, exact, predicted; a list too")
      ->capture_default_str();
  AddPredictionFlags(*cmd, &flags->prediction);
  cmd->add_option("--mem-budget", flags->budgets,
                  "DRAM, as in generate, a list too: all, 2G, or 50% of the model file")
      ->capture_default_str()
      ->check(NotEmpty());
  cmd->add_option("--cache", flags->cache,
                  "warm: one repetition more comes first, and what is cached stays; cold: every "
                  "repetition begins with a decoder that has just been loaded")
      ->capture_default_str();
  cmd->add_flag("--no-warmup", flags->no_warmup, "With a warm cache: no repetition more");
  cmd->add_option("-f,--file", flags->text,
                  "Text whose tokens go in, instead of random ones; they take memory beyond the "
                  "budget")
      ->check(NotEmpty());
  cmd->add_option("-s,--seed", flags->seed, "Of the tokens")->capture_default_str();
  AddEngineFlags(*cmd, &flags->engine);
  AddDeviceFlags(*cmd, &flags->device);
  cmd->add_option("-o,--output", flags->format, "md, json, jsonl, csv")->capture_default_str();
  cmd->callback([flags, action] { *action = [flags] { return RunBench(*flags); }; });
}

}  // namespace sluice
