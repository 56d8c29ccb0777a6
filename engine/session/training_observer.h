#ifndef STAGECOACH_ENGINE_SESSION_TRAINING_OBSERVER_H_
#define STAGECOACH_ENGINE_SESSION_TRAINING_OBSERVER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/session/run_config.h"
#include "engine/train/fit.h"
#include "engine/train/stop_condition.h"
#include "engine/train/trainer.h"

namespace stagecoach::engine {

// How a run ended.
struct TrainingOutcome {
  FitResult fit;
  std::optional<StopCondition> stop_when;
  std::string parameters_hash;
  std::vector<DeviceReport> devices;
  absl::Duration elapsed;  // training and evaluation
  int stop_reason = 0;     // what RunConfig::wants_stop returned, in some process; 0: nothing
};

// The position at which a trainer starts.
struct TrainingStart {
  int64_t step = 0;           // the last step that is done
  bool is_evaluated = false;  // after that step
};

// What a model that is trained says to a test sample.
struct SampledAnswer {
  std::string prompt;        // with the marks of its template
  std::string text;          // without what ends it
  std::string expected;      // what the data say
  bool is_complete = false;  // or it has the most tokens, or the context is full
};

// Hears how a run goes. All calls come from the thread that trains.
class TrainingObserver {
 public:
  virtual ~TrainingObserver() = default;
  // The run is settled. An error ends it.
  virtual absl::Status Start(const RunConfig& /*config*/, const TrainingRun& /*run*/) {
    return absl::OkStatus();
  }
  // The trainer is ready; after the loss of another process, once more. An error ends the run.
  virtual absl::Status Ready(const RunConfig& /*config*/, const TrainingRun& /*run*/,
                             const TrainingStart& /*start*/) {
    return absl::OkStatus();
  }
  virtual void Step(const FitProgress& /*progress*/) {}
  virtual void Epoch(const EpochResult& /*result*/) {}
  // The evaluation is within an epoch.
  virtual void Evaluation(const EpochResult& /*result*/) {}
  // Comes after each evaluation, if answers are sampled (RunConfig::sampled_answers).
  virtual void Answers(const EpochResult& /*result*/,
                       const std::vector<SampledAnswer>& /*answers*/) {}
  // The run resumes from a checkpoint.
  virtual void Resumed(const RestoredCheckpoint& /*checkpoint*/) {}
  // The run continues with the state of other replicas, after a process was lost.
  virtual void OnRecovered(int64_t /*steps*/, int /*epoch*/) {}
  virtual void Saved(const SaveReport& /*save*/) {}
  virtual void End(const TrainingRun& /*run*/, const TrainingOutcome& /*outcome*/) {}
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_TRAINING_OBSERVER_H_
