// A line chart as an SVG element, coloured by the style of the page around it (classes s0 .. s7 for
// the series, "axis" and "grid").
#ifndef SLUICE_TOOLS_SVG_CHART_H_
#define SLUICE_TOOLS_SVG_CHART_H_

#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct ChartPoint {
  size_t x = 0;                     // index in the labels
  double y = 0, low = 0, high = 0;  // the value and its spread
};

struct ChartSeries {
  std::string name;
  std::vector<ChartPoint> points;  // in rising x
};

struct Chart {
  std::string title, x_title, y_title;
  std::vector<std::string> labels;  // of the places on the x axis, evenly spaced
  std::vector<ChartSeries> series;
};

// The values are not negative.
std::string SvgChart(const Chart& chart);

// Text for HTML and SVG: &, <, >, quotes escaped.
std::string EscapeHtml(std::string_view text);

}  // namespace sluice

#endif  // SLUICE_TOOLS_SVG_CHART_H_
