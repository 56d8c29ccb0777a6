#ifndef STAGECOACH_TOOLS_STAGECOACH_TERMINAL_TERMINAL_NOTICES_H_
#define STAGECOACH_TOOLS_STAGECOACH_TERMINAL_TERMINAL_NOTICES_H_

#include "engine/session/machine/notices.h"

namespace stagecoach::tools {

// Returns notices that are printed to stderr: lines by PrintNotice and PrintRankNotice
// (messages.h), work that takes long by SlowNotice (slow_notice.h).
engine::Notices TerminalNotices();

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TERMINAL_TERMINAL_NOTICES_H_
