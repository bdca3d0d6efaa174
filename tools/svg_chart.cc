#include "tools/svg_chart.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice {
namespace {

// In units of the view box; a phone shows it 1:1.
constexpr double kWidth = 360, kHeight = 250;
constexpr double kLeft = 44, kRight = 6, kTop = 10, kBottom = 40;
constexpr double kInset = 16;          // of the first and the last place
constexpr double kCharacterWidth = 8;  // of an axis label, at most
constexpr double kLogRatio = 20;       // from which on the y axis is logarithmic

// 1, 2 or 5 times a power of ten, so that about four of them make `top`.
double NiceStep(double top) {
  const double raw = std::max(top, 1e-9) / 4;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

// The values at which the y axis has lines; the first is its lower end, the last its upper.
struct YAxis {
  bool logarithmic = false;
  std::vector<double> ticks;

  // 0 at the lower end, 1 at the upper.
  double At(double value) const {
    const double low = ticks.front(), high = ticks.back();
    if (!logarithmic) return (value - low) / (high - low);
    return std::log(std::max(value, low) / low) / std::log(high / low);
  }
};

// Powers of ten, and 2 and 5 times those if they are few.
YAxis LogAxis(double lowest, double highest) {
  YAxis axis;
  axis.logarithmic = true;
  const bool few = highest / lowest < 1000;
  for (double power = std::pow(10, std::floor(std::log10(lowest)));; power *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor > 1 && !few) continue;
      const double tick = factor * power;
      if (tick <= lowest) axis.ticks.clear();
      axis.ticks.push_back(tick);
      if (tick >= highest && axis.ticks.size() > 1) return axis;
    }
  }
}

YAxis AxisOf(const Chart& chart) {
  double lowest = INFINITY, highest = 0;
  const auto see = [&](const ChartSeries& s) {
    for (const ChartPoint& p : s.points) {
      highest = std::max({highest, p.y, p.high});
      // Zeros lie on the ground of a logarithmic axis.
      if (p.y > 0) lowest = std::min(lowest, std::max(p.low, p.y / 2));
    }
  };
  for (const ChartSeries& s : chart.series) see(s);
  see(chart.same_scale_as);
  if (!chart.linear && highest > kLogRatio * lowest) return LogAxis(lowest, highest);
  YAxis axis;
  const double step = NiceStep(highest);
  for (int i = 0; i == 0 || axis.ticks.back() < highest || i < 2; ++i) {
    axis.ticks.push_back(i * step);
  }
  return axis;
}

class Scale {
 public:
  Scale(const Chart& chart, YAxis y) : places_(chart.positions), y_(std::move(y)) {
    if (places_.size() == chart.labels.size()) return;
    places_.clear();
    for (size_t i = 0; i < chart.labels.size(); ++i) places_.push_back(static_cast<double>(i));
  }
  double X(size_t label) const {
    const double left = kLeft + kInset, right = kWidth - kRight - kInset;
    const double span = places_.back() - places_.front();
    if (span <= 0) return (left + right) / 2;
    return left + (right - left) * (places_[label] - places_.front()) / span;
  }
  double Y(double value) const {
    return kHeight - kBottom - (kHeight - kTop - kBottom) * y_.At(value);
  }
  const YAxis& y_axis() const { return y_; }

 private:
  std::vector<double> places_;
  YAxis y_;
};

// The labels that have room beside each other; the last one in any case.
std::vector<size_t> LabelsThatFit(const Chart& chart, const Scale& scale) {
  const auto left = [&](size_t i) {
    return scale.X(i) - kCharacterWidth * static_cast<double>(chart.labels[i].size() + 1) / 2;
  };
  const auto right = [&](size_t i) { return 2 * scale.X(i) - left(i); };
  std::vector<size_t> shown;
  for (size_t i = 0; i < chart.labels.size(); ++i) {
    const bool is_last = i + 1 == chart.labels.size();
    while (is_last && !shown.empty() && left(i) < right(shown.back())) shown.pop_back();
    if (shown.empty() || left(i) >= right(shown.back())) shown.push_back(i);
  }
  return shown;
}

// "10k" for 10000: long numbers have no room beside the axis.
std::string TickText(double value) {
  return value >= 10'000 ? absl::StrFormat("%gk", value / 1000) : absl::StrFormat("%g", value);
}

void AppendAxisText(double x, double y, const char* anchor, const std::string& text,
                    std::string& out) {
  absl::StrAppendFormat(&out,
                        "<text class=\"axis\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>",
                        x, y, anchor, EscapeHtml(text));
}

void AppendGrid(const Chart& chart, const Scale& scale, std::string& out) {
  for (const double y : scale.y_axis().ticks) {
    absl::StrAppendFormat(&out,
                          "<line class=\"grid\" x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\"/>",
                          kLeft, kWidth - kRight, scale.Y(y), scale.Y(y));
    AppendAxisText(kLeft - 5, scale.Y(y) + 4, "end", TickText(y), out);
  }
  for (const size_t i : LabelsThatFit(chart, scale)) {
    AppendAxisText(scale.X(i), kHeight - kBottom + 16, "middle", chart.labels[i], out);
  }
  AppendAxisText((kLeft + kWidth - kRight) / 2, kHeight - 6, "middle", chart.x_title, out);
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
        &out,
        "<circle%s data-cell=\"%u\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"><title>%s %s, %s: %.1f "
        "%s</title></circle>",
        p.doubt ? " class=\"doubt\"" : "", p.cell, scale.X(p.x), scale.Y(p.y),
        EscapeHtml(chart.x_title), EscapeHtml(chart.labels[p.x]), EscapeHtml(series.name), p.y,
        EscapeHtml(chart.y_title));
  }
  out += "</g>";
}

void AppendLegend(const Chart& chart, std::string& out) {
  if (chart.series.size() == 1 && chart.series[0].name.empty()) return;
  out += "<p class=\"legend\">";
  for (size_t s = 0; s < chart.series.size(); ++s) {
    absl::StrAppendFormat(&out, "<span><i class=\"s%d\"></i>%s</span> ", s % kChartColours,
                          EscapeHtml(chart.series[s].name));
  }
  out += "</p>";
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
  if (chart.labels.empty() || chart.series.empty()) return "";
  const Scale scale(chart, AxisOf(chart));
  std::string out =
      absl::StrFormat("<figure data-chart=\"%s\"><figcaption>%s <small>%s%s</small>",
                      EscapeHtml(chart.id), EscapeHtml(chart.title), EscapeHtml(chart.y_title),
                      scale.y_axis().logarithmic ? " (log)" : "");
  if (!chart.subtitle.empty()) {
    absl::StrAppendFormat(&out, "<br><small>%s</small>", EscapeHtml(chart.subtitle));
  }
  absl::StrAppendFormat(
      &out, "</figcaption><svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"%s, %s\">", kWidth,
      kHeight, EscapeHtml(chart.title), EscapeHtml(chart.y_title));
  AppendGrid(chart, scale, out);
  for (size_t s = 0; s < chart.series.size(); ++s) {
    AppendSeries(chart, chart.series[s], s % kChartColours, scale, out);
  }
  out += "</svg>";
  AppendLegend(chart, out);
  return out + "</figure>\n";
}

}  // namespace sluice
