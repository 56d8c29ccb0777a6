#include "tools/bench/scaling_plot.h"

#include <algorithm>
#include <cmath>
#include <map>
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

// What is the same for the points of a line, apart from the number of devices.
std::string SeriesOf(const BenchCase& what) {
  return absl::StrCat(what.model, ", ", what.precision, what.replicas > 1 ? ", replicas" : "");
}

// 1, 2 or 5 times a power of ten.
double NiceStep(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least) return factor * power;
  }
  return 10 * power;
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
                          x_of(row.rate()) + 12, middle + 4, FormatRate(row.rate()));
    y += kRowHeight;
  }
  return absl::StrFormat(
      "<div class=\"picture\"><svg viewBox=\"0 0 %g %g\" width=\"%g\" role=\"img\" "
      "aria-label=\"throughput of each row\">%s</svg></div>",
      kWidth, y + 4, kWidth, bars);
}

std::string ScalingPlot(const BenchResults& results) {
  // Of each number of devices, the fastest.
  std::map<std::string, std::map<int, double>> series;
  int most_devices = 0;
  for (const BenchRow& row : results.rows) {
    if (!row.error.empty()) continue;
    std::vector<std::string> names = {absl::StrCat(SeriesOf(row.what), ", ", row.what.schedule)};
    double& rate = series[names.front()][row.what.all_devices()];
    rate = std::max(rate, row.rate());
    most_devices = std::max(most_devices, row.what.all_devices());
  }
  // One device has no schedule: it begins the lines of all.
  for (auto& [name, points] : series) {
    if (points.count(1) > 0) continue;
    for (const BenchRow& row : results.rows) {
      const bool begins = row.error.empty() && row.what.all_devices() == 1 &&
                          name.rfind(SeriesOf(row.what), 0) == 0;
      if (begins) points[1] = std::max(points[1], row.rate());
    }
  }
  for (auto one = series.begin(); one != series.end();) {
    one = one->second.size() < 2 ? series.erase(one) : std::next(one);
  }
  if (series.empty()) return "";
  double highest = Highest(results);
  for (const auto& [name, points] : series) {
    // Linear scaling is shown as far as that leaves room for what was measured.
    const double linear = points.begin()->second / points.begin()->first * most_devices;
    highest = std::max(highest, std::min(linear, 1.6 * Highest(results)));
  }
  const auto x_of = [&](double devices) {
    return kLeft + (kWidth - kLeft - kRight) * devices / most_devices;
  };
  const auto y_of = [&](double rate) {
    return kPlotHeight - kBottom - (kPlotHeight - kBottom - kTop) * rate / highest;
  };
  std::string plot;
  const double step = NiceStep(highest / 5);
  for (double rate = 0; rate <= highest; rate += step) {
    absl::StrAppendFormat(&plot,
                          "<path class=\"axis\" d=\"M%g %.1fH%g\"/><text class=\"mute\" x=\"%g\" "
                          "y=\"%.1f\" text-anchor=\"end\">%s</text>",
                          kLeft, y_of(rate), kWidth - kRight, kLeft - 8, y_of(rate) + 4,
                          FormatRate(rate));
  }
  std::map<int, bool> marked;
  int number = 0;
  for (const auto& [name, points] : series) {
    const int color = number++ % kColors;
    const auto [first_devices, first_rate] = *points.begin();
    // As far as the picture goes.
    const double per_device = first_rate / first_devices;
    const double end = std::min<double>(most_devices, highest / per_device);
    absl::StrAppendFormat(&plot, "<path class=\"s%d linear\" d=\"M%.1f %.1fL%.1f %.1f\"/>", color,
                          x_of(first_devices), y_of(first_rate), x_of(end), y_of(end * per_device));
    std::string line;
    for (const auto& [devices, rate] : points) {
      absl::StrAppendFormat(&line, "%.1f,%.1f ", x_of(devices), y_of(rate));
      absl::StrAppendFormat(&plot, "<circle class=\"s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>",
                            color, x_of(devices), y_of(rate));
      if (!marked.emplace(devices, true).second) continue;
      absl::StrAppendFormat(
          &plot, "<text class=\"mute\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%d</text>",
          x_of(devices), kPlotHeight - kBottom + 18, devices);
    }
    absl::StrAppendFormat(&plot,
                          "<polyline class=\"s%d\" style=\"fill:none\" points=\"%s\"/><text "
                          "class=\"s%d\" x=\"%g\" y=\"%d\">%s</text>",
                          color, line, color, kWidth - kRight + 16, 24 + 18 * (number - 1),
                          EscapeMarkup(name));
  }
  absl::StrAppendFormat(
      &plot,
      "<text class=\"mute\" x=\"%g\" y=\"%g\" text-anchor=\"middle\">devices</text>"
      "<text class=\"mute\" x=\"%g\" y=\"12\">%s; dashed: linear</text>",
      kLeft + (kWidth - kLeft - kRight) / 2, kPlotHeight - 6, kLeft + 4, results.rate_unit());
  return absl::StrFormat(
      "<div class=\"picture\"><svg viewBox=\"0 0 %g %g\" width=\"%g\" role=\"img\" "
      "aria-label=\"throughput over devices\">%s</svg></div>",
      kWidth, kPlotHeight, kWidth, plot);
}

}  // namespace stagecoach::tools
