#ifndef STAGECOACH_ENGINE_TRAIN_PIPELINE_TRAINER_H_
#define STAGECOACH_ENGINE_TRAIN_PIPELINE_TRAINER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/diagnosis/flight_recorders.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/part_sums.h"
#include "engine/runtime/rank_group.h"
#include "engine/train/measure/step_time_monitor.h"
#include "engine/train/measure/step_traces.h"
#include "engine/train/saved_state.h"
#include "engine/train/trainer.h"

namespace stagecoach::engine {

// The trainer: a group of devices, each with the executor of its rank. pipeline_trainer.cc has the
// start and the runs; pipeline_state.cc what is known about devices, traces and parameters, and how
// they are saved and restored; pipeline_nonfinite.cc the handling of NaN and infinity.
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
  absl::StatusOr<Evaluation> Predict(const Dataset& data, const TakeOutputs& take) override;
  absl::StatusOr<Evaluation> EvaluateRows(const Dataset& data,
                                          const TakeEvaluations& take) override;
  absl::StatusOr<std::vector<float>> Pass(const Dataset& sequences,
                                          const PassedRows& passed) override;
  absl::StatusOr<bool> PrepareChoice(int64_t ids) override;
  absl::Status Choose(const Dataset& sequence, int64_t last, int64_t most,
                      const TakeId& take) override;
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
  absl::Status WithAverages(absl::FunctionRef<absl::Status()> function) override;
  absl::Status SetParameter(const std::string& name, absl::Span<const float> values) override;
  absl::Status SetParameters(const ValuesOf& values_of) override;
  absl::Status SetAdapters(const ValuesOf& values_of) override;
  bool can_lose_processes() const override;
  bool may_complete_step() const override;
  absl::Status CompleteStep() override;
  absl::StatusOr<StateSnapshot> TakeSnapshot() override;
  absl::StatusOr<DataPosition> RestoreSnapshot(const StateSnapshot* own) override;

 private:
  absl::Status SetThose(bool are_adapters, const ValuesOf& values_of);
  absl::Status CreateExecutor(int device);
  TensorPart PartOf(int device) const;
  // Runs the schedule on all devices; `function(device, is_measured)`.
  absl::Status RunSchedule(absl::FunctionRef<absl::Status(int, bool)> function);
  absl::Status CreateRings();
  // If all ranks are here, and one has waited for too long, returns an error that names the cause
  // of the delay.
  absl::Status Explained(const absl::Status& status) const;
  // Checks, among processes, that products are computed in one way wherever they are.
  absl::Status CheckChoices();
  // Returns the batch as the replica of a device takes it.
  Batch OwnBatch(const Batch& batch, int device) const;
  // Return what the plan says about a device, and add what was measured, for one that is here.
  DeviceReport ReportPlanned(int device) const;
  void AddMeasurements(int index, DeviceReport& report) const;
  absl::Status CheckTraced();
  absl::Status CheckData(const Dataset& data) const;
  absl::Status CheckMayTrain() const;
  // True if parameters have averages that differ from them: before the first step, they do not.
  bool has_averages() const;
  // Before the first step, and before a checkpoint that is older than it: sets the averages.
  absl::Status StartAverages();
  // Exchanges parameters and averages on all devices.
  absl::Status SwapAverages();
  // The wanted results of a forward pass.
  struct Wanted {
    bool loss = false;
    bool outputs = false;
  };
  // Returns the sums of all samples of `data` with their loss divided, as Batch::weight does it.
  static Evaluation WithMeanLoss(Evaluation sums, const Dataset& data);
  // A forward pass of the batch of `data` that follows the rows evaluated so far, which adds to
  // them. Returns what passed.
  absl::StatusOr<Batch> RunForward(const Dataset& data, Wanted wanted, Evaluation& sums);
  absl::Status RunEvaluation(const Batch& batch);
  // Before the first forward pass with outputs.
  absl::Status PrepareOutputs();
  // Returns what `evaluate` does while the averages of parameters are in place.
  absl::StatusOr<Evaluation> EvaluateAverages(
      absl::FunctionRef<absl::StatusOr<Evaluation>()> evaluate);
  // Returns the own result, or an error of any process of the run.
  absl::StatusOr<Evaluation> AgreeOn(absl::StatusOr<Evaluation> own);
  absl::StatusOr<Evaluation> EvaluateAll(const Dataset& data, const StopFunction& stop);
  absl::StatusOr<Evaluation> PredictAll(const Dataset& data, const TakeOutputs& take);
  absl::StatusOr<Evaluation> EvaluateAllRows(const Dataset& data, const TakeEvaluations& take);
  // The only one of a process.
  Executor& own_executor() const;
  // Completes the updates of a step that has failed, on all devices here.
  absl::Status CompleteUpdates();
  // Makes the last run of training the last step.
  void EndStep();
  // Called after a step with NaN or infinity: returns an error, or stores why it was skipped. All
  // processes get the same.
  absl::Status EndNonFinite(const Batch& batch, StepResult& taken, bool can_search);
  absl::StatusOr<std::string> WhereNotFinite(const Batch& batch);
  std::string Describe(const NonFinite& found) const;
  // Returns the first micro-batch of the last step whose loss is NaN or infinite.
  int FirstWithoutLoss() const;
  // Returns an executor that knows the results of a run of the replica.
  const Executor& ExecutorOf(int replica) const;
  // Adds the results of the last run, by rows, so that a sum over runs is the same however many
  // rows each has.
  void AddResults(double& loss, int64_t& correct) const;

  const PreparedRun run_;
  const TrainerOptions options_;
  std::unique_ptr<RankGroup> group_;
  std::unique_ptr<FlightRecorders> recorders_;
  // Index: device; null if it is elsewhere, or a stage has one part.
  std::vector<std::unique_ptr<TransportPartSums>> part_sums_;
  std::vector<std::unique_ptr<Executor>> executors_;  // index: device; null if it is elsewhere
  std::vector<int64_t> evaluation_rows_;
  bool has_prepared_outputs_ = false;
  bool averages_are_in_place_ = false;                  // of the parameters, and these in theirs
  std::unique_ptr<StepTimeMonitor> step_time_monitor_;  // null without a listener
  std::unique_ptr<StepTraces> traces_;                  // null without tracing
  std::unique_ptr<SavedState> saved_state_;
  int64_t steps_ = 0;
  int64_t samples_ = 0;           // those of these steps
  int64_t restored_steps_ = 0;    // those before a checkpoint
  int64_t runs_ = 0;              // of either schedule
  int64_t measured_ns_ = 0;       // time of the measured runs
  int64_t last_measured_ns_ = 0;  // time of the last run; 0 if it was not measured
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_PIPELINE_TRAINER_H_
