#include "tools/generate_report.h"

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

double Ms(uint64_t ns) { return static_cast<double>(ns) / 1e6; }

double Share(uint64_t part, uint64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

double ReadMbPerToken(const PhaseCost& c) {
  return c.tokens > 0
             ? static_cast<double>(c.decoder.flash_bytes) / 1e6 / static_cast<double>(c.tokens)
             : 0.0;
}

// `part` of `whole`, or null where there is nothing to be a part of.
Json JsonShare(uint64_t part, uint64_t whole) {
  return whole > 0 ? Json(Share(part, whole)) : Json(nullptr);
}

Json PlanJson(const MemoryPlan& plan) {
  Json items = Json::array();
  for (const PlanItem& i : plan.items) {
    items.push_back({{"name", i.name}, {"bytes", i.bytes}, {"note", i.note}});
  }
  Json budget = nullptr;
  if (plan.request.budget != UINT64_MAX) budget = plan.request.budget;
  return {{"budget_bytes", budget},
          {"minimum_bytes", plan.minimum},
          {"everything_bytes", plan.request.mapped ? Json(nullptr) : Json(plan.everything)},
          {"total_bytes", plan.total},
          {"context", plan.request.context},
          {"chunk", plan.chunk},
          {"threads", plan.request.n_threads},
          {"cache_slots", plan.n_slots},
          {"items", std::move(items)}};
}

// Mapped weights are read by the kernel, which tells no one: those members are null.
Json PhaseJson(const PhaseCost& c, bool mapped) {
  const DecoderStats& d = c.decoder;
  Json json = {{"tokens", c.tokens},
               {"ms", Ms(c.wall_ns)},
               {"tokens_per_second", c.tokens_per_second()},
               {"compute_ms", Ms(c.compute_ns())},
               {"stall_ms", Ms(d.stall_ns)},
               {"predictor_ms", Ms(d.predictor_ns)},
               {"other_ms", Ms(c.wall_ns - c.forward_ns)},
               {"io_busy_ms", Ms(d.io_busy_ns)},
               {"flash_bytes", d.flash_bytes},
               {"flash_operations", d.flash_operations},
               {"flash_mb_per_token", ReadMbPerToken(c)},
               {"bundle_hits", d.hits},
               {"bundle_misses", d.misses},
               {"hit_rate", JsonShare(d.hits, d.hits + d.misses)},
               {"active_share", JsonShare(d.active_neurons, d.gated_neurons)},
               {"firing_share", JsonShare(d.firing_neurons, d.gated_neurons)},
               {"head_share", JsonShare(d.chosen_heads, d.heads)},
               {"late_keys", d.late_keys},
               {"look_ahead_reads", d.look_ahead.reads},
               {"look_ahead_needed", d.look_ahead.needed},
               {"look_ahead_in_time", d.look_ahead.in_time},
               {"look_ahead_paused", d.look_ahead.paused},
               {"skipped_neurons", d.skipped},
               {"major_faults", c.major_faults}};
  if (mapped) {
    for (const char* unknown :
         {"compute_ms", "stall_ms", "io_busy_ms", "flash_bytes", "flash_operations",
          "flash_mb_per_token", "bundle_hits", "bundle_misses"}) {
      json[unknown] = nullptr;
    }
  }
  return json;
}

void PrintPhase(const char* name, const PhaseCost& c, const Decoder& decoder) {
  const DecoderStats& d = c.decoder;
  if (c.tokens == 0) {
    if (c.wall_ns > 0) absl::FPrintF(stderr, "%s: no tokens in %.1f ms\n", name, Ms(c.wall_ns));
    return;
  }
  absl::FPrintF(stderr, "%s: %u tokens in %.1f ms, %.2f tokens/s", name, c.tokens, Ms(c.wall_ns),
                c.tokens_per_second());
  if (decoder.mapped()) {
    absl::FPrintF(stderr, "; mapped weights: %u major faults", c.major_faults);
  } else {
    absl::FPrintF(
        stderr,
        "; compute %.0f %%, stall %.0f %%, other %.0f %%, I/O busy %.0f %%; %.2f MB/token "
        "%s in %u reads",
        100 * Share(c.compute_ns(), c.wall_ns), 100 * Share(d.stall_ns, c.wall_ns),
        100 * Share(c.wall_ns - c.forward_ns, c.wall_ns), 100 * Share(d.io_busy_ns, c.wall_ns),
        ReadMbPerToken(c), decoder.reads_directly() ? "from flash" : "from flash or page cache",
        d.flash_operations);
    if (d.hits + d.misses > 0) {
      absl::FPrintF(stderr, "; hit rate %.1f %%", 100 * Share(d.hits, d.hits + d.misses));
    }
  }
  if (d.gated_neurons > 0) {
    absl::FPrintF(stderr, "; %.1f %% of neurons active",
                  100 * Share(d.active_neurons, d.gated_neurons));
    if (d.firing_neurons < d.active_neurons) {
      absl::FPrintF(stderr, " by prediction, %.1f %% fired",
                    100 * Share(d.firing_neurons, d.gated_neurons));
    }
    if (d.heads > 0) {
      absl::FPrintF(stderr, "; %.1f %% of attention heads computed",
                    100 * Share(d.chosen_heads, d.heads));
    }
    if (d.predictor_ns > 0) {
      absl::FPrintF(stderr, "; predictors %.1f %% of the time",
                    100 * Share(d.predictor_ns, c.wall_ns));
    }
    const LookAheadStats& a = d.look_ahead;
    if (a.reads > 0) {
      absl::FPrintF(stderr,
                    "; %u bundles read ahead, %.1f %% of them needed, of those %.1f %% in time",
                    a.reads, 100 * Share(a.needed, a.reads), 100 * Share(a.in_time, a.needed));
    }
    if (a.paused > 0) {
      absl::FPrintF(stderr, "; %u times no reading ahead, since too little of it was needed",
                    a.paused);
    }
    if (d.skipped > 0) {
      absl::FPrintF(stderr, "; %.1f %% of the predicted neurons left out unread",
                    100 * Share(d.skipped, d.active_neurons + d.skipped));
    }
  }
  absl::FPrintF(stderr, "\n");
}

}  // namespace

