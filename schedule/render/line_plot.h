#ifndef STAGECOACH_SCHEDULE_RENDER_LINE_PLOT_H_
#define STAGECOACH_SCHEDULE_RENDER_LINE_PLOT_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace stagecoach::schedule {

// Rules for plots, to stand after those of a page (html.h), which decide light or dark: of the
// element around a picture (picture), its text, its axes, and the colors s0 to s5 of what is drawn.
extern const char kPlotStyle[];
inline constexpr int kPlotColors = 6;

// A line of a plot, in the color of its place among the others.
struct PlotLine {
  std::string name;
  std::vector<std::pair<double, double>> points;  // by x; NaN and infinity interrupt the line
  bool has_dots = false;                          // each point is marked, and shows its value
};

// Returns 1, 2 or 5 times a power of ten, at least `least`, which is positive.
double NiceStep(double least);

// Returns a picture of the lines over one axis of whole numbers, 420 by 230 units large, as a part
// of a page; "" if no line has a point. The axis of y begins at 0 unless all values are far from
// it. `format` writes a value of y.
std::string LinePlot(absl::Span<const PlotLine> lines, const std::string& x_name,
                     const std::function<std::string(double)>& format);

// Returns the names of the lines that have points, with their colors, as the element `legend`.
std::string PlotLegend(absl::Span<const PlotLine> lines);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_RENDER_LINE_PLOT_H_
