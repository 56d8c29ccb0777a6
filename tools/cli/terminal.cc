#include "tools/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/string_view.h"

namespace stagecoach::tools {

int TerminalColumns() {
  const char* type = std::getenv("TERM");
  if (isatty(STDOUT_FILENO) == 0 || type == nullptr || absl::string_view(type) == "dumb") return 0;
  winsize size = {};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

void RedrawLine(const std::string& line) {
  if (TerminalColumns() == 0) return;
  std::printf("\r\x1b[K%s", line.c_str());
  std::fflush(stdout);
}

schedule::TimelineOptions TerminalTimeline() {
  const int columns = TerminalColumns();
  return {.columns = columns > 0 ? columns : 100, .color = columns > 0};
}

}  // namespace stagecoach::tools
