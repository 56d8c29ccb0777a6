#ifndef STAGECOACH_TOOLS_CLI_TRAINING_PROCESS_H_
#define STAGECOACH_TOOLS_CLI_TRAINING_PROCESS_H_

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_lock.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/launch/rendezvous.h"
#include "engine/launch/supervisor.h"
#include "engine/train/fit.h"
#include "engine/train/kept_state.h"
#include "engine/train/trainer.h"
#include "tools/cli/cli11_fwd.h"
#include "tools/cli/launched.h"
#include "tools/cli/report.h"
#include "tools/cli/run_log.h"
#include "tools/cli/run_options.h"

namespace stagecoach::tools {

// What a process does for `train`, from the plan to the last report. Where another process of the
// run is lost and replaced, it keeps what it has trained, and goes on from there.
class TrainingProcess {
 public:
  // `resumes`: from a checkpoint. `lock`: of the folder of checkpoints, if there is one yet.
  // `supervisor`: null if there is none; outlives this.
  TrainingProcess(const CLI::App& flags, bool resumes, std::optional<base::FileLock> lock,
                  engine::Supervisor* supervisor)
      : flags_(flags), resumes_(resumes), lock_(std::move(lock)), supervisor_(supervisor) {}

  // Returns the exit status. `meeting`: with the other processes; without a rendezvous if there is
  // one. After an error, once more with the same options at another meeting.
  absl::StatusOr<int> Train(const RunOptions& options, const Meeting& meeting);

 private:
  absl::Status Begin(const RunOptions& options, const Meeting& meeting);
  // Where all others live on: settles with them from which step, and keeps what the trainer has.
  absl::Status LetGo(const RunOptions& options, engine::Rendezvous& rendezvous);
  // Of a new trainer, which then has the state of that position. `initial`: what a run that begins
  // starts from, if not at random.
  absl::StatusOr<engine::DataPosition> FindStart(
      const RunOptions& options, bool goes_on,
      const std::optional<engine::HuggingFaceFolder>& initial, engine::Trainer& trainer);
  // Where the run goes on from position_.
  absl::Status OpenLogs(const RunOptions& options);
  absl::StatusOr<int> TrainToTheEnd(const RunOptions& options, int restarts, bool goes_on);

  const CLI::App& flags_;
  const bool resumes_;
  std::optional<base::FileLock> lock_;
  engine::Supervisor* const supervisor_;
  std::optional<Run> run_;
  std::unique_ptr<Report> report_;
  std::vector<std::unique_ptr<RunLog>> logs_;       // of the first rank
  std::shared_ptr<engine::Rendezvous> rendezvous_;  // outlives the trainer
  std::unique_ptr<engine::Trainer> trainer_;
  engine::DataPosition position_;          // of the trainer
  std::optional<engine::KeptState> kept_;  // of the one before, until another has it
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_TRAINING_PROCESS_H_
