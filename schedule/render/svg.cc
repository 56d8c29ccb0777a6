#include "schedule/render/svg.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/units.h"
#include "schedule/render/bands.h"
#include "schedule/render/trace_style.h"
#include "schedule/traces/trace_parts.h"

namespace stagecoach::schedule {
namespace {

constexpr int kMinWidth = 300;
constexpr double kMargin = 16;
constexpr double kLabelWidth = 62;
constexpr double kTitleHeight = 34;
constexpr double kAxisHeight = 24;
constexpr double kLegendLine = 22;
constexpr double kDigitWidth = 6.4;   // for the numbers in slices
constexpr double kLetterWidth = 6.6;  // for the legend
constexpr double kPixelsPerMark = 90;

class Painter {
 public:
  Painter(const Trace& trace, const SvgOptions& options);

  std::string Paint();

 private:
  double X(int64_t time_ns) const {
    return left_ + (right_ - left_) * static_cast<double>(time_ns) / static_cast<double>(step_ns_);
  }
  double Y(Rank rank) const { return top_ + rank.value() * (row_height_ + gap_); }
  std::string Time(int64_t ns) const {
    return absl::StrFormat("%.*f", unit_.ns == 1 ? 0 : 3,
                           static_cast<double>(ns) / static_cast<double>(unit_.ns));
  }
  void PaintAxis();
  void PaintRank(Rank rank);
  std::string LookOf(const Slice& slice) const {
    return absl::StrCat(std::string(1, ColorOf(slice.timed.action.op)),
                        ChunkOf(slice.timed.action, chunks_));
  }
  void PaintSlice(const Slice& slice, double y);
  void PaintBands(const std::vector<Slice>& slices, double y);
  void PaintCopies(Rank rank);
  void PaintMessages();
  // Returns the y below the legend.
  double PaintLegend(double y);

