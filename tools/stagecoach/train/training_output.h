#ifndef STAGECOACH_TOOLS_STAGECOACH_TRAIN_TRAINING_OUTPUT_H_
#define STAGECOACH_TOOLS_STAGECOACH_TRAIN_TRAINING_OUTPUT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/session/training_observer.h"
#include "tools/stagecoach/flags/run_flags.h"
#include "tools/stagecoach/train/run_log.h"

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

  // Prints a notice, and makes it an event of --json as well: after that of the plan, if it is not
  // there yet.
  void Notice(const std::string& line);

  // False if a log could not be written, which it has said.
  bool is_logged() const;

 private:
  void AddNotice(const std::string& line) const;

  const OutputOptions options_;
  std::unique_ptr<engine::TrainingObserver> report_;
  bool has_begun_ = false;
  bool prints_notices_ = false;  // as events
  std::vector<std::unique_ptr<RunLog>> logs_;
  std::vector<std::string> early_notices_;  // from before the report begins
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TRAIN_TRAINING_OUTPUT_H_
