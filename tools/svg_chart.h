// A line chart as an SVG element, coloured by the style of the page around it: classes s0 .. s7 for
// the series, "axis" for text, "grid" for lines, "doubt" for points that are drawn hollow.
#ifndef SLUICE_TOOLS_SVG_CHART_H_
#define SLUICE_TOOLS_SVG_CHART_H_

#include <string>
#include <string_view>
#include <vector>

namespace sluice {

constexpr size_t kChartColours = 8;

struct ChartPoint {
  size_t x = 0;                     // index in the labels
  double y = 0, low = 0, high = 0;  // the value and its spread
  size_t cell = 0;                  // the row of the table that holds it, kept as data-cell
  bool doubt = false;
};

struct ChartSeries {
  std::string name;
  std::vector<ChartPoint> points;  // in rising x
};

struct Chart {
  std::string id;  // kept as data-chart
  std::string title, subtitle, x_title, y_title;
  std::vector<std::string> labels;  // of the places on the x axis
  // Where the places are, rising, in any unit; empty: evenly spaced.
  std::vector<double> positions;
  std::vector<ChartSeries> series;
  // Points of other charts, which the y axis has room for too, so that the charts compare.
  ChartSeries same_scale_as;
  bool linear = false;  // the y axis begins at 0, however small values are
};

// The values are not negative. The y axis begins at 0, or is logarithmic, and says so, where values
// differ so much that the small ones would lie on the ground.
std::string SvgChart(const Chart& chart);

// Text for HTML and SVG: &, <, >, quotes escaped.
std::string EscapeHtml(std::string_view text);

}  // namespace sluice

#endif  // SLUICE_TOOLS_SVG_CHART_H_
