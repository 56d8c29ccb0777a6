#ifndef STAGECOACH_ENGINE_TRAIN_KEPT_STATE_H_
#define STAGECOACH_ENGINE_TRAIN_KEPT_STATE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/checkpoint/manifest.h"
#include "engine/launch/rendezvous.h"

namespace stagecoach::engine {

// How a run with replicas goes on when it has lost a process. The other processes live on. They and
// a new one, in the place of the one that was lost, meet at another rendezvous, and
//
//   1. agree on the step that all of them have done or can still do (AgreeOnStep). A run that is
//      prepared with schedule::ResultsPlace::kBeforeSteps updates no parameter before every rank
//      has all that its own updates take. So if one process has done a step, all others can;
//   2. each process that lives completes that step if it must (Trainer::CompleteStep), and copies
//      what it has trained (Trainer::Keep);
//   3. all make a new trainer, to which the copies are given (Trainer::Adopt). The new process gets
//      those of another replica of its rank.
//
// At most the step that was under way is done once more.

// What a process has trained until a step, in host memory.
struct KeptState {
  int64_t steps = 0;    // Trainer::steps()
  int64_t samples = 0;  // rows of all steps
  // After these steps; Fit's. None if the last step was completed: its loss is not known here, but
  // in the processes that had done it.
  std::optional<DataPosition> position;
  // All that its device trains, parameters and states of the optimizer, in a fixed order.
  std::vector<std::vector<float>> pieces;
};

// After a failure, how far the trainer of a process has come.
struct Standing {
  int64_t steps = 0;          // done
  bool may_complete = false;  // one more (Trainer::may_complete_step)
};

// By all processes of a rendezvous at the same place: the number of steps with which all go on.
// `own`: none in a process that is new. Aborted: none is left, or they cannot come to the same
// step.
absl::StatusOr<int64_t> AgreeOnStep(Rendezvous& rendezvous, const std::optional<Standing>& own,
                                    absl::Duration deadline);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_KEPT_STATE_H_
