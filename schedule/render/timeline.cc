#include "schedule/render/timeline.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "schedule/traces/trace_parts.h"

namespace stagecoach::schedule {
namespace {

constexpr int kMinCells = 10;
constexpr int kMinParted = 40;  // columns for a beginning and an end
// Keeps times multiplied by a number of columns within int64.
constexpr int kMaxCells = 500;
constexpr int kIdle = -1;
// Stands for the part that is left out.
constexpr char kBetween[] = "\u2026";

// How one kind of operation is drawn.
struct Look {
  char letter;
  char filler;
  int color;  // of 256; odd chunks have the same with less red
  const char* meaning;
};

constexpr Look kForward = {'F', '-', 117, "F forward"};
constexpr Look kInput = {'B', '-', 120, "B backward: input"};
constexpr Look kWeights = {'W', '-', 222, "W backward: weights"};
constexpr Look kBoth = {'B', '=', 114, "B= backward: input and weights"};
constexpr Look kOverlapped = {'&', '-', 139, "& F and B together"};
constexpr Look kStep = {'S', '-', 182, "S step"};
constexpr Look kExchange = {'X', '-', 246, "X exchange among all ranks"};
constexpr Look kParameters = {'U', '-', 109, "U parameters gathered, given back"};
constexpr const Look* kLooks[] = {&kForward,    &kInput, &kWeights,  &kBoth,
                                  &kOverlapped, &kStep,  &kExchange, &kParameters};

const Look& LookOf(Op op) {
  switch (op) {
    case Op::kForward:
      return kForward;
    case Op::kBackwardInput:
      return kInput;
    case Op::kBackwardWeight:
      return kWeights;
    case Op::kBackward:
      return kBoth;
    case Op::kStep:
      return kStep;
    case Op::kSumTies:
    case Op::kExchangeNorms:
    case Op::kShareResults:
      return kExchange;
    default:
      return kParameters;
  }
}

// An action of a rank over some time.
struct Bar {
  const Look* look;
  std::string label;
  bool odd_chunk;
  bool has_micro_batch;
  int64_t start_ns;
  int64_t end_ns;
};

std::string Letter(const Look& look, bool odd_chunk) {
  const std::string letter(1, look.letter);
  return odd_chunk ? absl::AsciiStrToLower(letter) : letter;
}

std::string LabelOf(const Action& action, bool odd_chunk) {
  std::string label = Letter(LookOf(action.op), odd_chunk);
  if (HasMicroBatch(action.op)) absl::StrAppend(&label, action.micro_batch.value());
  return label;
}

std::vector<Bar> BarsOf(const std::vector<TimedAction>& list, const std::vector<int>& chunks) {
  std::vector<Bar> bars;
  for (const Slice& slice : SlicesOf(list)) {
    const Action& action = slice.timed.action;
    const bool odd = ChunkOf(action, chunks) % 2 == 1;
    const std::string label = LabelOf(action, odd);
    if (slice.track != Track::kLower) {
      bars.push_back({&LookOf(action.op), label, odd, HasMicroBatch(action.op),
                      slice.timed.start_ns, slice.timed.end_ns});
      continue;
    }
    Bar& bar = bars.back();
    bar.look = &kOverlapped;
    absl::StrAppend(&bar.label, "&", label);
    bar.end_ns = std::max(bar.end_ns, slice.timed.end_ns);
  }
  return bars;
}

// A part of the step on `cells` columns: column c is [c * time, (c + 1) * time) after `start`, in
// units of 1 / cells ns.
struct Scale {
  int64_t start_ns;
  int64_t time_ns;
  int64_t cells;

