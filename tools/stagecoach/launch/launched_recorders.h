#ifndef STAGECOACH_TOOLS_STAGECOACH_LAUNCH_LAUNCHED_RECORDERS_H_
#define STAGECOACH_TOOLS_STAGECOACH_LAUNCH_LAUNCHED_RECORDERS_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/diagnosis/flight_recorders.h"
#include "engine/diagnosis/hang_report.h"
#include "tools/stagecoach/terminal/scratch_folder.h"

// The recorders in which the ranks of a run keep their last actions, and what they tell of its
// failure.
namespace stagecoach::tools {

// Of a run that `launch` starts, maybe several times: a folder "rings" among its logs, or else
// a temporary one, which is removed unless it is to be kept.
class LaunchedRecorders {
 public:
  static absl::StatusOr<std::unique_ptr<LaunchedRecorders>> Make(const std::string& log_dir);

  const std::string& folder() const { return folder_; }
  // While they run: the rank that holds up the others, if nothing has happened for that long in the
  // middle of a step (engine/diagnosis/hang_report.h).
  std::optional<engine::HangReport> FindHang(absl::Duration patience) const;
  // After processes have failed: writes the merged trace into the folder, if that will stay.
  // Returns which rank stopped first, and where the trace is; "" if no rank had begun. `is_last`:
  // they will not be started again.
  std::string Explain(bool is_last);
  // Before they are started again: removes the recorders.
  void Clear();

 private:
  std::string folder_;
  std::unique_ptr<ScratchFolder> scratch_;  // null if it is among the logs
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_LAUNCH_LAUNCHED_RECORDERS_H_
