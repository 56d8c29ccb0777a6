#include "schedule/render/trace_style.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedule/traces/trace_parts.h"

namespace stagecoach::schedule {
namespace {

// A color in HSL; `lightness` is that of a rank's only stage.
struct Color {
  char letter;
  const char* meaning;
  int hue;
  int saturation;
  int lightness;
};

constexpr std::array<Color, 9> kColors = {{
    {'f', "forward", 213, 85, 73},
    {'b', "backward: input", 152, 48, 63},
    {'w', "backward: weights", 40, 88, 67},
    {'d', "backward: input and weights", 178, 44, 60},
    {'s', "step", 268, 58, 76},
    {'x', "exchange among all ranks", 15, 30, 72},
    {'u', "parameters gathered or given back", 215, 14, 70},
    {'o', "stash copied to the host", 335, 62, 64},
    {'i', "stash copied back", 292, 42, 66},
}};

// How much lighter than the middle the first chunk is, and how much darker the last.
constexpr double kLighter = 9.0;
constexpr double kDarker = 13.0;

constexpr char kSurroundings[] = R"css(
.bg{fill:#fff}.ink{fill:#1b2430}.mute{fill:#667284}
.track{fill:#eef1f6}.hatch{stroke:#ccd4df}.grid{stroke:#dbe1e9}
.forth{stroke:#2f6fd0}.back{stroke:#1f8f63}
.stash{fill:#e2683a;fill-opacity:.28;stroke:#e2683a}.peak{fill:#e2683a}
.message{fill:none;stroke-width:.8;opacity:.65}
.same,.here{fill:none;stroke:#1b2430}.same{stroke-width:1.6}.here{opacity:.35}
.title{font-size:17px;font-weight:600}.name{font-weight:600}
.n{fill:#152030;font-size:11px;text-anchor:middle}
.message,.n{pointer-events:none}
@media (prefers-color-scheme:dark){
.bg{fill:#11161e}.ink{fill:#e4e9f0}.mute{fill:#8f9bac}
.track{fill:#1a212b}.hatch{stroke:#303b4a}.grid{stroke:#2c3644}
.forth{stroke:#79a9f5}.back{stroke:#5fd0a0}
.same,.here{stroke:#e4e9f0}
}
)css";

}  // namespace

char ColorOf(Op op) {
  switch (op) {
    case Op::kForward:
      return 'f';
    case Op::kBackwardInput:
      return 'b';
    case Op::kBackwardWeight:
      return 'w';
    case Op::kBackward:
      return 'd';
    case Op::kStep:
      return 's';
    case Op::kSumTies:
    case Op::kExchangeNorms:
    case Op::kShareResults:
      return 'x';
    case Op::kOffload:
      return 'o';
    case Op::kFetch:
      return 'i';
    default:
      return 'u';
  }
}

std::string StyleRules(int num_chunks) {
  std::string rules = kSurroundings;
  for (const Color& color : kColors) {
    for (int chunk = 0; chunk < std::max(1, num_chunks); ++chunk) {
      const double depth = num_chunks > 1 ? static_cast<double>(chunk) / (num_chunks - 1) : 0.0;
      const double lighter = num_chunks > 1 ? kLighter - depth * (kLighter + kDarker) : 0.0;
      absl::StrAppendFormat(&rules, ".%c%d{fill:hsl(%d,%d%%,%.1f%%)}", color.letter, chunk,
                            color.hue, color.saturation, color.lightness + lighter);
    }
  }
  return rules;
}

std::vector<LegendItem> LegendOf(absl::Span<const Trace* const> traces) {
  std::set<char> seen;
  for (const Trace* trace : traces) {
    for (const std::vector<TimedAction>& list : trace->actions) {
      for (const Slice& slice : SlicesOf(list)) seen.insert(ColorOf(slice.timed.action.op));
      for (const TimedAction& timed : list) {
        if (IsHostCopy(timed.action.op)) seen.insert(ColorOf(timed.action.op));
      }
    }
  }
  std::vector<LegendItem> legend;
  for (const Color& color : kColors) {
    if (seen.contains(color.letter)) legend.push_back({color.letter, color.meaning});
  }
  return legend;
}

int MaxChunks(const Trace& trace) {
  const std::vector<int> chunks = ChunkOfStage(trace);
  return chunks.empty() ? 1 : *std::max_element(chunks.begin(), chunks.end()) + 1;
}

std::string EscapeMarkup(absl::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return escaped;
}

}  // namespace stagecoach::schedule
