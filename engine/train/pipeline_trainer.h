#ifndef STAGECOACH_ENGINE_TRAIN_PIPELINE_TRAINER_H_
#define STAGECOACH_ENGINE_TRAIN_PIPELINE_TRAINER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/diagnosis/rings.h"
#include "engine/run/executor.h"
#include "engine/run/rank_group.h"
#include "engine/train/pace_watch.h"
#include "engine/train/saved_state.h"
#include "engine/train/step_traces.h"
#include "engine/train/trainer.h"

namespace stagecoach::engine {

// The trainer: a group of devices, each with the executor of its rank. pipeline_trainer.cc has the
// start and the runs; pipeline_state.cc what is known of devices, traces and parameters, and how
// they are saved and restored; pipeline_nonfinite.cc what comes of numbers that are not finite.
class PipelineTrainer final : public Trainer {
 public:
  PipelineTrainer(PreparedRun run, const TrainerOptions& options)
      : run_(std::move(run)), options_(options) {}

  // An executor owns memory of its device, which transfers may still use.
  ~PipelineTrainer() override {
    if (group_ != nullptr) group_->Disconnect();
  }

  absl::Status Initialize();

  absl::StatusOr<StepResult> Step(const Dataset& data, absl::Span<const int64_t> rows,
                                  absl::Span<const int64_t> next_rows) override;
  absl::StatusOr<Evaluation> Evaluate(const Dataset& data, const StopFunction& stop) override;
  absl::StatusOr<Evaluation> PredictFrom(const Dataset& data, int64_t first_row,
                                         const TakeOutputs& take) override;
  absl::StatusOr<bool> PrepareChoice(int64_t ids) override;
  absl::Status Choose(const Dataset& sequence, int64_t most, const TakeId& take) override;
  absl::Status BeginSave(const std::string& folder, const SaveOptions& options) override;
  absl::StatusOr<std::string> FinishSave() override;
  bool is_saving() const override { return saved_state_->is_under_way(); }
  absl::StatusOr<RestoredCheckpoint> Restore(const std::string& path) override;
  const PreparedRun& run() const override { return run_; }
  int64_t steps() const override { return steps_; }
  absl::StatusOr<std::vector<DeviceReport>> Devices() override;
  absl::StatusOr<schedule::Trace> LastTrace() override;
  absl::StatusOr<schedule::Costs> MeasuredCosts() override;
  absl::StatusOr<std::string> ParametersHash() override;
  absl::StatusOr<std::vector<float>> Parameter(const std::string& name) override;
  absl::Status SetParameter(const std::string& name, absl::Span<const float> values) override;
  absl::Status SetParameters(const ValuesOf& values_of) override;
  bool can_lose_processes() const override;
  bool may_complete_step() const override;
  absl::Status CompleteStep() override;
  absl::StatusOr<KeptState> Keep() override;
  absl::StatusOr<DataPosition> Adopt(const KeptState* own) override;

 private:
  absl::Status CreateExecutor(int device);
  // A run of the schedule by all devices; `function(device, is_measured)`.
  absl::Status RunSchedule(absl::FunctionRef<absl::Status(int, bool)> function);
  absl::Status CreateRings();
  // Where all ranks are here, and one has waited for too long, an error with what has held it up.
  absl::Status Explained(const absl::Status& status) const;
  // Among processes: products are computed in one way wherever they are.
  absl::Status CheckChoices();
  // The batch as the replica of a device takes it.
  Batch OwnBatch(const Batch& batch, int device) const;
  // What the plan says of a device, and what was measured, of one that is here.
  DeviceReport ReportPlanned(int device) const;
  void AddMeasurements(int index, DeviceReport& report) const;
  absl::Status CheckTraced();
  absl::Status CheckData(const Dataset& data) const;
  absl::Status CheckMayTrain() const;
  // Which results of a forward pass are wanted.
  struct Wanted {
    bool loss = false;
    bool outputs = false;
  };
  // A forward pass of the batch of `data` that follows the rows evaluated so far, which adds to
  // them.
  absl::Status RunForward(const Dataset& data, Wanted wanted, Evaluation& sums);
  // Before the first forward pass with outputs.
  absl::Status PrepareOutputs();
  absl::StatusOr<Evaluation> PredictAll(const Dataset& data, int64_t first_row,
                                        const TakeOutputs& take);
  // The only one of a process.
  Executor& own_executor() const;
  // Completes the updates of a step that has failed, on all devices here.
  absl::Status CompleteUpdates();
  // The last run of training is then the last step.
  void EndStep();
  // After a step, if it has numbers that are not finite: an error, or why it was skipped. All
  // processes get the same.
  absl::Status EndNonFinite(const Batch& batch, StepResult& taken, bool can_search);
  absl::StatusOr<std::string> WhereNotFinite(const Batch& batch);
  std::string Describe(const NonFinite& found) const;
  // The first micro-batch of the last step whose loss is not finite, if there is one.
  int FirstWithoutLoss() const;
  // One that knows the results of a run of the replica.
  const Executor& ExecutorOf(int replica) const;
  // Adds those of the last run, by rows, so that a sum over runs is the same however many rows each
  // has.
  void AddResults(double& loss, int64_t& correct) const;

  const PreparedRun run_;
  const TrainerOptions options_;
  std::unique_ptr<RankGroup> group_;
  std::unique_ptr<Rings> rings_;
  std::vector<std::unique_ptr<Executor>> executors_;  // index: device; null where it is elsewhere
  std::vector<int64_t> evaluation_rows_;
  bool has_prepared_outputs_ = false;
  std::unique_ptr<PaceWatch> pace_watch_;  // null if there is none to be told
  std::unique_ptr<StepTraces> traces_;     // null without tracing
  std::unique_ptr<SavedState> saved_state_;
  int64_t steps_ = 0;
  int64_t samples_ = 0;           // rows of these steps
  int64_t restored_steps_ = 0;    // of those, the ones before a checkpoint
  int64_t runs_ = 0;              // of either schedule
  int64_t measured_ns_ = 0;       // of those that were measured
  int64_t last_measured_ns_ = 0;  // of the last one; 0 if it was not
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_PIPELINE_TRAINER_H_
