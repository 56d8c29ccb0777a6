#ifndef STAGECOACH_TOOLS_STAGECOACH_TERMINAL_SCRATCH_FOLDER_H_
#define STAGECOACH_TOOLS_STAGECOACH_TERMINAL_SCRATCH_FOLDER_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/system/file_lock.h"

namespace stagecoach::tools {

// A folder that is removed with all its contents, unless it is to be kept. Folders that a process
// has kept or, when killed, left behind are removed when one of the same command next makes a
// folder in that place.
class ScratchFolder {
 public:
  // Makes the folder in TMPDIR or /tmp, with a name that contains the command's. Internal: it
  // cannot be made there.
  static absl::StatusOr<std::unique_ptr<ScratchFolder>> Make(const std::string& command);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }
  void Keep() { kept_ = true; }

 private:
  ScratchFolder(std::string path, std::optional<base::FileLock> lock);

  const std::string path_;
  std::optional<base::FileLock> lock_;  // held by this process; none if unsupported
  bool kept_ = false;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TERMINAL_SCRATCH_FOLDER_H_
