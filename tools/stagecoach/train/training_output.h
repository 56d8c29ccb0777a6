#ifndef STAGECOACH_TOOLS_STAGECOACH_TRAIN_TRAINING_OUTPUT_H_
#define STAGECOACH_TOOLS_STAGECOACH_TRAIN_TRAINING_OUTPUT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "engine/session/training_observer.h"
#include "tools/stagecoach/flags/run_flags.h"
#include "tools/stagecoach/train/run_log.h"
#include "tools/stagecoach/train/run_page.h"

namespace stagecoach::tools {

// Everything that `train` prints and logs of a run: its report and its files of metrics, in the
// process of rank 0 alone. Signals stop the run rather than the program from its start on.
class TrainingOutput final : public engine::TrainingObserver {
 public:
  explicit TrainingOutput(OutputOptions options) : options_(std::move(options)) {}

  absl::Status Start(const engine::RunConfig& config, const engine::TrainingRun& run) override;
  absl::Status Ready(const engine::RunConfig& config, const engine::TrainingRun& run,
                     const engine::TrainingStart& start) override;
  void Step(const engine::FitProgress& progress) override;
  void Epoch(const engine::EpochResult& result) override;
  void Evaluation(const engine::EpochResult& result) override;
  void Answers(const engine::EpochResult& result,
               const std::vector<engine::SampledAnswer>& answers) override;
  void Resumed(const engine::RestoredCheckpoint& checkpoint) override;
  void OnRecovered(int64_t steps, int epoch) override;
  void Saved(const engine::SaveReport& save) override;
  void End(const engine::TrainingRun& run, const engine::TrainingOutcome& outcome) override;

  // Prints a notice about the run, has it on the page, and makes it an event of --json as well:
  // after that of the plan, if it is not there yet. May be called from any thread.
  void Notice(const std::string& line) ABSL_LOCKS_EXCLUDED(mutex_);

  // False if a log that was asked for could not be written, which it has said.
  bool is_logged() const;

  // The run has ended with an error.
  void Fail(const absl::Status& error);

 private:
  // Adds a line to the notes of the page.
  void Note(const std::string& text) ABSL_LOCKS_EXCLUDED(mutex_);
  void PassNotes() ABSL_LOCKS_EXCLUDED(mutex_);

  const OutputOptions options_;
  std::unique_ptr<engine::TrainingObserver> report_;
  std::vector<std::unique_ptr<RunLog>> logs_;
  std::vector<const RunLog*> asked_;  // those of them that flags name
  RunPage* page_ = nullptr;           // one of them; null: there is none
  base::Mutex mutex_;
  bool has_begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool prints_notices_ ABSL_GUARDED_BY(mutex_) = false;  // as events
  // From before the report begins.
  std::vector<std::string> early_notices_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> notes_ ABSL_GUARDED_BY(mutex_);  // that the page does not have yet
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TRAIN_TRAINING_OUTPUT_H_