void PrintPlan(const MemoryPlan& plan, bool json) {
  if (json) {
    absl::PrintF("%s\n", PlanJson(plan).dump(2));
    return;
  }
  for (const PlanItem& i : plan.items) {
    absl::PrintF("%-24s %12s  %s\n", i.name, FormatBytes(i.bytes), i.note);
  }
  absl::PrintF("%-24s %12s  of a budget of %s\n", "in all", FormatBytes(plan.total),
               plan.request.budget == UINT64_MAX ? "any size" : FormatBytes(plan.request.budget));
  absl::PrintF("the least budget is %s; ", FormatBytes(plan.minimum));
  if (plan.request.mapped) {
    absl::PrintF("the kernel holds of the weights what it has room for; ");
  } else {
    absl::PrintF("from %s on nothing is read twice; ", FormatBytes(plan.everything));
  }
  absl::PrintF("the program itself takes up to %s more\n", FormatBytes(kProcessBytes));
}

void PrintSummary(const RunReport& run) {
  const GenerationResult& r = run.result;
  absl::FPrintF(stderr, "\n");
  PrintPhase("prefill", r.prefill, run.decoder);
  PrintPhase("decode", r.decode, run.decoder);
  absl::FPrintF(stderr, "load %.1f ms; ", Ms(run.load_ns));
  if (!r.tokens.empty()) {
    absl::FPrintF(stderr, "TTFT %.1f ms after it; TBT p50 %.2f, p95 %.2f, p99 %.2f ms; ",
                  Ms(r.ttft_ns), Ms(Percentile(r.tbt_ns, 0.5)), Ms(Percentile(r.tbt_ns, 0.95)),
                  Ms(Percentile(r.tbt_ns, 0.99)));
  }
  absl::FPrintF(stderr, "%u tokens (%s); peak RSS %s", r.tokens.size(), StopReasonName(r.stop),
                FormatBytes(PeakRss()));
  const uint64_t retries = run.decoder.stats().io_retries;
  if (retries > 0) absl::FPrintF(stderr, "; %u reads retried", retries);
  absl::FPrintF(stderr, "\n");
}

std::string SummaryJson(const RunReport& run, const std::string& model, const std::string& text) {
  const SamplerOptions& s = run.request.sampler;
  const GenerationResult& r = run.result;
  const bool mapped = run.decoder.mapped();
  const Json document = {{"model", model},
                         {"version", SLUICE_VERSION},
                         {"text", text},
                         {"prompt_tokens", run.request.prompt},
                         {"tokens", r.tokens},
                         {"stop", StopReasonName(r.stop)},
                         {"sampler",
                          {{"seed", s.seed},
                           {"temp", s.temperature},
                           {"top_k", s.top_k},
                           {"top_p", s.top_p},
                           {"min_p", s.min_p},
                           {"repeat_penalty", s.repeat_penalty},
                           {"repeat_last_n", s.repeat_last_n}}},
                         {"load_ms", Ms(run.load_ns)},
                         {"ttft_ms", r.tokens.empty() ? Json(nullptr) : Json(Ms(r.ttft_ns))},
                         {"tbt_ms",
                          {{"p50", Ms(Percentile(r.tbt_ns, 0.5))},
                           {"p95", Ms(Percentile(r.tbt_ns, 0.95))},
                           {"p99", Ms(Percentile(r.tbt_ns, 0.99))}}},
                         {"prefill", PhaseJson(r.prefill, mapped)},
                         {"decode", PhaseJson(r.decode, mapped)},
                         {"direct_io", mapped ? Json(nullptr) : Json(run.decoder.reads_directly())},
                         {"peak_rss_bytes", PeakRss()},
                         {"memory_plan", PlanJson(run.plan)},
                         {"notes", run.decoder.Notes()}};
  // A prompt or a path that is not UTF-8 must not spoil the document.
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

uint64_t PeakRss() {
  std::ifstream in("/proc/self/status");
  std::string key;
  while (in >> key) {
    if (key == "VmHWM:") {
      uint64_t kib = 0;
      in >> kib;
      return kib * 1024;
    }
  }
  return 0;
}

}  // namespace sluice
