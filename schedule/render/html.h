#ifndef STAGECOACH_SCHEDULE_RENDER_HTML_H_
#define STAGECOACH_SCHEDULE_RENDER_HTML_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "schedule/memory/stash.h"
#include "schedule/traces/trace.h"

namespace stagecoach::schedule {

// The text around the picture. All of it is plain text.
struct PageText {
  struct Fact {
    std::string label;  // "step"
    std::string value;  // "12.3 ms"
  };

  std::string title;
  std::vector<Fact> facts;  // next to the title
  // A table, below the picture of one trace and above that of several. The first column and those
  // without a name, which are remarks, are aligned left, the others right. Every row has one cell
  // per column; anything else aborts. No table without columns.
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

// One of the traces in a picture.
struct NamedTrace {
  std::string name;  // plain text; shown above the trace if there are several
  const Trace& trace;
  // The stash of its stages per micro-batch (index: stage): the stash of a trace without sizes is
  // drawn in this unit, or not at all if this is empty.
  std::vector<StageStash> unit_stash = {};
};

// Returns a page that shows a trace and lets the reader explore it: the picture of ToSvg (svg.h),
// with zoom (wheel, buttons, keys), pan (drag), messages between the ranks as arrows and, if known,
// the stash of each rank over time with its peak, both of which can be switched off; hovering over
// an action shows all that is known of it and marks the same micro-batch everywhere. The visible
// part can be saved as an SVG or PNG file that is named after the title. Several traces stand one
// below the other on one time axis, that of the longest. One file that needs a browser with
// scripts, and nothing from elsewhere. About 50 bytes per action. Pre-condition: the traces pass
// CheckTrace (check_trace.h).
std::string ToHtml(absl::Span<const NamedTrace> traces, const PageText& text);

// Returns a whole page. `head` is markup for its head, in addition to the title, which is plain
// text.
std::string HtmlDocument(const std::string& title, const std::string& head,
                         const std::string& body);

// A page in the same style with the table of `text` and, below it, a picture of another kind, as
// markup. `style`: additional rules.
struct Page {
  PageText text;
  std::string picture;
  std::string style;
};
std::string ToHtml(const Page& page);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_RENDER_HTML_H_
