#include "tools/svg_chart.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice {
namespace {

// In units of the view box; a phone shows it 1:1.
constexpr double kWidth = 360, kHeight = 240;
constexpr double kLeft = 48, kRight = 8, kTop = 8, kBottom = 36;
constexpr size_t kColours = 8;

// 1, 2 or 5 times a power of ten, so that about four of them make `top`.
double NiceStep(double top) {
  const double raw = std::max(top, 1e-9) / 4;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

class Scale {
 public:
  Scale(size_t n_labels, double top) : n_(n_labels), top_(top) {}
  double X(size_t label) const {
    const double width = kWidth - kLeft - kRight;
    return kLeft + width * (static_cast<double>(label) + 0.5) / static_cast<double>(n_);
  }
  double Y(double value) const {
    return kHeight - kBottom - (kHeight - kTop - kBottom) * value / top_;
  }

 private:
  const size_t n_;
  const double top_;
};

void AppendGrid(const Chart& chart, const Scale& scale, double step, double top, std::string& out) {
  for (double y = 0; y <= top * 1.0001; y += step) {
    absl::StrAppendFormat(&out,
                          "<line class=\"grid\" x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\"/>",
                          kLeft, kWidth - kRight, scale.Y(y), scale.Y(y));
    absl::StrAppendFormat(&out,
                          "<text class=\"axis\" x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%g</text>",
                          kLeft - 4, scale.Y(y) + 4, y);
  }
  // Labels that would run into each other are left out.
  const size_t every = (chart.labels.size() + 8) / 9;
  for (size_t i = 0; i < chart.labels.size(); i += every) {
    absl::StrAppendFormat(
        &out, "<text class=\"axis\" x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%s</text>",
        scale.X(i), kHeight - kBottom + 14, EscapeHtml(chart.labels[i]));
  }
  absl::StrAppendFormat(&out,
                        "<text class=\"axis\" x=\"%g\" y=\"%g\" text-anchor=\"middle\">%s</text>",
                        (kLeft + kWidth - kRight) / 2, kHeight - 6, EscapeHtml(chart.x_title));
}

void AppendSeries(const Chart& chart, const ChartSeries& series, size_t colour, const Scale& scale,
                  std::string& out) {
  absl::StrAppendFormat(&out, "<g class=\"s%d\"><polyline points=\"", colour);
  for (const ChartPoint& p : series.points) {
    absl::StrAppendFormat(&out, "%.1f,%.1f ", scale.X(p.x), scale.Y(p.y));
  }
  out += "\"/>";
  for (const ChartPoint& p : series.points) {
    absl::StrAppendFormat(&out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>",
                          scale.X(p.x), scale.X(p.x), scale.Y(p.low), scale.Y(p.high));
    absl::StrAppendFormat(
        &out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>%s, %s %s: %.1f %s</title></circle>",
        scale.X(p.x), scale.Y(p.y), EscapeHtml(series.name), EscapeHtml(chart.x_title),
        EscapeHtml(chart.labels[p.x]), p.y, EscapeHtml(chart.y_title));
  }
  out += "</g>";
}

}  // namespace

std::string EscapeHtml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string SvgChart(const Chart& chart) {
  double highest = 0;
  for (const ChartSeries& s : chart.series) {
    for (const ChartPoint& p : s.points) highest = std::max({highest, p.y, p.high});
  }
  const double step = NiceStep(highest);
  const double top = std::max(std::ceil(highest / step), 1.0) * step;
  const Scale scale(std::max<size_t>(chart.labels.size(), 1), top);
  std::string out = absl::StrFormat(
      "<figure><figcaption>%s <small>%s</small></figcaption><svg viewBox=\"0 0 %g %g\" "
      "role=\"img\" "
      "aria-label=\"%s\">",
      EscapeHtml(chart.title), EscapeHtml(chart.y_title), kWidth, kHeight, EscapeHtml(chart.title));
  AppendGrid(chart, scale, step, top, out);
  for (size_t s = 0; s < chart.series.size(); ++s) {
    AppendSeries(chart, chart.series[s], s % kColours, scale, out);
  }
  out += "</svg><p class=\"legend\">";
  for (size_t s = 0; s < chart.series.size(); ++s) {
    absl::StrAppendFormat(&out, "<span class=\"s%d\">&#9632; %s</span> ", s % kColours,
                          EscapeHtml(chart.series[s].name));
  }
  return out + "</p></figure>";
}

}  // namespace sluice
