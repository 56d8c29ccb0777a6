#ifndef STAGECOACH_ENGINE_SESSION_TRAINING_H_
#define STAGECOACH_ENGINE_SESSION_TRAINING_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/data/formats/load.h"
#include "engine/session/process_group.h"
#include "engine/session/run_config.h"
#include "engine/train/prepared_run.h"
#include "engine/train/trainer.h"

// How a session trains, so that the same configuration gives the same bits in every function.
namespace stagecoach::engine {

// Returns the number of steps of a run, and of its epochs, of which the last may end early.
int64_t StepsOf(const RunConfig& options, const TrainingRun& run);
int EpochsOf(const RunConfig& options, const TrainingRun& run);

// Returns a usage error if a flag is for another form of data than this: "--drop" is for tables.
absl::Status CheckFlagOfForm(const std::string& flag, const DataSource& source);

inline absl::Duration LongestWait(const RunConfig& options) {
  return absl::Seconds(options.deadline_seconds);
}

// The source of a trainer's parameters.
struct ParameterStart {
  bool is_drawn = true;     // else they are set or restored before the first step
  std::string fingerprint;  // lines that identify what they are set to (TrainerOptions)
};

// Creates a trainer of the run. `group`: the processes of the run, whose rendezvous outlives the
// trainer; it has none if there is one process. Errors are those of Trainer::Create; if a GPU runs
// out of memory, the error is Unavailable.
absl::StatusOr<std::unique_ptr<Trainer>> MakeTrainer(const RunConfig& options,
                                                     const TrainingRun& run,
                                                     const ProcessGroup& group,
                                                     const ParameterStart& start = {});

// Memory that a run needs in addition to its plan's.
struct MemoryUse {
  bool saves = false;        // copies of the state are written while the run continues
  bool keeps = false;        // the state is copied when another process is lost
  int64_t output_bytes = 0;  // gathered outputs of the last layer
};
// Returns the bytes of this machine's memory that the devices of a run take: that of CPU devices,
// and that of stashes that are moved to the host.
int64_t HostBytesOf(const PreparedRun& run);
// Returns the bytes of what a checkpoint keeps of all stages.
int64_t SavedBytesOf(const PreparedRun& run);
// Returns ResourceExhausted if this machine has less memory than the run takes of it.
absl::Status CheckHasMemoryFor(const PreparedRun& run, const MemoryUse& use);
// Returns an error of CheckGpusHaveRoom or CheckHasMemoryFor.
absl::Status CheckHasRoom(const RunConfig& options, const PreparedRun& run, const MemoryUse& use);

// Returns the metrics that evaluations compute from outputs: those that are asked for, or that the
// run is judged by.
std::vector<std::string> EvaluatedMetrics(const RunConfig& options);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_TRAINING_H_
