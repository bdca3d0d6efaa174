// Hit rates of cache policies on recorded activations, beside the optimum of the same size. The
// first third of a trace warms the caches and chooses hot bundles; hits are counted over the rest.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "cache/policy_replay.h"
#include "io/status.h"
#include "predictor/activation_trace.h"

namespace sluice {
namespace {

struct Flags {
  std::vector<std::string> traces;
  std::vector<double> cached = {5, 10, 25, 50, 75};  // percent of all bundles
};

struct Column {
  const char* name;
  CachePolicy policy;
  double hot_share = 0;
};
constexpr Column kColumns[] = {
    {"LRU", CachePolicy::kLru},
    {"S3-FIFO", CachePolicy::kS3Fifo},
    {"EMA", CachePolicy::kEma},
    {"half hot + LRU", CachePolicy::kHotLru, 0.5},
    {"nine tenths hot + LRU", CachePolicy::kHotLru, 0.9},
    {"Belady", CachePolicy::kBelady},
};

AccessTrace AccessesOf(const ActivationTrace& trace) {
  AccessTrace accesses(trace.n_layers() * trace.n_neurons());
  std::vector<uint32_t> active;
  for (uint32_t t = 0; t < trace.n_tokens(); ++t) {
    for (uint32_t l = 0; l < trace.n_layers(); ++l) {
      trace.Get(t, l, &active);
      for (uint32_t& key : active) key += l * trace.n_neurons();
      accesses.Append(t, active);
    }
  }
  return accesses;
}

absl::Status PrintTrace(const std::string& path, const std::vector<double>& cached) {
  SLUICE_ASSIGN_OR_RETURN(const ActivationTrace trace, ActivationTrace::Load(path));
  const uint64_t n_keys = uint64_t{trace.n_layers()} * trace.n_neurons();
  if (n_keys > UINT32_MAX || trace.n_tokens() == 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: has %u bundles, %u tokens", path, n_keys, trace.n_tokens()));
  }
  const AccessTrace accesses = AccessesOf(trace);
  const double per_token =
      100.0 * static_cast<double>(trace.n_active()) / trace.n_tokens() / n_keys;
  for (const double percent : cached) {
    absl::PrintF("| %s (%u tokens, %.1f %% active) | %.0f %% |",
                 std::filesystem::path(path).stem().string(), trace.n_tokens(), per_token, percent);
    for (const Column& column : kColumns) {
      const ReplayOptions options = {
          .n_slots = static_cast<uint32_t>(static_cast<double>(n_keys) * percent / 100),
          .warm_sets = size_t{trace.n_tokens() / 3} * trace.n_layers(),
          .hot_share = column.hot_share};
      absl::PrintF(" %.1f %% |", 100 * ReplayPolicy(accesses, column.policy, options).hit_rate());
    }
    absl::PrintF("\n");
  }
  return absl::OkStatus();
}

absl::Status RunBench(const Flags& flags) {
  std::string head = "| trace | cached |", line = "\n|---|---|";
  for (const Column& column : kColumns) {
    head += absl::StrFormat(" %s |", column.name);
    line += "---|";
  }
  absl::PrintF("%s%s\n", head, line);
  for (const std::string& path : flags.traces) {
    SLUICE_RETURN_IF_ERROR(PrintTrace(path, flags.cached));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Replays recorded activations through cache policies");
  app.add_option("TRACE", flags.traces, "Of sluice generate --record-activations")->required();
  app.add_option("--cached", flags.cached, "Percent of the bundles that the cache holds")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 100.0));
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = RunBench(flags);
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "cache_policies: %s\n", status.message());
  return 1;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
