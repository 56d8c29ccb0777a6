#ifndef STAGECOACH_ENGINE_SESSION_TRAINING_PROCESS_H_
#define STAGECOACH_ENGINE_SESSION_TRAINING_PROCESS_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/system/file_lock.h"
#include "engine/checkpoint/checkpoint_values.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/checkpoint/peft.h"
#include "engine/comm/rendezvous.h"
#include "engine/comm/supervisor.h"
#include "engine/session/answer_sampler.h"
#include "engine/session/process_group.h"
#include "engine/session/run_config.h"
#include "engine/session/training_hooks.h"
#include "engine/train/fit.h"
#include "engine/train/recovery/state_snapshot.h"
#include "engine/train/trainer.h"

namespace stagecoach::engine {

// Trains as one process of a run, from the plan to the end. If another process of the run is lost
// and replaced, it keeps what it has trained and continues from there.
class TrainingProcess {
 public:
  // `resumes`: from a checkpoint. `lock`: that of the folder of checkpoints, if it exists already.
  // `supervisor`: null if there is none. `hooks` and `supervisor` outlive this.
  TrainingProcess(const TrainingHooks& hooks, bool resumes, std::optional<base::FileLock> lock,
                  Supervisor* supervisor)
      : hooks_(hooks), resumes_(resumes), lock_(std::move(lock)), supervisor_(supervisor) {}

  // `group`: the processes of the run; it has no rendezvous if there is one process. After an
  // error, it may be called again with the same options and another group.
  absl::StatusOr<TrainingOutcome> Train(RunConfig options, const ProcessGroup& group);

 private:
  absl::Status Begin(RunConfig& options, const ProcessGroup& group);
  // Makes the run's folder, if it is to have one of its own, and has it saved there; among
  // processes, in that of the first rank. All processes call this. A notice says why there is none.
  absl::Status TakeOwnFolder(RunConfig& options, const ProcessGroup& group);
  // Called if all others survive: agrees with them on a step, and keeps a snapshot of the trainer.
  absl::Status PrepareRecovery(const RunConfig& options, Rendezvous& rendezvous);
  // What a run that begins starts from, if not at random.
  struct InitialValues {
    std::optional<HuggingFaceFolder> parameters;
    std::optional<CheckpointValues> checkpoint;
    std::optional<PeftFolder> adapters;
  };
  static absl::StatusOr<InitialValues> OpenInitialValues(const RunConfig& options,
                                                         const TrainingRun& run);
  // Of a new trainer, which then has the state of that position.
  absl::StatusOr<DataPosition> FindStart(const RunConfig& options, bool goes_on,
                                         const InitialValues& initial, Trainer& trainer);
  // Called after an evaluation. An error is told, and the run continues.
  void SampleAnswers(const RunConfig& options, const EpochResult& result);
  absl::StatusOr<TrainingOutcome> TrainToTheEnd(const RunConfig& options, int restarts,
                                                bool goes_on);

  const TrainingHooks& hooks_;
  TrainingObserver silent_;
  TrainingObserver* const observer_ = hooks_.observer == nullptr ? &silent_ : hooks_.observer;
  const bool resumes_;
  std::optional<base::FileLock> lock_;
  Supervisor* const supervisor_;
  std::optional<TrainingRun> run_;
  std::string own_folder_;                  // in RunConfig::runs; "": it has none
  std::unique_ptr<AnswerSampler> sampler_;  // null: no answers are asked for
  std::shared_ptr<Rendezvous> rendezvous_;  // outlives the trainer
  std::unique_ptr<Trainer> trainer_;
  DataPosition position_;                  // of the trainer
  std::optional<StateSnapshot> snapshot_;  // of the one before, until another has it
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_TRAINING_PROCESS_H_
