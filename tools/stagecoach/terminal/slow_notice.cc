#include "tools/stagecoach/terminal/slow_notice.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tools/stagecoach/terminal/messages.h"
#include "tools/stagecoach/terminal/terminal.h"

namespace stagecoach::tools {

SlowNotice::SlowNotice(std::string text, absl::Duration patience) : text_(std::move(text)) {
  try {
    watch_ = std::thread([this, patience] { Watch(patience); });
  } catch (const std::system_error&) {  // the system refuses a thread: nothing is printed
  }
}

SlowNotice::~SlowNotice() {
  done_.Notify();
  if (watch_.joinable()) watch_.join();
}

void SlowNotice::Watch(absl::Duration patience) const {
  const absl::Time start = absl::Now();
  if (done_.WaitForNotificationWithTimeout(patience)) return;
  if (!CanRedrawErrorLine()) {
    PrintNotice(text_);
    return;
  }
  do {
    RedrawErrorLine(absl::StrCat(text_, ", ", absl::ToInt64Seconds(absl::Now() - start), " s"));
  } while (!done_.WaitForNotificationWithTimeout(absl::Seconds(1)));
  RedrawErrorLine("");
}

}  // namespace stagecoach::tools