  // Return the start and the end in those units.
  int64_t StartOf(const Bar& bar) const { return (bar.start_ns - start_ns) * cells; }
  int64_t EndOf(const Bar& bar) const { return (bar.end_ns - start_ns) * cells; }
  // Returns how much of the column the bar takes.
  int64_t Share(const Bar& bar, int64_t column) const {
    return std::min(EndOf(bar), (column + 1) * time_ns) - std::max(StartOf(bar), column * time_ns);
  }
};

// Returns all of the step, if three quarters of the bars of micro-batches have two columns or more;
// otherwise as much of its beginning and its end as leaves room for their letters and numbers.
std::vector<Scale> ScalesFor(const std::vector<std::vector<Bar>>& rows, int64_t step_ns,
                             int64_t cells) {
  std::vector<int64_t> times;
  size_t columns = 2;
  for (const std::vector<Bar>& row : rows) {
    for (const Bar& bar : row) {
      if (!bar.has_micro_batch) continue;
      times.push_back(bar.end_ns - bar.start_ns);
      if (bar.look != &kOverlapped) columns = std::max(columns, bar.label.size());
    }
  }
  const Scale whole = {0, step_ns, cells};
  if (times.empty() || cells < kMinParted) return {whole};
  const auto quarter = times.begin() + std::ssize(times) / 4;
  std::nth_element(times.begin(), quarter, times.end());
  if (*quarter == 0 || *quarter * cells >= 2 * step_ns) return {whole};
  const int64_t own = (cells - 1) / 2;  // one column is between them
  const int64_t time_ns = std::max<int64_t>(1, *quarter * own / static_cast<int64_t>(columns));
  return {{0, time_ns, own}, {step_ns - time_ns, time_ns, cells - 1 - own}};
}

bool SameLook(const Bar& a, const Bar& b) { return a.look == b.look && a.odd_chunk == b.odd_chunk; }

// Returns the bar that stands for a column; kIdle if it is idle for half of it or more. Where many
// short actions share a column, they are counted by letter.
int BarOfColumn(const std::vector<Bar>& bars, size_t first, int64_t column, const Scale& scale) {
  struct LookShare {
    int bar;
    int64_t bar_share;
    int64_t share;
  };
  std::vector<LookShare> shares;
  int64_t idle = scale.time_ns;
  for (size_t i = first; i < bars.size(); ++i) {
    if (scale.StartOf(bars[i]) >= (column + 1) * scale.time_ns) break;
    const int64_t share = scale.Share(bars[i], column);
    if (share <= 0) continue;
    idle -= share;
    const auto same = std::find_if(shares.begin(), shares.end(), [&bars, i](const LookShare& look) {
      return SameLook(bars[static_cast<size_t>(look.bar)], bars[i]);
    });
    if (same == shares.end()) {
      shares.push_back({static_cast<int>(i), share, share});
      continue;
    }
    same->share += share;
    if (share > same->bar_share) {
      same->bar = static_cast<int>(i);
      same->bar_share = share;
    }
  }
  LookShare best = {kIdle, 0, 0};
  if (2 * idle >= scale.time_ns) return kIdle;
  for (const LookShare& look : shares) {
    if (look.share > best.share) best = look;
  }
  return best.bar;
}

// Returns the bar of each column.
std::vector<int> BarOfColumns(const std::vector<Bar>& bars, const Scale& scale) {
  std::vector<int> columns;
  size_t first = 0;
  for (int64_t column = 0; column < scale.cells; ++column) {
    while (first < bars.size() && scale.EndOf(bars[first]) <= column * scale.time_ns) {
      ++first;
    }
    columns.push_back(BarOfColumn(bars, first, column, scale));
  }
  return columns;
}

std::string Colored(const std::string& text, const Bar& bar) {
  return absl::StrCat("\x1b[38;5;16;48;5;", bar.look->color - (bar.odd_chunk ? 36 : 0), "m", text,
                      "\x1b[0m");
}

std::string RowText(const std::vector<Bar>& bars, const Scale& scale, bool color) {
  const std::vector<int> columns = BarOfColumns(bars, scale);
  std::string row;
  for (size_t begin = 0, end = 0; begin < columns.size(); begin = end) {
    while (end < columns.size() && columns[end] == columns[begin]) ++end;
    const size_t width = end - begin;
    if (columns[begin] == kIdle) {
      row.append(width, '.');
      continue;
    }
    const Bar& bar = bars[static_cast<size_t>(columns[begin])];
    std::string text = bar.label;
    if (text.size() > width) text = Letter(*bar.look, bar.odd_chunk);
    text.append(width - text.size(), bar.look->filler);
    row += color ? Colored(text, bar) : text;
  }
  return row;
}

// Returns the marks, and the times of those that have room, both `width` columns wide.
std::pair<std::string, std::string> Axis(const Scale& scale, const TimeUnit& unit, size_t width) {
  constexpr int64_t kColumnsPerMark = 10;
  const int64_t interval_ns =
      NiceIntervalNs((kColumnsPerMark * scale.time_ns + scale.cells - 1) / scale.cells);
  std::string marks(width, '-');
  std::string times;
  const int64_t first_ns = (scale.start_ns + interval_ns - 1) / interval_ns * interval_ns;
  for (int64_t time_ns = first_ns; time_ns <= scale.start_ns + scale.time_ns;
       time_ns += interval_ns) {
    const auto column =
        static_cast<size_t>((time_ns - scale.start_ns) * scale.cells / scale.time_ns);
    if (column >= width) break;
    marks[column] = '+';
    const std::string label =
        time_ns == 0 ? absl::StrCat("0 ", unit.name)
                     : absl::StrCat(static_cast<double>(time_ns) / static_cast<double>(unit.ns));
    // Labels must not run into one another.
    if (column + label.size() > width || (column > 0 && column <= times.size())) continue;
    times.resize(column, ' ');
    times += label;
  }
  times.resize(width, ' ');
  return {marks, times};
}

// Returns two lines: for one part, or for two with a column between them.
std::string Axes(const std::vector<Scale>& scales, const TimeUnit& unit, size_t indent) {
  std::string marks(indent, ' '), times = marks;
  for (const Scale& scale : scales) {
    const bool is_last = &scale == &scales.back();
    const auto [own_marks, own_times] =
        Axis(scale, unit, static_cast<size_t>(scale.cells) + (is_last ? 1 : 0));
    absl::StrAppend(&marks, own_marks, is_last ? "\n" : kBetween);
    absl::StrAppend(&times, own_times, is_last ? "" : " ");
  }
  times.erase(times.find_last_not_of(' ') + 1);
  return absl::StrCat(marks, times, "\n");
}

// Returns the legend on as many lines as it needs.
std::string Legend(const std::vector<std::vector<Bar>>& rows, size_t columns) {
  std::set<const Look*> seen;
  bool has_odd_chunks = false;
  for (const std::vector<Bar>& row : rows) {
    for (const Bar& bar : row) {
      seen.insert(bar.look);
      has_odd_chunks = has_odd_chunks || bar.odd_chunk;
    }
  }
  std::vector<std::string> items;
  for (const Look* look : kLooks) {
    if (seen.contains(look)) items.emplace_back(look->meaning);
  }
  if (has_odd_chunks) items.emplace_back("lower case: every second stage of a rank");
  items.emplace_back(". idle");
  std::string text;
  size_t line = 0;
  for (const std::string& item : items) {
    const bool fits = line + 2 + item.size() <= columns;
    if (line > 0) text += fits ? "  " : "\n";
    line = line > 0 && fits ? line + 2 + item.size() : item.size();
    text += item;
  }
  return text + "\n";
}

}  // namespace

std::string ToTimeline(const Trace& trace, const TimelineOptions& options) {
  const size_t digits = absl::StrCat(trace.num_ranks() - 1).size();
  const size_t indent = digits + 6;  // "rank 0 "
  const int cells = options.columns - static_cast<int>(indent) - 2;
  const std::vector<int> chunks = ChunkOfStage(trace);
  std::vector<std::vector<Bar>> rows;
  for (int r = 0; r < trace.num_ranks(); ++r) {
    rows.push_back(BarsOf(trace.list_of(Rank(r)), chunks));
  }
  const std::vector<Scale> scales =
      ScalesFor(rows, std::max<int64_t>(1, trace.step_ns), std::clamp(cells, kMinCells, kMaxCells));
  std::string text;
  for (int r = 0; r < trace.num_ranks(); ++r) {
    std::string head = absl::StrCat("rank ", r);
    head.resize(indent, ' ');
    absl::StrAppend(&text, head, "|");
    for (const Scale& scale : scales) {
      absl::StrAppend(&text, &scale == &scales.front() ? "" : kBetween,
                      RowText(rows[static_cast<size_t>(r)], scale, options.color));
    }
    absl::StrAppend(&text, "|\n");
  }
  const auto columns = static_cast<size_t>(std::max(options.columns, 0));
  return absl::StrCat(text, Axes(scales, UnitFor(trace.step_ns), indent + 1),
                      Legend(rows, columns));
}

}  // namespace stagecoach::schedule
