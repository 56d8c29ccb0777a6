#include "tools/stagecoach/bench/scaling_plot.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedule/render/line_plot.h"
#include "schedule/render/trace_style.h"

namespace stagecoach::tools {
namespace {

using schedule::EscapeMarkup;

constexpr double kWidth = 860;
constexpr double kLabelWidth = 330;
constexpr double kRowHeight = 26;
constexpr double kPlotHeight = 340;
constexpr double kLeft = 70, kBottom = 44, kTop = 16, kRight = 30;

// A line of the plot: throughput by number of devices.
struct Series {
  BenchCase what;  // of one of its rows
  std::map<int, double> points;
};

// The lines that have several numbers of devices.
class Lines {
 public:
  Lines(const BenchResults& results, BenchScaling scaling) : scaling_(scaling) {
    for (const BenchRow& row : results.rows) {
      grows_in_replicas_ &= row.what.devices == results.rows.front().what.devices;
    }
    for (const BenchRow& row : results.rows) {
      if (!row.error.empty() || row.what.all_devices() == 1) continue;
      const auto found = std::find_if(all_.begin(), all_.end(), [&](const Series& series) {
        return Joins(row.what, series) && series.what.schedule == row.what.schedule;
      });
      Series& series = found == all_.end() ? all_.emplace_back(Series{row.what, {}}) : *found;
      series.points[row.what.all_devices()] = results.RateOf(row);
    }
    // One device has no schedule, and begins every line.
    for (const BenchRow& row : results.rows) {
      if (!row.error.empty() || row.what.all_devices() != 1) continue;
      for (Series& series : all_) {
        if (Joins(row.what, series)) series.points[1] = results.RateOf(row);
      }
    }
    std::erase_if(all_, [](const Series& series) { return series.points.size() < 2; });
  }

  const std::vector<Series>& all() const { return all_; }
  std::string NameOf(const Series& series, const BenchResults& results) const {
    std::vector<BenchProperty> properties = PropertiesOf(results.cases());
    std::erase_if(properties, [this](const BenchProperty& property) {
      return property.name == (grows_in_replicas_ ? "replicas" : "devices") ||
             (scaling_ == BenchScaling::kWeak &&
              (property.name == "batch" || property.name == "micro-batches"));
    });
    return Describe(series.what, properties);
  }

 private:
  bool Joins(const BenchCase& what, const Series& series) const {
    return AreSameWork(what, series.what, scaling_) &&
           (grows_in_replicas_ ? what.devices == series.what.devices
                               : what.replicas == series.what.replicas);
  }

  const BenchScaling scaling_;
  bool grows_in_replicas_ = true;
  std::vector<Series> all_;
};

// Maps a number of devices and a throughput to the plot.
class PlotArea {
 public:
  explicit PlotArea(const std::vector<Series>& all) {
    for (const Series& series : all) {
      most_devices_ = std::max(most_devices_, series.points.rbegin()->first);
      for (const auto& [devices, rate] : series.points) highest_ = std::max(highest_, rate);
    }
    const double highest = highest_;
    // Linear scaling is shown as far as it leaves room for what was measured.
    for (const Series& series : all) {
      const auto [devices, rate] = *series.points.begin();
      highest_ = std::max(highest_, std::min(rate / devices * most_devices_, 1.6 * highest));
    }
  }
  double X(double devices) const {
    return kLeft + (kWidth - kLeft - kRight) * devices / most_devices_;
  }
  double Y(double rate) const {
    return kPlotHeight - kBottom - (kPlotHeight - kBottom - kTop) * rate / highest_;
  }
  double highest() const { return highest_; }
  int most_devices() const { return most_devices_; }

