#include "schedule/render/line_plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/units.h"
#include "schedule/render/trace_style.h"

namespace stagecoach::schedule {
namespace {

constexpr double kPlotWidth = 420, kPlotHeight = 230;
constexpr double kPlotLeft = 58, kPlotRight = 14, kPlotTop = 12, kPlotBottom = 38;

struct PlotRange {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  bool is_empty() const { return low > high; }
  void Add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

bool IsDrawn(const std::pair<double, double>& point) {
  return std::isfinite(point.first) && std::isfinite(point.second);
}

class PlotFrame {
 public:
  explicit PlotFrame(absl::Span<const PlotLine> lines) {
    for (const PlotLine& line : lines) {
      for (const auto& point : line.points) {
        if (!IsDrawn(point)) continue;
        x_.Add(point.first);
        y_.Add(point.second);
      }
    }
    if (is_empty()) return;
    x_.low = std::min(x_.low, 0.0);
    if (x_.high <= x_.low) x_.high = x_.low + 1;
    constexpr double kFar = 0.6;
    if (y_.low > 0 && y_.low < kFar * y_.high) y_.low = 0;
    if (y_.high <= y_.low) y_.high = y_.low + std::max(std::abs(y_.low), 1e-9);
    y_step_ = NiceStep((y_.high - y_.low) / 4);
    y_.low = std::floor(y_.low / y_step_) * y_step_;
    y_.high = std::ceil(y_.high / y_step_) * y_step_;
  }

  bool is_empty() const { return y_.is_empty(); }
  double X(double x) const {
    return kPlotLeft + (kPlotWidth - kPlotLeft - kPlotRight) * (x - x_.low) / (x_.high - x_.low);
  }
  double Y(double y) const {
    return kPlotHeight - kPlotBottom -
           (kPlotHeight - kPlotTop - kPlotBottom) * (y - y_.low) / (y_.high - y_.low);
  }

  std::string Axes(const std::string& x_name,
                   const std::function<std::string(double)>& format) const {
    std::string svg;
    for (int i = 0; y_.low + i * y_step_ <= y_.high + y_step_ / 2; ++i) {
      const double value = y_.low + i * y_step_;
      absl::StrAppendFormat(&svg,
                            "<path class=\"axis\" d=\"M%g %.1fH%g\"/><text class=\"mute\" x=\"%g\" "
                            "y=\"%.1f\" text-anchor=\"end\">%s</text>",
                            kPlotLeft, Y(value), kPlotWidth - kPlotRight, kPlotLeft - 7,
                            Y(value) + 4, EscapeMarkup(format(value)));
    }
    const double step = std::max(1.0, NiceStep((x_.high - x_.low) / 5));
    for (double x = std::ceil(x_.low / step) * step; x <= x_.high; x += step) {
      absl::StrAppendFormat(
          &svg, "<text class=\"mute\" x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%s</text>", X(x),
          kPlotHeight - kPlotBottom + 16, base::FormatCount(std::llround(x)));
    }
    absl::StrAppendFormat(
        &svg, "<text class=\"mute\" x=\"%g\" y=\"%g\" text-anchor=\"middle\">%s</text>",
        (kPlotLeft + kPlotWidth - kPlotRight) / 2, kPlotHeight - 4, EscapeMarkup(x_name));
    return svg;
  }

 private:
  PlotRange x_, y_;
  double y_step_ = 1;
};

std::string DrawLine(const PlotFrame& frame, const PlotLine& line, int color,
                     const std::function<std::string(double)>& format) {
  std::string path, dots;
  bool is_begun = false;
  for (const auto& point : line.points) {
    const bool is_drawn = IsDrawn(point);
    if (is_drawn) {
      absl::StrAppendFormat(&path, "%c%.1f %.1f", is_begun ? 'L' : 'M', frame.X(point.first),
                            frame.Y(point.second));
      if (line.has_dots) {
        absl::StrAppendFormat(
            &dots,
            "<circle class=\"s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>%s: %s</title></circle>",
            color, frame.X(point.first), frame.Y(point.second), EscapeMarkup(line.name),
            EscapeMarkup(format(point.second)));
      }
    }
    is_begun = is_drawn;
  }
  return absl::StrFormat("<path class=\"s%d line\" d=\"%s\"/>%s", color, path, dots);
}

}  // namespace

double NiceStep(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least) return factor * power;
  }
  return 10 * power;
}

std::string LinePlot(absl::Span<const PlotLine> lines, const std::string& x_name,
                     const std::function<std::string(double)>& format) {
  const PlotFrame frame(lines);
  if (frame.is_empty()) return "";
  std::string drawn, names;
  for (size_t i = 0; i < lines.size(); ++i) {
    drawn += DrawLine(frame, lines[i], static_cast<int>(i) % kPlotColors, format);
    absl::StrAppend(&names, i == 0 ? "" : ", ", lines[i].name);
  }
  return absl::StrFormat(
      "<div class=\"picture\"><svg viewBox=\"0 0 %g %g\" width=\"100%%\" role=\"img\" "
      "aria-label=\"%s\">%s%s</svg></div>",
      kPlotWidth, kPlotHeight, EscapeMarkup(names), frame.Axes(x_name, format), drawn);
}

std::string PlotLegend(absl::Span<const PlotLine> lines) {
  std::string html = "<div class=\"legend\">";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (absl::c_none_of(lines[i].points, IsDrawn)) continue;
    absl::StrAppend(&html, "<span><i class=\"swatch\" style=\"background:var(--s", i % kPlotColors,
                    ")\"></i>", EscapeMarkup(lines[i].name), "</span>");
  }
  return html + "</div>";
}

}  // namespace stagecoach::schedule
