#include "tools/profile_page.h"

#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/html_page.h"
#include "tools/svg_chart.h"

namespace sluice {
namespace {

using LayerValue = std::function<double(const ProfileLayer&)>;

void AddPoint(size_t x, double y, size_t cell, ChartSeries* series) {
  series->points.push_back({.x = x, .y = y, .low = y, .high = y, .cell = cell});
}

std::string ByLayer(const ProfileReport& report, const std::string& title, const std::string& unit,
                    const std::string& subtitle,
                    const std::vector<std::pair<std::string, LayerValue>>& curves) {
  Chart chart;
  chart.id = chart.title = title;
  chart.subtitle = subtitle;
  chart.x_title = "layer";
  chart.y_title = unit;
  chart.linear = true;
  for (size_t l = 0; l < report.layers.size(); ++l) chart.labels.push_back(absl::StrCat(l));
  for (const auto& [name, value] : curves) {
    ChartSeries series;
    series.name = name;
    for (size_t l = 0; l < report.layers.size(); ++l) {
      AddPoint(l, value(report.layers[l]), l, &series);
    }
    chart.series.push_back(std::move(series));
  }
  return SvgChart(chart);
}

// Curves over a share in percent: of the model, and of its first, middle and last layer.
std::string OverShare(const ProfileReport& report, Chart chart, const std::vector<double>& shares,
                      const std::function<double(const ProfileLayer&, double)>& of_layer,
                      const std::function<double(double)>& of_model) {
  chart.linear = true;
  chart.positions = shares;
  for (const double share : shares) chart.labels.push_back(absl::StrFormat("%g", share));
  const auto add = [&](const std::string& name, size_t cell, const auto& value) {
    ChartSeries series;
    series.name = name;
    for (size_t i = 0; i < shares.size(); ++i) AddPoint(i, value(shares[i]), cell, &series);
    chart.series.push_back(std::move(series));
  };
  add("whole model", report.layers.size(), of_model);
  const size_t n = report.layers.size();
  size_t shown = n;  // none yet
  for (const size_t l : {size_t{0}, n / 2, n - 1}) {
    if (l == shown) continue;
    add(absl::StrCat("layer ", l), l,
        [&](double share) { return of_layer(report.layers[l], share); });
    shown = l;
  }
  return SvgChart(chart);
}

std::string FrequencyChart(const ProfileReport& report) {
  Chart chart;
  chart.id = "frequency";
  chart.title = "Activations that the most active neurons give";
  chart.subtitle =
      absl::StrFormat("%.1f %% of all neurons give 80 %%", 100 * report.mean.neurons_for_80);
  chart.x_title = "most active neurons, %";
  chart.y_title = "% of activations";
  return OverShare(
      report, chart, {0, 2, 5, 10, 15, 20, 26, 35, 45, 55, 65, 80, 100},
      [](const ProfileLayer& l, double share) { return 100 * l.curve.Covered(share / 100); },
      [&](double share) { return 100 * report.curve.Covered(share / 100); });
}

// Share of the pairs, in percent, that are not likelier than that.
double PairsUpTo(const Coactivation& c, double percent) {
  uint64_t n = 0;
  for (uint32_t bin = 0; bin < Coactivation::kBins && bin < percent; ++bin) n += c.pairs[bin];
  return c.n_pairs > 0 ? 100.0 * static_cast<double>(n) / static_cast<double>(c.n_pairs) : 0;
}

std::string CoactivationChart(const ProfileReport& report) {
  if (report.mean.cold.n_pairs == 0) return "";
  Chart chart;
  chart.id = "coactivation";
  chart.title = "Co-activation of cold neurons";
  chart.subtitle = absl::StrFormat(
      "if one of a pair is active, the other is in %.1f %% of cases on average; cold: active for "
      "at "
      "most %.0f %% of the tokens",
      100 * report.mean.cold.mean, 100 * kColdNeuronShare);
  chart.x_title = "active if the other is, at most %";
  chart.y_title = "% of pairs";
  return OverShare(
      report, chart, {0, 2, 5, 10, 15, 20, 30, 40, 50, 60, 80, 100},
      [](const ProfileLayer& l, double share) { return PairsUpTo(l.cold, share); },
      [&](double share) { return PairsUpTo(report.mean.cold, share); });
}

std::string RunChart(const ProfileReport& report) {
  if (report.mean.run_in_source == 0) return "";
  std::vector<std::pair<std::string, LayerValue>> curves = {
      {"order of the source", [](const ProfileLayer& l) { return l.run_in_source; }}};
  if (!report.in_source_order) {
    curves.push_back({"order of the file", [](const ProfileLayer& l) { return l.run_in_file; }});
  }
  return ByLayer(report, "Active neurons side by side", "mean run",
                 absl::StrCat("of held-out tokens; more make larger reads",
                              report.in_source_order
                                  ? "; the file keeps the order of its source, nothing is ordered"
                                  : ""),
                 curves);
}

std::string Row(const std::string& name, const ProfileLayer& l) {
  return absl::StrFormat(
      "<tr><th scope=\"row\">%s</th><td>%.2f</td><td>%.2f</td><td>%.2f</td><td>%.2f</td>"
      "<td>%.2f</td><td>%.2f</td></tr>\n",
      name, 100 * l.sparsity, 100 * l.overlap, 100 * l.neurons_for_80, 100 * l.cold.mean,
      l.run_in_source, l.run_in_file);
}

}  // namespace

std::string ProfilePage(const ProfileReport& report) {
  std::string out = BeginPage(absl::StrCat("sluice profile: ", report.model));
  absl::StrAppendFormat(
      &out,
      "<h1>Which neurons of %s fire</h1><p>Measured on %u training tokens of %s, in sequences of "
      "at most %u; runs on %u held-out ones.</p>\n",
      EscapeHtml(report.model), report.n_train, EscapeHtml(absl::StrJoin(report.texts, ", ")),
      report.sequence_tokens, report.n_held_out_kept);
  out += "<main>\n";
  out += ByLayer(report, "Sparsity", "% of neurons not active for a token", "",
                 {{"", [](const ProfileLayer& l) { return 100 * l.sparsity; }}});
  out += FrequencyChart(report);
  out += ByLayer(report, "Overlap", "% of the active neurons", "active for the token before, too",
                 {{"", [](const ProfileLayer& l) { return 100 * l.overlap; }}});
  out += CoactivationChart(report);
  out += RunChart(report);
  out +=
      "</main>\n<h2>All layers</h2><div class=\"scroll\"><table id=\"layers\"><thead><tr>"
      "<th>layer</th><th>sparsity %</th><th>overlap %</th><th>neurons for 80 %</th>"
      "<th>co-activation %</th><th>run, source</th><th>run, file</th></tr></thead><tbody>\n";
  for (size_t l = 0; l < report.layers.size(); ++l) {
    out += Row(absl::StrCat(l), report.layers[l]);
  }
  out += Row("all", report.mean);
  return absl::StrCat(out, "</tbody></table></div>\n", EndPage(ProfileJson(report)));
}

}  // namespace sluice