  const Trace& trace_;
  const SvgOptions& options_;
  const int64_t step_ns_;
  const TimeUnit unit_;
  const std::vector<int> chunks_;
  const double width_;
  const double left_;
  const double right_;
  const double top_;
  const double row_height_;
  const double gap_;  // between rows
  const double bottom_;
  const double px_per_ns_;
  const bool is_crowded_;
  std::string body_;
};

// Appends a line with a small head at its end.
void AppendArrow(double x1, double y1, double x2, double y2, std::string& path) {
  constexpr double kHead = 4;
  const double length = std::max(std::hypot(x2 - x1, y2 - y1), 1e-9);
  const double dx = (x2 - x1) / length * kHead;
  const double dy = (y2 - y1) / length * kHead;
  absl::StrAppendFormat(&path, "M%.2f %.1fL%.2f %.1fM%.2f %.1fL%.2f %.1fL%.2f %.1f", x1, y1, x2, y2,
                        x2 - dx - dy / 2, y2 - dy + dx / 2, x2, y2, x2 - dx + dy / 2,
                        y2 - dy - dx / 2);
}

double RowHeight(int ranks) {
  if (ranks <= 8) return 34;
  return ranks <= 16 ? 26 : 18;
}

Painter::Painter(const Trace& trace, const SvgOptions& options)
    : trace_(trace),
      options_(options),
      step_ns_(std::max<int64_t>(1, trace.step_ns)),
      unit_(UnitFor(step_ns_)),
      chunks_(ChunkOfStage(trace)),
      width_(std::max(options.width_px, kMinWidth)),
      left_(kMargin + kLabelWidth),
      right_(width_ - kMargin),
      top_(kMargin + (options.title.empty() ? 0 : kTitleHeight) + kAxisHeight),
      row_height_(RowHeight(trace.num_ranks())),
      gap_(options.messages ? 10 : 5),
      bottom_(top_ + trace.num_ranks() * (row_height_ + gap_)),
      px_per_ns_((right_ - left_) / static_cast<double>(step_ns_)),
      is_crowded_(IsCrowded(trace, px_per_ns_)) {}

void Painter::PaintAxis() {
  const double marks = (right_ - left_) / kPixelsPerMark;
  const int64_t interval_ns =
      NiceIntervalNs(static_cast<int64_t>(static_cast<double>(step_ns_) / marks) + 1);
  for (int64_t time_ns = 0; time_ns <= step_ns_; time_ns += interval_ns) {
    const std::string label =
        absl::StrCat(static_cast<double>(time_ns) / static_cast<double>(unit_.ns),
                     time_ns == 0 ? absl::StrCat(" ", unit_.name) : "");
    absl::StrAppendFormat(&body_, "<path class=\"grid\" d=\"M%.2f %.0fV%.0f\"/>", X(time_ns),
                          top_ - 6, bottom_);
    if (X(time_ns) + kLetterWidth * static_cast<double>(label.size()) > width_) continue;
    absl::StrAppendFormat(&body_, "<text class=\"mute\" x=\"%.2f\" y=\"%.0f\">%s</text>\n",
                          X(time_ns), top_ - 11, label);
  }
}

void Painter::PaintSlice(const Slice& slice, double y) {
  const TimedAction& timed = slice.timed;
  const double x = X(timed.start_ns);
  const double width = X(timed.end_ns) - x;
  // A gap separates slices that touch; it must not consume narrow ones.
  const double shown = std::max(width - std::min(1.0, 0.2 * width), 0.05);
  const double height = slice.track == Track::kWhole ? row_height_ : row_height_ / 2;
  if (slice.track == Track::kLower) y += height;
  std::string hint = absl::StrCat(ToString(timed.action), ": ", Time(timed.start_ns), " to ",
                                  Time(timed.end_ns), " ", unit_.name);
  if (timed.bytes > 0) absl::StrAppend(&hint, ", stash ", base::FormatBytes(timed.bytes));
  absl::StrAppendFormat(&body_,
                        "<rect class=\"%s\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\">"
                        "<title>%s</title></rect>\n",
                        LookOf(slice), x, y, shown, height, hint);
  if (!HasMicroBatch(timed.action.op)) return;
  const std::string number = absl::StrCat(timed.action.micro_batch.value());
  if (static_cast<double>(number.size()) * kDigitWidth + 2 > width) return;
  absl::StrAppendFormat(&body_, "<text class=\"n\" x=\"%.2f\" y=\"%.1f\">%s</text>\n",
                        x + width / 2, y + height / 2 + 4, number);
}

void Painter::PaintBands(const std::vector<Slice>& slices, double y) {
  std::vector<std::string> looks;
  for (const Slice& slice : slices) looks.push_back(LookOf(slice));
  const auto gap_ns = static_cast<int64_t>(kMinPassPx / px_per_ns_);
  for (const SliceGroup& group : GroupSlices(slices, looks, gap_ns)) {
    const TimedAction& first = slices[group.begin].timed;
    if (group.end == group.begin + 1) {
      PaintSlice(slices[group.begin], y);
      continue;
    }
    double top = y;
    for (const auto& [look, share] : SharesOf(slices, looks, group)) {
      // Crisp, so that adjacent bands have no seam.
      absl::StrAppendFormat(
          &body_,
          "<rect class=\"%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" "
          "height=\"%.2f\" shape-rendering=\"crispEdges\"><title>%s of %d passes, "
          "%s to %s %s</title></rect>\n",
          look, X(first.start_ns), top, X(group.end_ns) - X(first.start_ns), share * row_height_,
          base::FormatPercent(share), group.end - group.begin, Time(first.start_ns),
          Time(group.end_ns), unit_.name);
      top += share * row_height_;
    }
  }
}

void Painter::PaintRank(Rank rank) {
  const double y = Y(rank);
  absl::StrAppendFormat(
      &body_,
      "<text class=\"ink\" x=\"%.0f\" y=\"%.1f\">rank %d</text>"
      "<rect class=\"track\" x=\"%.0f\" y=\"%.0f\" width=\"%.2f\" height=\"%.0f\"/>"
      "<rect fill=\"url(#idle)\" x=\"%.0f\" y=\"%.0f\" width=\"%.2f\" "
      "height=\"%.0f\"/>\n",
      kMargin, y + row_height_ / 2 + 4, rank.value(), left_, y, right_ - left_, row_height_, left_,
      y, right_ - left_, row_height_);
  const std::vector<Slice> slices = SlicesOf(trace_.list_of(rank));
  if (is_crowded_) {
    PaintBands(slices, y);
  } else {
    for (const Slice& slice : slices) PaintSlice(slice, y);
  }
  PaintCopies(rank);
}

// Below the row, those of each direction on a line of their own.
void Painter::PaintCopies(Rank rank) {
  constexpr double kLine = 2.2;
  for (const CopySpan& copy : CopiesOf(trace_.list_of(rank))) {
    const TimedAction& timed = trace_.list_of(rank)[copy.action];
    const double y = Y(rank) + row_height_ + (timed.action.op == Op::kOffload ? 0 : kLine);
    absl::StrAppendFormat(&body_,
                          "<rect class=\"%c%d\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" "
                          "height=\"%.1f\"><title>%s: %s to %s %s</title></rect>\n",
                          ColorOf(timed.action.op), ChunkOf(timed.action, chunks_),
                          X(copy.start_ns), y, X(copy.end_ns) - X(copy.start_ns), kLine - 0.4,
                          ToString(timed.action), Time(copy.start_ns), Time(copy.end_ns),
                          unit_.name);
  }
}

void Painter::PaintMessages() {
  std::string forth;
  std::string back;
  for (const Delivery& message : DeliveriesOf(trace_)) {
    const TimedAction& send = trace_.list_of(message.from)[message.send];
    const TimedAction& receive = trace_.list_of(message.to)[message.receive];
    const bool down = message.to > message.from;
    AppendArrow(X(send.start_ns), Y(message.from) + (down ? row_height_ : 0), X(receive.end_ns),
                Y(message.to) + (down ? 0 : row_height_),
                send.action.op == Op::kSendActivation ? forth : back);
  }
  absl::StrAppend(&body_, "<path class=\"message forth\" d=\"", forth,
                  "\"/>\n<path class=\"message back\" d=\"", back, "\"/>\n");
}

double Painter::PaintLegend(double y) {
  constexpr double kSwatch = 12;
  const int shades = std::min(MaxChunks(trace_), 4);
  double x = left_;
  const auto item = [&](double swatches, const std::string& text, const auto& paint_swatch) {
    const double width = swatches * kSwatch + 6 + kLetterWidth * static_cast<double>(text.size());
    if (x > left_ && x + width > right_) {
      x = left_;
      y += kLegendLine;
    }
    paint_swatch();
    absl::StrAppendFormat(&body_, "<text class=\"ink\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                          x + swatches * kSwatch + 6, y + 10, text);
    x += width + 16;
  };
  for (const LegendItem& entry : LegendOf({&trace_})) {
    item(shades, entry.meaning, [&] {
      for (int i = 0; i < shades; ++i) {
        const int chunk = shades == 1 ? 0 : i * (MaxChunks(trace_) - 1) / (shades - 1);
        absl::StrAppendFormat(
            &body_, "<rect class=\"%c%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.0f\" height=\"12\"/>",
            entry.color, chunk, x + i * kSwatch, y, kSwatch);
      }
    });
  }
  item(1, "idle", [&] {
    absl::StrAppendFormat(&body_,
                          "<rect class=\"track\" x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\"/>"
                          "<rect fill=\"url(#idle)\" x=\"%.1f\" y=\"%.1f\" width=\"12\" "
                          "height=\"12\"/>",
                          x, y, x, y);
  });
  if (shades > 1) item(0, "shades: the rank's stages, first to last", [] {});
  return y + kLegendLine;
}

std::string Painter::Paint() {
  if (!options_.title.empty()) {
    absl::StrAppendFormat(&body_, "<text class=\"ink title\" x=\"%.0f\" y=\"%.0f\">%s</text>\n",
                          kMargin, kMargin + 15, EscapeMarkup(options_.title));
  }
  PaintAxis();
  for (Rank rank(0); rank.value() < trace_.num_ranks(); ++rank) PaintRank(rank);
  if (options_.messages && !is_crowded_) PaintMessages();
  const double height = PaintLegend(bottom_ + 10) + kMargin / 2;
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "viewBox=\"0 0 %.0f %.0f\" font-family=\"system-ui,sans-serif\" font-size=\"12\">\n"
      "<style>%s</style>\n"
      "<defs><pattern id=\"idle\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
      "patternTransform=\"rotate(45)\"><path class=\"hatch\" d=\"M0 0V6\"/></pattern></defs>\n"
      "<rect class=\"bg\" width=\"100%%\" height=\"100%%\"/>\n%s</svg>\n",
      width_, height, width_, height, StyleRules(MaxChunks(trace_)), body_);
}

}  // namespace

std::string ToSvg(const Trace& trace, const SvgOptions& options) {
  return Painter(trace, options).Paint();
}

}  // namespace stagecoach::schedule
