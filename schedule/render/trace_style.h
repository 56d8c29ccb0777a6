#ifndef STAGECOACH_SCHEDULE_RENDER_TRACE_STYLE_H_
#define STAGECOACH_SCHEDULE_RENDER_TRACE_STYLE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "schedule/traces/trace.h"

namespace stagecoach::schedule {

// Colors and legend that the picture (svg.h) and the page (html.h) of a trace share. Pre-condition
// of all functions that take a trace: it passes CheckTrace.

// Returns the color of an operation: one letter, which followed by the chunk's number is the
// slice's CSS class, as in "f0".
char ColorOf(Op op);

// Returns all rules that a picture needs: for the classes of slices of up to `num_chunks` stages
// per rank, the first being lightest; and, light or dark following the reader's system, for the
// classes of everything around them: bg, ink, mute, title, name (of a trace), n (numbers in
// slices), track, hatch, grid, message, forth (activations) and back (gradients), stash and its
// peak, same and here (what the reader points at).
std::string StyleRules(int num_chunks);

// The legend of the colors that occur in any of the traces.
struct LegendItem {
  char color;
  const char* meaning;
};
std::vector<LegendItem> LegendOf(absl::Span<const Trace* const> traces);

// Returns the largest number of stages of any rank.
int MaxChunks(const Trace& trace);

// Escapes text and attribute values of HTML and XML. Control characters, which XML forbids, become
// spaces.
std::string EscapeMarkup(absl::string_view text);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_RENDER_TRACE_STYLE_H_
