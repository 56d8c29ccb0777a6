#include "tools/stagecoach/terminal/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/string_view.h"

namespace stagecoach::tools {

namespace {

// Returns whether it is a terminal that can redraw a line.
bool CanRedraw(int file) {
  const char* type = std::getenv("TERM");
  return isatty(file) != 0 && type != nullptr && absl::string_view(type) != "dumb";
}

void Redraw(std::FILE* stream, const std::string& line) {
  if (!CanRedraw(fileno(stream))) return;
  std::fprintf(stream, "\r\x1b[K%s", line.c_str());
  std::fflush(stream);
}

}  // namespace

int TerminalColumns() {
  if (!CanRedraw(STDOUT_FILENO)) return 0;
  winsize size = {};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

void RedrawLine(const std::string& line) { Redraw(stdout, line); }

void RedrawErrorLine(const std::string& line) { Redraw(stderr, line); }

bool CanRedrawErrorLine() { return CanRedraw(STDERR_FILENO); }

schedule::TimelineOptions TerminalTimeline() {
  const int columns = TerminalColumns();
  return {.columns = columns > 0 ? columns : 100, .color = columns > 0};
}

}  // namespace stagecoach::tools
