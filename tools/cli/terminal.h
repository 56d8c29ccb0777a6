#ifndef STAGECOACH_TOOLS_CLI_TERMINAL_H_
#define STAGECOACH_TOOLS_CLI_TERMINAL_H_

#include <string>

#include "schedule/pictures/timeline.h"

namespace stagecoach::tools {

// Columns of the terminal that standard output is; 0 if it is none that can redraw a line or show
// colors.
int TerminalColumns();

// Replaces the last line on a terminal, which has no newline behind it; elsewhere does nothing.
void RedrawLine(const std::string& line);

// The same where standard error is the terminal; "" leaves the line empty.
void RedrawErrorLine(const std::string& line);
bool CanRedrawErrorLine();

// A timeline as wide as the terminal, in color, or 100 columns without where there is none.
schedule::TimelineOptions TerminalTimeline();

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_TERMINAL_H_
