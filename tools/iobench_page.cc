#include "tools/iobench_page.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "io/suite/axes.h"
#include "tools/svg_chart.h"

namespace sluice {
namespace {

constexpr char kStyle[] = R"(
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#667;--line:#dde;--warn:#b3261e}
@media(prefers-color-scheme:dark){:root{--bg:#14171c;--fg:#e6e8ec;--dim:#99a;--line:#333a44;--warn:#ffb4ab}}
body{margin:0 auto;padding:12px;max-width:1100px;background:var(--bg);color:var(--fg);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.3rem;margin:0}main{display:grid;grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:16px}
figure{margin:0}figcaption{font-weight:600}small,.dim{color:var(--dim);font-weight:400}
svg{width:100%;height:auto}.axis{fill:var(--dim);font-size:11px}.grid{stroke:var(--line)}
polyline{fill:none;stroke:currentColor;stroke-width:2}svg g line{stroke:currentColor}
circle{fill:currentColor}.legend{margin:0;font-size:.85rem}.warn{color:var(--warn)}
.s0{color:#2463c5}.s1{color:#c2571a}.s2{color:#2a8a4a}.s3{color:#8a3fb0}
.s4{color:#b08a00}.s5{color:#00869b}.s6{color:#b03060}.s7{color:#6b7280}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.85rem}
td,th{padding:2px 8px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
)";

// An axis of the suite: how a cell's place on it reads and sorts.
struct PageAxis {
  const char* title;
  std::function<uint64_t(const LoadSpec&)> key;
  std::function<std::string(const LoadSpec&)> label;
};

std::string PatternOf(const LoadSpec& s) { return s.random ? "random" : "sequential"; }
std::string CoreOf(const LoadSpec& s) { return s.core < 0 ? "any" : absl::StrCat(s.core); }

std::vector<PageAxis> CurveAxes() {
  return {
      {"block size", [](const LoadSpec& s) { return uint64_t{s.block}; },
       [](const LoadSpec& s) { return FormatSize(s.block); }},
      {"range", [](const LoadSpec& s) { return s.range; },
       [](const LoadSpec& s) { return FormatSize(s.range); }},
      {"reads in flight", [](const LoadSpec& s) { return uint64_t{s.depth}; },
       [](const LoadSpec& s) { return absl::StrCat(s.depth); }},
      {"core", [](const LoadSpec& s) { return static_cast<uint64_t>(s.core + 1); }, CoreOf},
      {"threads", [](const LoadSpec& s) { return static_cast<uint64_t>(s.n_jobs); },
       [](const LoadSpec& s) { return absl::StrCat(s.n_jobs); }},
  };
}

// What a cell is apart from its place on one axis: cells of one series agree in it.
std::string SeriesName(const LoadSpec& s, size_t without) {
  std::string name = absl::StrCat(PatternOf(s), s.direct ? "" : " buffered");
  if (s.engine != LoadEngine::kUring)
    absl::StrAppend(&name, " ", std::string(LoadEngineName(s.engine)));
  if (without != 0) absl::StrAppend(&name, ", ", FormatSize(s.block));
  if (without != 1) absl::StrAppend(&name, " in ", FormatSize(s.range));
  if (without != 2) absl::StrAppend(&name, ", depth ", s.depth);
  if (without != 3 && s.core >= 0) absl::StrAppend(&name, ", core ", s.core);
  if (without != 4 && s.n_jobs > 1) absl::StrAppend(&name, ", ", s.n_jobs, " threads");
  return name;
}

Chart CurveOver(const IobenchReport& report, size_t axis_index, const PageAxis& axis) {
  Chart chart;
  chart.title = absl::StrCat("Throughput by ", axis.title);
  chart.x_title = axis.title;
  chart.y_title = "MB/s";
  std::map<uint64_t, std::string> places;
  for (const CellResult& c : report.cells) places[axis.key(c.spec)] = axis.label(c.spec);
  std::map<uint64_t, size_t> index;
  for (const auto& [key, label] : places) {
    index[key] = chart.labels.size();
    chart.labels.push_back(label);
  }
  std::map<std::string, ChartSeries> series;
  for (const CellResult& c : report.cells) {
    const std::string name = SeriesName(c.spec, axis_index);
    const Spread rate = c.megabytes_per_second();
    series[name].name = name;
    series[name].points.push_back({index[axis.key(c.spec)], rate.median, rate.p5, rate.p95});
  }
  for (auto& [name, s] : series) {
    if (s.points.size() < 2) continue;  // no curve
    std::sort(s.points.begin(), s.points.end(),
              [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
    chart.series.push_back(std::move(s));
  }
  return chart;
}

std::string CellRow(const CellResult& c) {
  const Spread rate = c.megabytes_per_second();
  const LatencyHistogram latency = c.latency();
  const auto us = [](uint64_t ns) { return static_cast<double>(ns) / 1e3; };
  return absl::StrFormat(
      "<tr><td>%s<td>%s<td>%s<td>%s<td>%s<td>%d<td>%d<td>%s<td>%.1f<td>%.1f&ndash;%.1f<td>%.0f<td>%"
      ".1f"
      "<td>%.1f<td>%.2f<td class=\"warn\">%s</tr>\n",
      PatternOf(c.spec), LoadEngineName(c.spec.engine), c.load.direct ? "yes" : "no",
      FormatSize(c.spec.block), FormatSize(c.spec.range), c.spec.depth, c.spec.n_jobs,
      CoreOf(c.spec), rate.median, rate.p5, rate.p95, c.operations_per_second().median,
      us(latency.Percentile(0.5)), us(latency.Percentile(0.99)), c.cpu_us_per_operation(),
      c.reads_cache() ? "reads the cache" : "");
}

}  // namespace

std::string IobenchPage(const IobenchReport& report) {
  std::string out = absl::StrFormat(
      "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><title>sluice iobench: %s</title>"
      "<style>%s</style><h1>Storage under %s</h1><p class=\"dim\">%s; %s on %s (%s); %s</p><main>",
      EscapeHtml(report.file), kStyle, EscapeHtml(report.file), FormatSize(report.file_bytes),
      EscapeHtml(report.file_system.type), EscapeHtml(report.file_system.source),
      EscapeHtml(report.file_system.options), EscapeHtml(report.kernel));
  const std::vector<PageAxis> axes = CurveAxes();
  for (size_t a = 0; a < axes.size(); ++a) {
    const Chart chart = CurveOver(report, a, axes[a]);
    if (chart.labels.size() > 1 && !chart.series.empty()) out += SvgChart(chart);
  }
  out +=
      "</main><div class=\"scroll\"><table><tr><th>pattern<th>engine<th>direct<th>block<th>range"
      "<th>depth<th>threads<th>core<th>MB/s<th>p5&ndash;p95<th>IOPS<th>p50 &micro;s<th>p99 &micro;s"
      "<th>CPU &micro;s/read<th></tr>\n";
  for (const CellResult& c : report.cells) out += CellRow(c);
  out += "</table></div>";
  for (const AxisEffect& e : report.effects) {
    absl::StrAppendFormat(&out, "<p>%s from %s to %s: &times;%.3f [%.3f, %.3f], %s</p>\n",
                          EscapeHtml(e.axis), EscapeHtml(e.from), EscapeHtml(e.to), e.ratio, e.low,
                          e.high, EffectVerdictName(e.verdict));
  }
  // "</script" inside the document would end it.
  return absl::StrCat(out, "<script type=\"application/json\" id=\"data\">",
                      absl::StrReplaceAll(IobenchJson(report), {{"</", "<\\/"}}),
                      "</script></html>\n");
}

}  // namespace sluice
