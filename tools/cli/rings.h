#ifndef STAGECOACH_TOOLS_CLI_RINGS_H_
#define STAGECOACH_TOOLS_CLI_RINGS_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/diagnosis/rings.h"
#include "engine/diagnosis/standstill.h"
#include "engine/launch/launch.h"
#include "tools/cli/scratch_folder.h"

// The rings in which the ranks of a run keep their last actions, and what they tell of its failure.
namespace stagecoach::tools {

// Tells processes the folder for their rings.
inline constexpr char kRingsVariable[] = "STAGECOACH_RINGS";

// Where the rings of this process are: in the folder of the variable, if it is set. `launch`: of
// the processes that have met.
engine::RingOptions FindRings(const engine::Launch& launch);

// Of a run that `launch` starts, maybe several times: a folder "rings" among its logs, or else a
// temporary one, which is removed unless it is to be kept.
class LaunchedRings {
 public:
  static absl::StatusOr<std::unique_ptr<LaunchedRings>> Make(const std::string& log_dir);

  const std::string& folder() const { return folder_; }
  // While they run: the rank that holds up the others, if nothing has happened for that long in the
  // middle of a step (engine/diagnosis/standstill.h).
  std::optional<engine::Standstill> FindStandstill(absl::Duration patience) const;
  // After processes have failed: writes the merged trace into the folder, if that will stay.
  // Returns which rank stopped first, and where the trace is; "" if no rank had begun. `is_last`:
  // they will not be started again.
  std::string Explain(bool is_last);
  // Before they are started again: removes the rings.
  void Clear();

 private:
  std::string folder_;
  std::unique_ptr<ScratchFolder> scratch_;  // null if it is among the logs
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_RINGS_H_
