#ifndef STAGECOACH_TOOLS_TERMINAL_H_
#define STAGECOACH_TOOLS_TERMINAL_H_

namespace stagecoach::tools {

// Columns of the terminal that standard output is; 0 if it is none that can redraw a line or show
// colours.
int TerminalColumns();

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_TERMINAL_H_
