#ifndef STAGECOACH_SCHEDULE_PICTURES_HTML_H_
#define STAGECOACH_SCHEDULE_PICTURES_HTML_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
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
  // A table below the picture, for example of the ranks: the first column aligned left, the others
  // right. Every row has one cell per column; anything else aborts. No table without columns.
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

// A page that shows a trace and lets it be explored: the picture of ToSvg (svg.h), with zoom
// (wheel, buttons, keys), pan (drag), messages between the ranks as arrows that can be switched
// off, and on hover all that is known of an action, with the same micro-batch marked everywhere.
// One file that needs a browser and its script engine, and nothing from elsewhere. About 50 bytes
// per action. Pre-condition: the trace passes CheckTrace (check_trace.h).
std::string ToHtml(const Trace& trace, const PageText& text);

// One of several traces in a picture.
struct NamedTrace {
  std::string name;  // plain text; stands above it
  const Trace& trace;
};

// The same of several, one below the other on one time axis, which is that of the longest.
std::string ToHtml(absl::Span<const NamedTrace> traces, const PageText& text);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_PICTURES_HTML_H_
