#include "tools/plan_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

double Mb(double bytes) { return bytes / 1e6; }
double Ms(double ns) { return ns / 1e6; }

Json RowJson(const PlanRow& r) {
  const FlashDemand& d = r.forecast.demand;
  return {{"budget_bytes", r.budget},
          {"planned_bytes", r.plan.total},
          {"cache_slots", r.plan.n_slots},
          {"hit_rate", d.hit_rate},
          {"flash_mb_per_token", Mb(d.bytes())},
          {"flash_operations_per_token", d.stream_operations + d.miss_operations},
          {"stream_mb_per_token", Mb(d.stream_bytes)},
          {"stream_ms_per_token", r.forecast.cost.io_factor * Ms(d.stream_ns)},
          {"miss_ms_per_token", r.forecast.cost.io_factor * Ms(d.miss_ns)},
          {"compute_ms_per_token", Ms(r.forecast.cost.compute_ns)},
          {"io_factor", r.forecast.cost.io_factor},
          {"tokens_per_second", r.forecast.tokens_per_second()},
          {"load_ms", Ms(r.forecast.load_ns)},
          {"ttft_ms", Ms(r.forecast.prefill_ns)},
          {"limit", LimitName(r.limit)},
          {"tokens_per_second_if_doubled",
           {{"compute", r.if_compute}, {"flash", r.if_flash}, {"memory", r.if_memory}}}};
}

}  // namespace

const char* LimitName(Limit limit) {
  switch (limit) {
    case Limit::kCompute:
      return "compute";
    case Limit::kFlash:
      return "flash";
    case Limit::kMemory:
      return "memory";
  }
  return "?";
}

std::string PlanTable(const PlanReport& report) {
  std::string out =
      absl::StrFormat("model        %s, %s\ndevice       %s\nactivations  %s\n", report.model,
                      FormatBytes(report.model_bytes), report.device, report.activations);
  for (const std::string& run : report.measured) absl::StrAppend(&out, "measured     ", run, "\n");
  absl::StrAppendFormat(
      &out,
      "\nWhat follows is modelled; TTFT is for a prompt of %u tokens, after the load. The limit is "
      "what, doubled, would help most.\n%10s %8s %10s %10s %10s %10s %9s %9s  %s\n",
      report.prompt_tokens, "budget", "hit rate", "flash MB/t", "compute ms", "flash ms",
      "tokens/s", "load s", "TTFT s", "limit");
  for (const PlanRow& r : report.rows) {
    const Forecast& f = r.forecast;
    absl::StrAppendFormat(
        &out, "%10s %7.1f%% %10.1f %10.2f %10.2f %10.2f %9.2f %9.2f  %s\n", FormatBytes(r.budget),
        100 * f.demand.hit_rate, Mb(f.demand.bytes()), Ms(f.cost.compute_ns),
        f.cost.io_factor * Ms(f.demand.stream_ns + f.demand.miss_ns), f.tokens_per_second(),
        f.load_ns / 1e9, f.prefill_ns / 1e9, LimitName(r.limit));
  }
  return out;
}

std::string PlanJson(const PlanReport& report) {
  Json rows = Json::array();
  for (const PlanRow& r : report.rows) rows.push_back(RowJson(r));
  const Json document = {{"model", report.model},
                         {"model_bytes", report.model_bytes},
                         {"device", report.device},
                         {"activations", report.activations},
                         {"measured", report.measured},
                         {"prompt_tokens", report.prompt_tokens},
                         {"modelled", true},
                         {"budgets", std::move(rows)}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace sluice