 private:
  double highest_ = 0;
  int most_devices_ = 1;
};

std::string Grid(const PlotArea& area, const std::set<int>& devices) {
  std::string grid;
  const double step = schedule::NiceStep(area.highest() / 5);
  for (double rate = 0; rate <= area.highest(); rate += step) {
    absl::StrAppendFormat(&grid,
                          "<path class=\"axis\" d=\"M%g %.1fH%g\"/><text class=\"mute\" x=\"%g\" "
                          "y=\"%.1f\" text-anchor=\"end\">%s</text>",
                          kLeft, area.Y(rate), kWidth - kRight, kLeft - 8, area.Y(rate) + 4,
                          FormatRate(rate));
  }
  for (const int count : devices) {
    absl::StrAppendFormat(
        &grid, "<text class=\"mute\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%d</text>",
        area.X(count), kPlotHeight - kBottom + 18, count);
  }
  return grid;
}

// Returns the line, its points and its name in the legend, and linear scaling from its first point.
std::string Line(const PlotArea& area, const Series& series, const std::string& name, int number) {
  const int color = number % schedule::kPlotColors;
  const auto [first_devices, first_rate] = *series.points.begin();
  const double per_device = first_rate / first_devices;
  const double end = std::min<double>(area.most_devices(), area.highest() / per_device);
  std::string svg = absl::StrFormat("<path class=\"s%d linear\" d=\"M%.1f %.1fL%.1f %.1f\"/>",
                                    color, area.X(first_devices), area.Y(first_rate), area.X(end),
                                    area.Y(end * per_device));
  std::string corners;
  for (const auto& [devices, rate] : series.points) {
    absl::StrAppendFormat(&corners, "%.1f,%.1f ", area.X(devices), area.Y(rate));
    absl::StrAppendFormat(&svg, "<circle class=\"s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>", color,
                          area.X(devices), area.Y(rate));
  }
  absl::StrAppendFormat(&svg,
                        "<polyline class=\"s%d\" style=\"fill:none\" points=\"%s\"/><text "
                        "class=\"s%d\" x=\"%g\" y=\"%d\">%s</text>",
                        color, corners, color, kLeft,
                        static_cast<int>(kPlotHeight) + 14 + 18 * number, EscapeMarkup(name));
  return svg;
}

std::string Picture(double height, const char* label, const std::string& content) {
  return absl::StrFormat(
      "<div class=\"picture\"><svg viewBox=\"0 0 %g %g\" width=\"%g\" role=\"img\" "
      "aria-label=\"%s\">%s</svg></div>",
      kWidth, height, kWidth, label, content);
}

}  // namespace

const char kBenchStyle[] = R"css(
.scroll table{font-size:12px}.scroll th,.scroll td{padding:4px 5px}.scroll td:first-child,.scroll th:first-child{padding-left:12px}.scroll th,.scroll td:last-child{white-space:normal;vertical-align:bottom}
)css";

std::string ThroughputBars(const BenchResults& results) {
  double highest = 0;  // of the drawing: a step's interval ends there
  for (const BenchRow& row : results.rows) {
    if (!row.error.empty()) continue;
    highest =
        std::max(highest, results.RateOf(row) * row.step_ms() / MedianInterval(row.steps_ms).low);
  }
  if (highest <= 0) return "";
  const std::vector<BenchProperty> names = PropertiesOf(results.cases());
  double y = 24;
  std::string bars = absl::StrFormat("<text class=\"mute\" x=\"%g\" y=\"14\">%s</text>",
                                     kLabelWidth, results.rate_unit());
  for (const BenchRow& row : results.rows) {
    if (!row.error.empty()) continue;
    const double room = kWidth - kLabelWidth - 90;
    const auto x_of = [&](double rate) { return kLabelWidth + room * rate / highest; };
    const BenchInterval interval = MedianInterval(row.steps_ms);
    const double scale = results.RateOf(row) * row.step_ms();
    const double middle = y + kRowHeight / 2 - 3;
    absl::StrAppendFormat(&bars,
                          "<text x=\"%g\" y=\"%g\" text-anchor=\"end\">%s</text>"
                          "<rect x=\"%g\" y=\"%g\" width=\"%.1f\" height=\"%g\" rx=\"2\"/>"
                          "<path class=\"error\" d=\"M%.1f %gH%.1f\"/>"
                          "<text x=\"%.1f\" y=\"%g\">%s</text>",
                          kLabelWidth - 10, middle + 4, EscapeMarkup(Describe(row.what, names)),
                          kLabelWidth, y, x_of(results.RateOf(row)) - kLabelWidth, kRowHeight - 6,
                          x_of(scale / interval.high), middle, x_of(scale / interval.low),
                          x_of(scale / interval.low) + 8, middle + 4,
                          FormatRate(results.RateOf(row)));
    y += kRowHeight;
  }
  return Picture(y + 4, "throughput of each row", bars);
}

std::string ScalingPlot(const BenchResults& results, BenchScaling scaling) {
  const Lines lines(results, scaling);
  const std::vector<Series>& all = lines.all();
  if (all.empty()) return "";
  const PlotArea area(all);
  std::set<int> devices;
  std::string drawn;
  for (size_t i = 0; i < all.size(); ++i) {
    for (const auto& [count, rate] : all[i].points) devices.insert(count);
    drawn += Line(area, all[i], lines.NameOf(all[i], results), static_cast<int>(i));
  }
  const std::string titles = absl::StrFormat(
      "<text class=\"mute\" x=\"%g\" y=\"%g\" text-anchor=\"middle\">devices</text>"
      "<text class=\"mute\" x=\"%g\" y=\"12\">%s; dashed: linear</text>",
      kLeft + (kWidth - kLeft - kRight) / 2, kPlotHeight - 6, kLeft + 4, results.rate_unit());
  const double height = kPlotHeight + 18 * static_cast<double>(all.size()) + 4;
  return Picture(height, "throughput over devices",
                 absl::StrCat(Grid(area, devices), drawn, titles));
}

}  // namespace stagecoach::tools
