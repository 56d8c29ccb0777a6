#ifndef STAGECOACH_SCHEDULE_PICTURES_TIMELINE_H_
#define STAGECOACH_SCHEDULE_PICTURES_TIMELINE_H_

#include <string>

#include "schedule/trace.h"

namespace stagecoach::schedule {

struct TimelineOptions {
  // Of a line. Time itself always has at least 10, however few these are, and at most 500.
  int columns = 100;
  bool color = false;  // ANSI, for terminals; the characters stay the same
};

// Draws a trace as text: one row per rank, time from left to right over the whole step, or, where
// many micro-batches would have less than two columns, over its beginning and its end, with "…"
// between. A column shows what the rank did for most of it: '.' is idle, and an action is its
// letter, then its micro-batch where there is room, then filler up to its end. Letters: F, B, W,
// "B=" for BW (B has the filler '-'), '&' for an F and a B performed together, S for a step, U for
// gathering or giving back parameters; those of a rank's second, fourth, ... stage in lower case.
// Below, a time axis and a legend of what occurs, which takes more lines where it needs them.
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

#endif  // STAGECOACH_SCHEDULE_PICTURES_TIMELINE_H_
