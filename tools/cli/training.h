#ifndef STAGECOACH_TOOLS_CLI_TRAINING_H_
#define STAGECOACH_TOOLS_CLI_TRAINING_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/train/prepared_run.h"
#include "engine/train/trainer.h"
#include "tools/cli/launched.h"
#include "tools/cli/run_options.h"

// How commands train, so that the same options give the same bits whichever trains.
namespace stagecoach::tools {

// How many steps a run of so many rows takes, and in how many epochs, of which the last may end
// early.
int64_t StepsOf(const RunOptions& options, const Run& run);
int EpochsOf(const RunOptions& options, const Run& run);

inline absl::Duration LongestWait(const RunOptions& options) {
  return absl::Seconds(options.deadline_seconds);
}

// Where the parameters of a trainer come from.
struct ParameterStart {
  bool is_drawn = true;     // else they are set or restored before the first step
  std::string fingerprint;  // lines (TrainerOptions) of what they are set to
};

// A trainer of the run, with the seed of the options. `meeting`: with the other processes of the
// run, whose rendezvous outlives the trainer; without one if there is one process. Errors are those
// of Trainer::Create; a GPU whose memory gives out is Unavailable.
absl::StatusOr<std::unique_ptr<engine::Trainer>> MakeTrainer(const RunOptions& options,
                                                             const Run& run, const Meeting& meeting,
                                                             const ParameterStart& start = {});

// ResourceExhausted if the plan is for CPU devices and this machine has less memory than they need.
struct MemoryUse {
  bool saves = false;        // copies of what is saved are written beside the run
  bool keeps = false;        // what is trained is copied when another process is lost
  int64_t output_bytes = 0;  // what the last layer gives is gathered
};
absl::Status CheckHasMemoryFor(const engine::PreparedRun& run, const MemoryUse& use);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_TRAINING_H_
