#include "tools/stagecoach/train/run_log.h"

#include "absl/strings/str_cat.h"
#include "base/system/system_calls.h"
#include "tools/stagecoach/terminal/messages.h"

namespace stagecoach::tools {

bool RunLog::Options::Records(int64_t step) const {
  if (every_steps > 0) return step % every_steps == 0;
  int64_t interval = 1;
  while (step > 1000 * interval) interval *= 10;
  return step % interval == 0;
}

absl::StatusOr<LogFile> LogFile::Open(const std::string& path, bool anew, const char* flag) {
  File file(std::fopen(path.c_str(), anew ? "we" : "ae"));
  if (file == nullptr) return base::WriteError("write", path);
  return LogFile(path, flag, std::move(file));
}

void LogFile::Write(absl::string_view text) {
  if (!status_.ok()) return;
  const bool is_written = std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() &&
                          std::fflush(file_.get()) == 0;
  if (is_written) return;
  status_ = base::WriteError("write", path_);
  PrintNotice(absl::StrCat("the run continues, but without ", flag_, ": ", status_.message()));
}

}  // namespace stagecoach::tools
