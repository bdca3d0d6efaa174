#include "tools/plan_page.h"

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/html_page.h"
#include "tools/svg_chart.h"

namespace sluice {
namespace {

using Value = std::function<double(const PlanRow&)>;

std::string OverBudget(const PlanReport& report, const std::string& title, const std::string& unit,
                       const std::vector<std::pair<std::string, Value>>& curves) {
  Chart chart;
  chart.id = title;
  chart.title = title;
  chart.x_title = "memory budget";
  chart.y_title = unit;
  for (const PlanRow& r : report.rows) {
    const double mib = static_cast<double>(r.budget) / (1 << 20);
    chart.labels.push_back(mib < 1000 ? absl::StrFormat("%.3gM", mib)
                                      : absl::StrFormat("%.3gG", mib / 1024));
    chart.positions.push_back(std::log2(mib));
  }
  for (const auto& [name, value] : curves) {
    ChartSeries series;
    series.name = name;
    for (size_t i = 0; i < report.rows.size(); ++i) {
      const double y = value(report.rows[i]);
      series.points.push_back({.x = i, .y = y, .low = y, .high = y, .cell = i});
    }
    chart.series.push_back(std::move(series));
  }
  return SvgChart(chart);
}

std::string Row(const PlanRow& r) {
  const Forecast& f = r.forecast;
  return absl::StrFormat(
      "<tr><th scope=\"row\">%s</th><td>%.2f</td><td>%.1f</td><td>%.1f</td><td>%.2f</td>"
      "<td>%.2f</td><td>%.2f</td><td>%.2f</td><td class=\"text\">%s</td></tr>\n",
      FormatBytes(r.budget), f.tokens_per_second(), 100 * f.demand.hit_rate, f.demand.bytes() / 1e6,
      f.cost.compute_ns / 1e6, f.cost.io_factor * (f.demand.stream_ns + f.demand.miss_ns) / 1e6,
      f.load_ns / 1e9, f.prefill_ns / 1e9, LimitName(r.limit));
}

}  // namespace

std::string PlanPage(const PlanReport& report) {
  std::string out = BeginPage(absl::StrCat("sluice plan: ", report.model));
  absl::StrAppendFormat(
      &out,
      "<h1>%s (%s) by memory budget</h1><p>Modelled for %s; activations: %s. TTFT "
      "is for a prompt of %u tokens, after the load.</p>\n",
      EscapeHtml(report.model), FormatBytes(report.model_bytes), EscapeHtml(report.device),
      EscapeHtml(report.activations), report.prompt_tokens);
  for (const std::string& run : report.measured) {
    absl::StrAppend(&out, "<p class=\"dim\">Measured: ", EscapeHtml(run), "</p>\n");
  }
  out += "<main>\n";
  out += OverBudget(report, "Speed", "tokens/s",
                    {{"as it is", [](const PlanRow& r) { return r.forecast.tokens_per_second(); }},
                     {"computing twice as fast", [](const PlanRow& r) { return r.if_compute; }},
                     {"flash twice as fast", [](const PlanRow& r) { return r.if_flash; }}});
  out += OverBudget(report, "Read from flash", "MB/token",
                    {{"in all", [](const PlanRow& r) { return r.forecast.demand.bytes() / 1e6; }}});
  out += OverBudget(report, "Hit rate", "%",
                    {{"of the bundles that a token needs",
                      [](const PlanRow& r) { return 100 * r.forecast.demand.hit_rate; }}});
  out +=
      "</main>\n<h2>All budgets</h2><div class=\"scroll\"><table id=\"budgets\"><thead><tr>"
      "<th>budget</th><th>tokens/s</th><th>hit rate %</th><th>flash MB/token</th>"
      "<th>compute ms</th><th>flash ms</th><th>load s</th><th>TTFT s</th><th>limit</th></tr>"
      "</thead><tbody>\n";
  for (const PlanRow& r : report.rows) out += Row(r);
  return absl::StrCat(out, "</tbody></table></div>\n", EndPage(PlanJson(report)));
}

}  // namespace sluice
