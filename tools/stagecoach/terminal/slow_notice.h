#ifndef STAGECOACH_TOOLS_STAGECOACH_TERMINAL_SLOW_NOTICE_H_
#define STAGECOACH_TOOLS_STAGECOACH_TERMINAL_SLOW_NOTICE_H_

#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace stagecoach::tools {

// Says on standard error what the program is doing if that takes longer than `patience`: as a
// notice (messages.h), or on a terminal as a line that counts the seconds and then disappears. It
// lasts as long as the object.
class SlowNotice {
 public:
  // `text` is, for example, "reads data.csv (1.2 GB)".
  explicit SlowNotice(std::string text, absl::Duration patience = absl::Milliseconds(1500));
  SlowNotice(const SlowNotice&) = delete;
  SlowNotice& operator=(const SlowNotice&) = delete;
  ~SlowNotice();

 private:
  void Watch(absl::Duration patience) const;

  const std::string text_;
  absl::Notification done_;
  std::thread watch_;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TERMINAL_SLOW_NOTICE_H_
