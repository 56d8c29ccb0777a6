#include "tools/stagecoach/terminal/terminal_notices.h"

#include <memory>
#include <string>

#include "tools/stagecoach/terminal/messages.h"
#include "tools/stagecoach/terminal/slow_notice.h"

namespace stagecoach::tools {

engine::Notices TerminalNotices() {
  return {.on_notice = PrintNotice,
          .on_rank_notice = PrintRankNotice,
          .on_work = [](const std::string& work) { return std::make_shared<SlowNotice>(work); }};
}

}  // namespace stagecoach::tools
