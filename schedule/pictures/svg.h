#ifndef STAGECOACH_SCHEDULE_PICTURES_SVG_H_
#define STAGECOACH_SCHEDULE_PICTURES_SVG_H_

#include <string>

#include "schedule/trace.h"

namespace stagecoach::schedule {

struct SvgOptions {
  std::string title;      // above the picture; none if empty
  int width_px = 1200;    // at least 300 are taken
  bool messages = false;  // draw what is sent, as arrows between the rows
};

// Draws a trace as a picture that needs neither script nor anything else: one row per rank, time
// from left to right; a box per action, colored by operation and shaded by stage of the rank, with
// the micro-batch where it fits; hatched where the rank is idle; a time axis and a legend. Hovering
// over a box tells action, start, end and size. Where passes have no room, they are bands as high
// as their shares of the time, without messages (bands.h). Light or dark as the reader's system is.
// A few hundred bytes per action. Pre-condition: the trace passes CheckTrace (check_trace.h).
std::string ToSvg(const Trace& trace, const SvgOptions& options = {});

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_PICTURES_SVG_H_
