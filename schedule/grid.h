#ifndef STAGECOACH_SCHEDULE_GRID_H_
#define STAGECOACH_SCHEDULE_GRID_H_

#include <string>

#include "schedule/schedule.h"

namespace stagecoach::schedule {

struct GridOptions {
  // Of text. A longer grid is cut in the middle and says how many slots are left out; at least one
  // slot on either side of the cut stays.
  int max_columns = 120;
};

// Draws the compute actions as text: one row per rank, one column per slot of time, in which F, B
// and W take one slot and BW takes two, and every action starts as soon as its inputs exist
// (transfers take no time). Cells are "F3", "B3", "W3", BW is "B3" twice, ".." is idle; with
// several stages on a rank "F1.3" (stage.micro-batch). A cut is marked "~", and the last line then
// says how many slots it hides. Pre-condition: the schedule passes Validate once lowered; otherwise
// the grid ends where nothing can go on and a last line says who stands before which action, or
// that line alone says which action has no place in the schedule. Accepts compute and lowered
// schedules.
//
//   rank 0 | F0 F1 .. .. B0 B0 .. B1 B1
//   rank 1 | .. F0 B0 B0 F1 B1 B1 .. ..
std::string ToGrid(const Schedule& schedule, const GridOptions& options = {});

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_GRID_H_
