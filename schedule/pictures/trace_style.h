#ifndef STAGECOACH_SCHEDULE_PICTURES_TRACE_STYLE_H_
#define STAGECOACH_SCHEDULE_PICTURES_TRACE_STYLE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "schedule/trace.h"

namespace stagecoach::schedule {

// What the picture (svg.h) and the page (html.h) of a trace share: colors and legend.
// Pre-condition of all that take a trace: it passes CheckTrace.

// The color of an operation: one letter, which with the chunk's number is the box's CSS class, as
// in "f0".
char ColorOf(Op op);

// All rules of a picture, which needs no others: for the classes of boxes of up to `num_chunks`
// stages per rank, the first being lightest; and, light or dark as the reader's system is, for
// those of everything around them: bg, ink, mute, title, name (of a trace), n (numbers in boxes),
// track, hatch, grid, message, forth (activations) and back (gradients), stash and its peak, same
// and here (what the reader points at).
std::string StyleRules(int num_chunks);

// The colors that occur in any of the traces, for their legend.
struct LegendItem {
  char color;
  const char* meaning;
};
std::vector<LegendItem> LegendOf(absl::Span<const Trace* const> traces);

// The largest number of stages that any rank has.
int MaxChunks(const Trace& trace);

// For text and attribute values of HTML and XML. Control characters, which XML forbids, become
// spaces.
std::string EscapeMarkup(absl::string_view text);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_PICTURES_TRACE_STYLE_H_
