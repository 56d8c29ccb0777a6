#ifndef STAGECOACH_ENGINE_TRAIN_RECOVERY_STATE_SNAPSHOT_H_
#define STAGECOACH_ENGINE_TRAIN_RECOVERY_STATE_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/checkpoint/manifest.h"
#include "engine/comm/rendezvous.h"

namespace stagecoach::engine {

// Recovery of a run with replicas that has lost a process. The other processes live on. They and a
// new one, in the place of the lost one, meet at another rendezvous, and
//
//   1. agree on the step that all of them have done or can still do (AgreeOnStep). A run that is
//      prepared with schedule::ResultsPlace::kBeforeSteps updates no parameter before every rank
//      has all that its own updates take. So if one process has done a step, all others can;
//   2. each process that lives completes that step if it must (Trainer::CompleteStep), and copies
//      what it has trained (Trainer::TakeSnapshot);
//   3. all make a new trainer, which takes over the copies (Trainer::RestoreSnapshot). The new
//      process gets those of another replica of its rank.
//
// At most the step in progress is repeated.

// The state that a process has trained up to a step, in host memory.
struct StateSnapshot {
  int64_t steps = 0;    // Trainer::steps()
  int64_t samples = 0;  // of all steps
  // The position after these steps; Fit's. None if the last step was completed in recovery: only
  // the processes that had done it know its loss.
  std::optional<DataPosition> position;
  // Everything that its device trains, parameters and states of the optimizer, in a fixed order.
  std::vector<std::vector<std::byte>> pieces;
};

// The progress of a process's trainer after a failure.
struct StepProgress {
  int64_t steps = 0;          // completed
  bool may_complete = false;  // one more (Trainer::may_complete_step)
};

// Returns the number of steps from which all resume; called by all processes of a rendezvous at the
// same place. `own`: none in a new process. Aborted: none is left, or they cannot arrive at the
// same step.
absl::StatusOr<int64_t> AgreeOnStep(Rendezvous& rendezvous, const std::optional<StepProgress>& own,
                                    absl::Duration deadline);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_RECOVERY_STATE_SNAPSHOT_H_
