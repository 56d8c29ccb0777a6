#include "tools/bench/scaling_plot.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedule/pictures/trace_style.h"

namespace stagecoach::tools {
namespace {

using schedule::EscapeMarkup;

constexpr double kWidth = 860;
constexpr double kLabelWidth = 330;
constexpr double kRowHeight = 26;
constexpr double kPlotHeight = 340;
constexpr double kLeft = 70, kBottom = 44, kTop = 16, kRight = 250;
constexpr int kColors = 6;

double Highest(const BenchResults& results) {
  double highest = 0;
  for (const BenchRow& row : results.rows) {
    if (row.error.empty()) highest = std::max(highest, row.rate());
  }
  return highest;
}

// A line of the plot: throughput by number of devices, of each the fastest.
struct Series {
  std::string name;
  std::map<int, double> points;
};

// Those with several numbers of devices.
std::vector<Series> AllSeries(const BenchResults& results) {
  // By model and precision; one device has no schedule, and begins the lines of all.
  const auto work_of = [](const BenchCase& what) {
    return absl::StrCat(what.model, ", ", what.precision);
  };
  std::map<std::string, double> alone;
  std::map<std::pair<std::string, std::string>, std::map<int, double>> by_schedule;
  for (const BenchRow& row : results.rows) {
    if (!row.error.empty()) continue;
    const int devices = row.what.all_devices();
    double& rate = devices == 1 ? alone[work_of(row.what)]
                                : by_schedule[{work_of(row.what), row.what.schedule}][devices];
    rate = std::max(rate, row.rate());
  }
  std::vector<Series> all;
  for (auto& [key, points] : by_schedule) {
    const auto& [work, schedule] = key;
    if (const auto one = alone.find(work); one != alone.end()) points[1] = one->second;
    if (points.size() > 1) all.push_back({absl::StrCat(work, ", ", schedule), points});
  }
  return all;
}

// Where a number of devices and a throughput lie.
class PlotArea {
 public:
  PlotArea(const std::vector<Series>& all, double highest) : highest_(highest) {
    for (const Series& series : all) {
      most_devices_ = std::max(most_devices_, series.points.rbegin()->first);
    }
    // Linear scaling is shown as far as that leaves room for what was measured.
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
  double highest_;
  int most_devices_ = 1;
};

// 1, 2 or 5 times a power of ten.
double NiceStep(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least) return factor * power;
  }
  return 10 * power;
}

std::string Grid(const PlotArea& area, const std::set<int>& devices) {
  std::string grid;
  const double step = NiceStep(area.highest() / 5);
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

// The line, its points and its name in the legend, and linear scaling from its first point.
std::string Line(const PlotArea& area, const Series& series, int number) {
  const int color = number % kColors;
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
                        color, corners, color, kWidth - kRight + 16, 24 + 18 * number,
                        EscapeMarkup(series.name));
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
.picture{padding:14px 16px}
.picture svg{display:block;max-width:100%;height:auto;font:12px system-ui,-apple-system,"Segoe UI",sans-serif}
.picture text{fill:var(--ink)}.picture .mute{fill:var(--mute)}
.picture rect{fill:var(--accent)}.picture .error{stroke:var(--ink);stroke-width:1.5;fill:none}
.picture .axis{stroke:var(--line);fill:none}.picture .linear{stroke-dasharray:4 4;opacity:.55}
.picture polyline{fill:none;stroke-width:2}
.picture .s0{stroke:#2f6fd0;fill:#2f6fd0}.picture .s1{stroke:#d9641e;fill:#d9641e}.picture .s2{stroke:#2a9d73;fill:#2a9d73}
.picture .s3{stroke:#b0449f;fill:#b0449f}.picture .s4{stroke:#9a7a12;fill:#9a7a12}.picture .s5{stroke:#5d6979;fill:#5d6979}
.picture text.s0,.picture text.s1,.picture text.s2,.picture text.s3,.picture text.s4,.picture text.s5{stroke:none}
)css";

std::string ThroughputBars(const BenchResults& results) {
  double highest = 0;  // of what is drawn: a step's interval ends there
  for (const BenchRow& row : results.rows) {
    if (!row.error.empty()) continue;
    highest = std::max(highest, row.rate() * row.step_ms() / MedianInterval(row.steps_ms).low);
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
    const double scale = row.rate() * row.step_ms();
    const double middle = y + kRowHeight / 2 - 3;
    absl::StrAppendFormat(&bars,
                          "<text x=\"%g\" y=\"%g\" text-anchor=\"end\">%s</text>"
                          "<rect x=\"%g\" y=\"%g\" width=\"%.1f\" height=\"%g\" rx=\"2\"/>"
                          "<path class=\"error\" d=\"M%.1f %gH%.1f\"/>"
                          "<text x=\"%.1f\" y=\"%g\">%s</text>",
                          kLabelWidth - 10, middle + 4, EscapeMarkup(Describe(row.what, names)),
                          kLabelWidth, y, x_of(row.rate()) - kLabelWidth, kRowHeight - 6,
                          x_of(scale / interval.high), middle, x_of(scale / interval.low),
                          x_of(scale / interval.low) + 8, middle + 4, FormatRate(row.rate()));
    y += kRowHeight;
  }
  return Picture(y + 4, "throughput of each row", bars);
}

std::string ScalingPlot(const BenchResults& results) {
  const std::vector<Series> all = AllSeries(results);
  if (all.empty()) return "";
  const PlotArea area(all, Highest(results));
  std::set<int> devices;
  std::string lines;
  for (size_t i = 0; i < all.size(); ++i) {
    for (const auto& [count, rate] : all[i].points) devices.insert(count);
    lines += Line(area, all[i], static_cast<int>(i));
  }
  const std::string titles = absl::StrFormat(
      "<text class=\"mute\" x=\"%g\" y=\"%g\" text-anchor=\"middle\">devices</text>"
      "<text class=\"mute\" x=\"%g\" y=\"12\">%s; dashed: linear</text>",
      kLeft + (kWidth - kLeft - kRight) / 2, kPlotHeight - 6, kLeft + 4, results.rate_unit());
  return Picture(kPlotHeight, "throughput over devices",
                 absl::StrCat(Grid(area, devices), lines, titles));
}

}  // namespace stagecoach::tools
