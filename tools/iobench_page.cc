#include "tools/iobench_page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "io/suite/axes.h"
#include "tools/html_page.h"
#include "tools/svg_chart.h"

namespace sluice {
namespace {

// What a cell is, in words, one for each axis of the suite.
constexpr size_t kFacets = 8;
using Facets = std::array<std::string, kFacets>;

std::string PatternOf(const LoadSpec& s) { return s.random ? "random" : "sequential"; }
std::string CoreOf(const LoadSpec& s) { return s.core < 0 ? "any" : absl::StrCat(s.core); }

Facets FacetsOf(const CellResult& c) {
  const LoadSpec& s = c.spec;
  // Cells that were to be direct and are not are no repeats of those that were not to be.
  const char* const direct = c.load.direct ? "direct" : s.direct ? "not direct" : "buffered";
  return {PatternOf(s),
          std::string(LoadEngineName(s.engine)),
          direct,
          ShortSize(s.block),
          absl::StrCat("in ", ShortSize(s.range)),
          absl::StrCat("depth ", s.depth),
          s.core < 0 ? "any core" : absl::StrCat("core ", s.core),
          s.n_jobs == 1 ? "1 thread" : absl::StrCat(s.n_jobs, " threads")};
}

// An axis that has curves: where a cell is on it.
struct CurveAxis {
  const char* flag;
  const char* title;
  size_t facet;
  bool logarithmic;
  std::function<uint64_t(const LoadSpec&)> key;
  std::function<std::string(const LoadSpec&)> label;
};

std::vector<CurveAxis> CurveAxes() {
  return {
      {"bs", "block size", 3, true, [](const LoadSpec& s) { return uint64_t{s.block}; },
       [](const LoadSpec& s) { return ShortSize(s.block); }},
      {"size", "range", 4, true, [](const LoadSpec& s) { return s.range; },
       [](const LoadSpec& s) { return ShortSize(s.range); }},
      {"iodepth", "depth", 5, true, [](const LoadSpec& s) { return uint64_t{s.depth}; },
       [](const LoadSpec& s) { return absl::StrCat(s.depth); }},
      {"cpus", "core", 6, false,
       [](const LoadSpec& s) { return static_cast<uint64_t>(s.core + 1); }, CoreOf},
      {"numjobs", "threads", 7, true,
       [](const LoadSpec& s) { return static_cast<uint64_t>(s.n_jobs); },
       [](const LoadSpec& s) { return absl::StrCat(s.n_jobs); }},
  };
}

// Cells that differ in one axis only.
struct Curve {
  Facets facets;  // that of the axis is empty
  std::vector<ChartPoint> points;
};

using FacetSet = std::array<bool, kFacets>;

// The facets in which these are not all alike.
template <typename Range, typename F>
FacetSet Varying(const Range& items, F facets_of) {
  FacetSet varying = {};
  for (const auto& item : items) {
    const Facets facets = facets_of(item), first = facets_of(*std::begin(items));
    for (size_t f = 0; f < kFacets; ++f) varying[f] = varying[f] || facets[f] != first[f];
  }
  return varying;
}

FacetSet VaryingOf(const std::vector<Curve>& curves) {
  return Varying(curves, [](const Curve& c) { return c.facets; });
}

// "random, depth 32": those of the facets that are `shown`.
std::string Describe(const Facets& facets, const FacetSet& shown) {
  std::vector<std::string> words;
  for (size_t f = 0; f < kFacets; ++f) {
    if (shown[f] && !facets[f].empty()) words.push_back(facets[f]);
  }
  return absl::StrJoin(words, ", ");
}

// In the order of their places on the other axes. A single point is no curve.
std::vector<Curve> CurvesOver(const IobenchReport& report, const CurveAxis& axis,
                              const std::map<uint64_t, size_t>& places) {
  std::vector<Curve> curves;
  std::map<Facets, size_t> index;
  for (size_t i = 0; i < report.cells.size(); ++i) {
    const CellResult& c = report.cells[i];
    const CellFigures figures = FiguresOf(c);
    if (!figures.rate) continue;
    Facets facets = FacetsOf(c);
    facets[axis.facet].clear();
    const auto [at, is_new] = index.emplace(facets, curves.size());
    if (is_new) curves.push_back({facets, {}});
    curves[at->second].points.push_back({places.at(axis.key(c.spec)), *figures.rate,
                                         *figures.rate_p5, *figures.rate_p95, i,
                                         !c.reads_device()});
  }
  std::erase_if(curves, [](const Curve& c) { return c.points.size() < 2; });
  for (Curve& c : curves) {
    std::sort(c.points.begin(), c.points.end(),
              [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
  }
  const auto place = [&](const Curve& c) {
    const LoadSpec& s = report.cells[c.points[0].cell].spec;
    return std::tuple(s.random, s.engine, s.direct, s.block, s.range, s.depth, s.core, s.n_jobs);
  };
  std::stable_sort(curves.begin(), curves.end(),
                   [&](const Curve& a, const Curve& b) { return place(a) < place(b); });
  return curves;
}

// Charts of no more curves than there are colours: split by the facet with the fewest values.
// `frame` has all but the series; what the curves of a chart have in common, of what differs in the
// report (`told`), is its subtitle.
void AppendCharts(const Chart& frame, const FacetSet& told, const std::vector<Curve>& curves,
                  std::string& out) {
  const FacetSet varying = VaryingOf(curves);
  if (curves.size() > kChartColours) {
    std::vector<std::vector<Curve>> fewest;
    for (size_t f = 0; f < kFacets; ++f) {
      if (!varying[f]) continue;
      std::map<std::string, size_t> index;
      std::vector<std::vector<Curve>> parts;
      for (const Curve& c : curves) {
        const auto [at, is_new] = index.emplace(c.facets[f], parts.size());
        if (is_new) parts.emplace_back();
        parts[at->second].push_back(c);
      }
      if (fewest.empty() || parts.size() < fewest.size()) fewest = std::move(parts);
    }
    for (const std::vector<Curve>& part : fewest) AppendCharts(frame, told, part, out);
    return;
  }
  Chart chart = frame;
  FacetSet common;
  for (size_t f = 0; f < kFacets; ++f) common[f] = told[f] && !varying[f];
  chart.subtitle = Describe(curves[0].facets, common);
  for (const Curve& c : curves) chart.series.push_back({Describe(c.facets, varying), c.points});
  out += SvgChart(chart);
}

void AppendChartsOver(const IobenchReport& report, const CurveAxis& axis, const FacetSet& told,
                      std::string& out) {
  Chart frame;
  frame.id = axis.flag;
  frame.title = absl::StrCat("Throughput by ", axis.title);
  frame.x_title = axis.title;
  frame.y_title = "MB/s";
  std::map<uint64_t, std::string> labels;
  for (const CellResult& c : report.cells) labels[axis.key(c.spec)] = axis.label(c.spec);
  std::map<uint64_t, size_t> places;
  for (const auto& [key, label] : labels) {
    places[key] = frame.labels.size();
    frame.labels.push_back(label);
    if (axis.logarithmic) frame.positions.push_back(std::log2(static_cast<double>(key)));
  }
  const std::vector<Curve> curves = CurvesOver(report, axis, places);
  for (const Curve& c : curves) {
    std::vector<ChartPoint>& all = frame.same_scale_as.points;
    all.insert(all.end(), c.points.begin(), c.points.end());
  }
  if (!curves.empty()) AppendCharts(frame, told, curves, out);
}

void AppendHead(const IobenchReport& report, const FacetSet& told, std::string& out) {
  const std::string file = EscapeHtml(report.file);
  absl::StrAppendFormat(&out, "%s<h1>Storage under %s</h1><p>%s on %s (%s); %s</p>\n",
                        BeginPage(absl::StrCat("sluice iobench: ", report.file)), file,
                        ShortSize(report.file_bytes),
                        report.file_system.type.empty() ? "an unknown file system"
                                                        : EscapeHtml(report.file_system.type),
                        EscapeHtml(report.file_system.source), EscapeHtml(report.kernel));
  absl::StrAppendFormat(&out,
                        "<details class=\"dim\"><summary>Mount options</summary>%s</details>\n",
                        EscapeHtml(report.file_system.options));
  if (report.ended) {
    absl::StrAppendFormat(&out, "<p class=\"warn\">Ended early, after %u of %u cells: %s</p>\n",
                          report.cells.size(), report.n_planned, EscapeHtml(*report.ended));
  }
  if (report.cells.empty()) return;
  FacetSet common;
  for (size_t f = 0; f < kFacets; ++f) common[f] = !told[f];
  const LoadSpec& first = report.cells[0].spec;
  absl::StrAppendFormat(
      &out,
      "<p class=\"dim\">All cells: %s%s. Points are medians of the repeats, bars "
      "p5 to p95%s.</p>\n",
      EscapeHtml(Describe(FacetsOf(report.cells[0]), common)),
      first.offset > 0 ? absl::StrCat(", from byte ", first.offset, " on") : "",
      std::all_of(report.cells.begin(), report.cells.end(),
                  [](const CellResult& c) { return c.reads_device(); })
          ? ""
          : "; hollow points and coloured rows read the page cache or holes, not the device");
}

constexpr char kUnknown[] = "\u2013";

std::string Fixed(const std::optional<double>& value, int decimals) {
  return value ? absl::StrFormat("%.*f", decimals, *value) : kUnknown;
}

// What a column of the table says of a cell.
struct Column {
  const char* head;
  const char* style;  // of the cells, as an attribute
  std::function<std::string(const CellResult&, const CellFigures&)> text;
};

std::vector<Column> CellColumns() {
  using C = CellResult;
  using F = CellFigures;
  return {
      {"depth", "", [](const C& c, const F&) { return absl::StrCat(c.spec.depth); }},
      {"range", "", [](const C& c, const F&) { return ShortSize(c.spec.range); }},
      {"MB/s", "", [](const C&, const F& f) { return Fixed(f.rate, 1); }},
      {"p5\u2013p95", "",
       [](const C&, const F& f) {
         return absl::StrCat(Fixed(f.rate_p5, 1), "\u2013", Fixed(f.rate_p95, 1));
       }},
      {"IOPS", "", [](const C&, const F& f) { return Fixed(f.iops, 0); }},
      {"p50 \u00b5s", "", [](const C&, const F& f) { return Fixed(f.p50, 1); }},
      {"p95 \u00b5s", "", [](const C&, const F& f) { return Fixed(f.p95, 1); }},
      {"p99 \u00b5s", "", [](const C&, const F& f) { return Fixed(f.p99, 1); }},
      {"max \u00b5s", "", [](const C&, const F& f) { return Fixed(f.max, 1); }},
      {"CPU \u00b5s/read", "", [](const C&, const F& f) { return Fixed(f.cpu, 2); }},
      {"threads", "", [](const C& c, const F&) { return absl::StrCat(c.spec.n_jobs); }},
      {"core", "", [](const C& c, const F&) { return CoreOf(c.spec); }},
      {"direct", "", [](const C& c, const F&) { return c.load.direct ? "yes" : "no"; }},
      {"clock MHz", "",
       [](const C& c, const F&) {
         return c.after.frequency_mhz ? absl::StrCat(*c.after.frequency_mhz) : kUnknown;
       }},
      {"heat \u00b0C", "", [](const C& c, const F&) { return Fixed(c.after.temperature_c, 1); }},
      {"free MiB", "",
       [](const C& c, const F&) {
         return c.after.available_memory > 0 ? absl::StrCat(c.after.available_memory >> 20)
                                             : kUnknown;
       }},
      {"engine", " class=\"text\"",
       [](const C& c, const F&) { return EscapeHtml(c.load.engine_note); }},
      {"remarks", " class=\"text warn\"",
       [](const C& c, const F&) { return EscapeHtml(absl::StrJoin(Remarks(c), "; ")); }},
  };
}

void AppendTable(const IobenchReport& report, std::string& out) {
  out += "<h2>All cells</h2><div class=\"scroll\"><table id=\"cells\"><thead><tr><th>reads</th>";
  const std::vector<Column> columns = CellColumns();
  for (const Column& column : columns) absl::StrAppend(&out, "<th>", column.head, "</th>");
  out += "</tr></thead><tbody>\n";
  for (const CellResult& c : report.cells) {
    const CellFigures figures = FiguresOf(c);
    // Remarks may be out of sight, at the end of the row.
    absl::StrAppendFormat(&out, "<tr%s><th scope=\"row\">%s %s</th>",
                          c.reads_device() ? "" : " class=\"doubt\"", PatternOf(c.spec),
                          ShortSize(c.spec.block));
    for (const Column& column : columns) {
      absl::StrAppend(&out, "<td", column.style, ">", column.text(c, figures), "</td>");
    }
    out += "</tr>\n";
  }
  out += "</tbody></table></div>\n";
}

void AppendEffects(const IobenchReport& report, std::string& out) {
  if (report.effects.empty()) return;
  out +=
      "<h2>What made a difference</h2><p class=\"dim\">Throughput between cells that differ in "
      "nothing else.</p><div class=\"scroll\"><table id=\"effects\"><thead><tr><th>axis</th>"
      "<th>ratio</th><th>verdict</th><th>95 % interval</th><th>over</th></tr></thead><tbody>\n";
  for (const AxisEffect& e : report.effects) {
    absl::StrAppendFormat(&out,
                          "<tr><th scope=\"row\">%s %s \u2192 %s</th><td>\u00d7%.3f</td>"
                          "<td class=\"text\">%s</td><td>%.3f\u2013%.3f</td>"
                          "<td class=\"text\">%s</td></tr>\n",
                          EscapeHtml(e.axis), EscapeHtml(e.from), EscapeHtml(e.to), e.ratio,
                          EffectVerdictName(e.verdict), e.low, e.high, EffectBasis(e));
  }
  out += "</tbody></table></div>\n";
}

}  // namespace

std::string IobenchPage(const IobenchReport& report) {
  const FacetSet told = Varying(report.cells, FacetsOf);
  std::string out;
  AppendHead(report, told, out);
  out += "<main>\n";
  for (const CurveAxis& axis : CurveAxes()) AppendChartsOver(report, axis, told, out);
  out += "</main>\n";
  AppendTable(report, out);
  AppendEffects(report, out);
  return absl::StrCat(out, EndPage(IobenchJson(report)));
}

}  // namespace sluice
