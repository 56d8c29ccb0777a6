#ifndef STAGECOACH_TOOLS_STAGECOACH_TERMINAL_TERMINAL_H_
#define STAGECOACH_TOOLS_STAGECOACH_TERMINAL_TERMINAL_H_

#include <string>

#include "schedule/render/timeline.h"

namespace stagecoach::tools {

// Returns the columns of the terminal on standard output; 0 if it is not one that can redraw a line
// or show colors.
int TerminalColumns();

// Replaces the last line on a terminal, which has no newline after it; elsewhere does nothing.
void RedrawLine(const std::string& line);

// Does the same if standard error is the terminal; "" leaves the line empty.
void RedrawErrorLine(const std::string& line);
bool CanRedrawErrorLine();

// Returns the options of a timeline as wide as the terminal, in color; without a terminal, of one
// of 100 columns without color.
schedule::TimelineOptions TerminalTimeline();

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TERMINAL_TERMINAL_H_
