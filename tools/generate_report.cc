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

double FlashMbPerToken(const PhaseCost& c) {
  return c.tokens > 0 ? static_cast<double>(c.flash_bytes) / 1e6 / static_cast<double>(c.tokens)
                      : 0.0;
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
          {"everything_bytes", plan.everything},
          {"total_bytes", plan.total},
          {"context", plan.request.context},
          {"chunk", plan.chunk},
          {"threads", plan.request.n_threads},
          {"cache_slots", plan.n_slots},
          {"items", std::move(items)}};
}

Json PhaseJson(const PhaseCost& c) {
  return {{"tokens", c.tokens},
          {"ms", Ms(c.wall_ns)},
          {"tokens_per_second", c.tokens_per_second()},
          {"stall_ms", Ms(c.stall_ns)},
          {"compute_ms", Ms(c.wall_ns - c.stall_ns)},
          {"io_busy_ms", Ms(c.io_busy_ns)},
          {"flash_bytes", c.flash_bytes},
          {"flash_operations", c.flash_operations},
          {"flash_mb_per_token", FlashMbPerToken(c)},
          {"bundle_hits", c.hits},
          {"bundle_misses", c.misses},
          {"hit_rate", c.hits + c.misses > 0 ? Json(c.hit_rate()) : Json(nullptr)},
          {"active_share", Share(c.active_neurons, c.gated_neurons)},
          {"major_faults", c.major_faults}};
}

void PrintPhase(const char* name, const PhaseCost& c) {
  absl::FPrintF(stderr,
                "%s: %u tokens in %.1f ms, %.2f tokens/s; compute %.0f %%, stall %.0f %%, I/O busy "
                "%.0f %%; %.2f MB/token from flash in %u reads",
                name, c.tokens, Ms(c.wall_ns), c.tokens_per_second(),
                100 * Share(c.wall_ns - c.stall_ns, c.wall_ns), 100 * Share(c.stall_ns, c.wall_ns),
                100 * Share(c.io_busy_ns, c.wall_ns), FlashMbPerToken(c), c.flash_operations);
  if (c.hits + c.misses > 0) absl::FPrintF(stderr, "; hit rate %.1f %%", 100 * c.hit_rate());
  if (c.gated_neurons > 0) {
    absl::FPrintF(stderr, "; %.1f %% of neurons active",
                  100 * Share(c.active_neurons, c.gated_neurons));
  }
  if (c.major_faults > 0) absl::FPrintF(stderr, "; %u major faults", c.major_faults);
  absl::FPrintF(stderr, "\n");
}

}  // namespace

void PrintPlan(const MemoryPlan& plan, bool json) {
  if (json) {
    absl::PrintF("%s\n", PlanJson(plan).dump(2));
    return;
  }
  for (const PlanItem& i : plan.items) {
    absl::FPrintF(stderr, "%-24s %12s  %s\n", i.name, FormatBytes(i.bytes), i.note);
  }
  absl::FPrintF(stderr, "%-24s %12s  of a budget of %s\n", "in all", FormatBytes(plan.total),
                plan.request.budget == UINT64_MAX ? "any size" : FormatBytes(plan.request.budget));
  absl::FPrintF(
      stderr,
      "the least budget is %s; from %s on nothing is read twice; the program itself takes "
      "up to %s more\n",
      FormatBytes(plan.minimum), FormatBytes(plan.everything), FormatBytes(kProcessBytes));
}

void PrintSummary(const GenerationResult& r, const DecoderStats& stats) {
  absl::FPrintF(stderr, "\n");
  PrintPhase("prefill", r.prefill);
  PrintPhase("decode", r.decode);
  absl::FPrintF(stderr,
                "TTFT %.1f ms; TBT p50 %.2f, p95 %.2f, p99 %.2f ms; %u tokens (%s); peak RSS %s",
                Ms(r.ttft_ns), Ms(Percentile(r.tbt_ns, 0.5)), Ms(Percentile(r.tbt_ns, 0.95)),
                Ms(Percentile(r.tbt_ns, 0.99)), r.tokens.size(), StopReasonName(r.stop),
                FormatBytes(PeakRss()));
  if (stats.io_retries > 0) absl::FPrintF(stderr, "; %u reads retried", stats.io_retries);
  absl::FPrintF(stderr, "\n");
}

std::string SummaryJson(const GenerationResult& r, const MemoryPlan& plan,
                        const GenerationRequest& request, const std::vector<std::string>& notes,
                        const std::string& model, const std::string& text) {
  const SamplerOptions& s = request.sampler;
  const Json document = {{"model", model},
                         {"version", SLUICE_VERSION},
                         {"text", text},
                         {"prompt_tokens", request.prompt},
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
                         {"ttft_ms", Ms(r.ttft_ns)},
                         {"tbt_ms",
                          {{"p50", Ms(Percentile(r.tbt_ns, 0.5))},
                           {"p95", Ms(Percentile(r.tbt_ns, 0.95))},
                           {"p99", Ms(Percentile(r.tbt_ns, 0.99))}}},
                         {"prefill", PhaseJson(r.prefill)},
                         {"decode", PhaseJson(r.decode)},
                         {"peak_rss_bytes", PeakRss()},
                         {"memory_plan", PlanJson(plan)},
                         {"notes", notes}};
  // The text is valid UTF-8; a model path need not be.
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
