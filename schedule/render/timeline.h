#ifndef STAGECOACH_SCHEDULE_RENDER_TIMELINE_H_
#define STAGECOACH_SCHEDULE_RENDER_TIMELINE_H_

#include <string>

#include "schedule/traces/trace.h"

namespace stagecoach::schedule {

struct TimelineOptions {
  // Width of a line. Time itself always gets at least 10 columns, however few these are, and at
  // most 500.
  int columns = 100;
  bool color = false;  // ANSI, for terminals; the characters stay the same
};

// Draws a trace as text: one row per rank, time from left to right over the whole step, or, if many
// micro-batches would get less than two columns, over its beginning and its end, with "…" in
// between. A column shows what the rank did for most of it: '.' is idle, and an action is its
// letter, then its micro-batch if there is room, then filler up to its end. Letters: F, B, W, "B="
// for BW (B has the filler '-'), '&' for an F and a B performed together, S for a step, U for
// gathering or releasing parameters; those of a rank's second, fourth, ... stage are in lower case.
// Below follow a time axis and a legend of the letters that occur, on as many lines as they need.
//
//   rank 0 |F0--F1--........B0======....B1======|
//   rank 1 |....F0--B0======F1--B1======........|
//           +---------+---------+---------+------
//           0 ms      10        20        30
//   F forward  B= backward: input and weights  . idle
//
// Pre-condition: the trace passes CheckTrace (check_trace.h).
std::string ToTimeline(const Trace& trace, const TimelineOptions& options = {});

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_RENDER_TIMELINE_H_
