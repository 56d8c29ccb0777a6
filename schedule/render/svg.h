#ifndef STAGECOACH_SCHEDULE_RENDER_SVG_H_
#define STAGECOACH_SCHEDULE_RENDER_SVG_H_

#include <string>

#include "schedule/traces/trace.h"

namespace stagecoach::schedule {

struct SvgOptions {
  std::string title;      // above the picture; none if empty
  int width_px = 1200;    // at least 300 are used
  bool messages = false;  // draw messages as arrows between the rows
};

// Draws a trace as a self-contained picture without scripts: one row per rank, time from left to
// right; a slice per action, colored by operation and shaded by stage of the rank, with the
// micro-batch where it fits; hatched where the rank is idle; a time axis and a legend. Hovering
// over a slice shows action, start, end and size. Passes without room become bands as high as their
// shares of the time, without messages (bands.h). Light or dark, following the reader's system. A
// few hundred bytes per action. Pre-condition: the trace passes CheckTrace (check_trace.h).
std::string ToSvg(const Trace& trace, const SvgOptions& options = {});

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_RENDER_SVG_H_
