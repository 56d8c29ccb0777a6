#ifndef STAGECOACH_SCHEDULE_PICTURES_HTML_H_
#define STAGECOACH_SCHEDULE_PICTURES_HTML_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "schedule/stash.h"
#include "schedule/trace.h"

namespace stagecoach::schedule {

// What stands around the picture. All of it is plain text.
struct PageText {
  struct Fact {
    std::string label;  // "step"
    std::string value;  // "12.3 ms"
  };

  std::string title;
  std::vector<Fact> facts;  // beside the title
  // A table, below the picture of one trace and above that of several: the first column and
  // those without a name, which are remarks, aligned left, the others right. Every row has one cell
  // per column; anything else aborts. No table without columns.
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

// One of the traces in a picture.
struct NamedTrace {
  std::string name;  // plain text; stands above it if there are several
  const Trace& trace;
  // What its stages keep of a micro-batch (index: stage): the stash of a trace without sizes is
  // drawn in that unit, or not at all if this is empty.
  std::vector<StageStash> unit_stash = {};
};

// A page that shows a trace and lets it be explored: the picture of ToSvg (svg.h), with zoom
// (wheel, buttons, keys), pan (drag), messages between the ranks as arrows and, if it is known, the
// stash of each rank over time with its peak, both of which can be switched off; on hover all that
// is known of an action, with the same micro-batch marked everywhere. What is shown can be saved as
// an SVG or PNG file that is named for the title. Several traces stand one below the other on one
// time axis, which is that of the longest. One file that needs a browser and its script engine, and
// nothing from elsewhere. About 50 bytes per action. Pre-condition: the traces pass CheckTrace
// (check_trace.h).
std::string ToHtml(absl::Span<const NamedTrace> traces, const PageText& text);

// A page of the same look with the table of `text` and, below it, a picture of another kind, which
// is markup. `style`: more rules.
struct Page {
  PageText text;
  std::string picture;
  std::string style;
};
std::string ToHtml(const Page& page);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_PICTURES_HTML_H_
