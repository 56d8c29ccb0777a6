#ifndef STAGECOACH_ENGINE_TRAIN_TRAINER_H_
#define STAGECOACH_ENGINE_TRAIN_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/retention.h"
#include "engine/data/dataset.h"
#include "engine/diagnosis/flight_recorders.h"
#include "engine/models/model.h"
#include "engine/runtime/device/device_report.h"
#include "engine/runtime/device/device_spec.h"
#include "engine/runtime/rank_group.h"
#include "engine/runtime/stage/optimizer.h"
#include "engine/train/learning_rate.h"
#include "engine/train/measure/step_traces.h"
#include "engine/train/prepared_run.h"
#include "engine/train/recovery/state_snapshot.h"
#include "partition/plan/plan.h"
#include "schedule/simulate/costs.h"
#include "schedule/traces/trace.h"

namespace stagecoach::engine {

// The reaction to a step that produces NaN or infinity.
//
// If updates wait for the norm of all gradients (Optimizer::waits_for_norm), such a step changes no
// parameter and no state of the optimizer, on any rank. It is then repeated without updates, layer
// by layer, to find the first that produced such a number, in the first micro-batch; the answer
// does not depend on partition and schedule. Otherwise only the loss of each step is checked, once
// it is done, which costs nothing; parameters have been updated by then.
enum class OnNonFinite : uint8_t {
  kStop,  // Step fails with OutOfRange
  // The run continues. The step counts as one, also for the learning rate and AdamW's t. Needs
  // Optimizer::waits_for_norm.
  kSkip,
  kIgnore,  // nothing is checked: for runs of which only the times matter
};

struct TrainerOptions {
  Optimizer optimizer;
  LearningRate learning_rate;
  uint64_t seed = 1;  // for everything random: the initial parameters, and what layers draw
  // False: SetParameters, Restore or RestoreSnapshot sets the values of all parameters before
  // anything else. They are 0 until then, which saves the time of drawing them.
  bool draws_parameters = true;
  OnNonFinite on_nonfinite = OnNonFinite::kStop;
  DeviceSpec device;
  Exchange exchange = Exchange::kAuto;
  // With one process per device, this process has device rendezvous->rank() of the plan, and every
  // process makes a trainer of the same model, plan and options and makes the same calls. It
  // outlives the trainer. Null: all devices are in this process.
  Rendezvous* rendezvous = nullptr;
  // Lines "name: value" that must be the same in all processes, besides model, plan and these
  // options.
  std::string fingerprint;
  absl::Duration deadline = absl::Minutes(5);  // for any wait of one rank for another
  // Replicas compare their parameters every N steps (0: never by themselves). Step then fails with
  // DataLoss, which names the tensor, if they differ; only a restart repairs that.
  int64_t replica_check_steps = 1000;
  // Storage of the last actions of each device (engine/diagnosis/flight_recorder.h), which others
  // can read if this process is killed.
  RecorderOptions recorders;
  // Called in Step when a rank has become slow (StragglerDetector): for all that are in this
  // process, or, among processes, in that of rank 0. May be empty.
  std::function<void(const std::string& sentence)> on_slow_rank;
  bool trace = false;  // record the times of each action of a step
};

struct StepResult {
  double loss = 0.0;    // mean over the batch's answers, before the update
  int64_t correct = 0;  // answers of the batch whose largest output is at their label
  int64_t rows = 0;     // of the batch
  int64_t answers = 0;  // of these (Dataset::AnswersOf)
  float learning_rate = 0.0F;
  double gradient_norm = 0.0;  // global, before clipping; 0 unless Optimizer::waits_for_norm
  std::string skipped_for;     // why the step changed nothing (OnNonFinite::kSkip); otherwise empty
};

struct Evaluation {
  double loss = 0.0;  // mean over the answers of the data
  int64_t correct = 0;
  int64_t rows = 0;
  int64_t answers = 0;  // of these (Dataset::AnswersOf)
  double accuracy() const {
    return answers > 0 ? static_cast<double>(correct) / static_cast<double>(answers) : 0.0;
  }
};

// The last layer's outputs for consecutive rows of a data set.
struct Outputs {
  int64_t first_row = 0;
  int64_t rows = 0;
  absl::Span<const float> values;  // (rows, output of the model); valid during the call
};
// Receives outputs. Its error ends the call that produces them.
using TakeOutputs = std::function<absl::Status(const Outputs&)>;

// Receives the evaluations of consecutive rows of a data set, each of it alone. Its error ends the
// call that produces them.
using TakeEvaluations = std::function<absl::Status(absl::Span<const Evaluation> rows)>;

// For Trainer::Pass. A micro-batch has consecutive positions of one sequence or, where
// are_sequences, one position each of several, at most OutputRows
// (engine/runtime/stage/layer_cost.h).
struct PassedRows {
  absl::Span<const int64_t> rows;  // micro-batch by micro-batch
  absl::Span<const int64_t> ends;  // of each micro-batch in them
  bool are_sequences = false;
  bool wants_outputs = false;  // of sequences
};

// Is given an id that a model chooses, from a job of a device; false: no more are wanted.
using TakeId = std::function<bool(int32_t id)>;

// Asked whether to end early; among processes, by all at the same places, and all must get the same
// answer (engine/comm/vote.h). Empty: no. An error ends the call.
using StopFunction = std::function<absl::StatusOr<bool>()>;

// Contents of a checkpoint besides what the trainer knows.
struct SaveOptions {
  DataPosition position;
  Retention retention;
  // For resuming or predicting; may be empty.
  std::string program;
  std::string model_source;
  DataEncoding encoding;
  DataFingerprint data;
  std::vector<SavedOption> options;
};

// Unimplemented, with the reason, if the plan asks for what trainers do not support yet: UNSHARD
// and RESHARD in its schedule, layers in another order than the model's.
absl::Status CheckSupported(const partition::Plan& plan);

// Trains a model that is spread over devices. With a plan that only predicts
// (PlanOptions::predicts), it evaluates and predicts, and takes no memory for gradients and the
// optimizer. The same model, data, seed, optimizer, batch, number of micro-batches and number of
// gradient blocks produce the same bits whatever the number of stages, replicas and devices, the
// schedule and the threads per device.
//
// After the first error of a step, every later call returns that error. Among processes, all make
// the same calls, except for const ones, and get the same results; an error of one ends the calls
// of all. Not thread-safe.
class Trainer {
 public:
  // Prepares the run (PrepareRun), makes the devices, and sets every stage's initial parameters.
  // InvalidArgument: the plan does not fit the model, or an option is out of range.
  // FailedPrecondition: the plan's schedule cannot run. ResourceExhausted: a device's budget is too
  // small. Unavailable: there are no such devices. Unimplemented: CheckSupported.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const Model& model,
                                                         const partition::Plan& plan,
                                                         const TrainerOptions& options);
  // Does the same for a prepared run, with the same optimizer and devices, and for the way in which
  // these exchange tensors; otherwise InvalidArgument.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(PreparedRun run,
                                                         const TrainerOptions& options);
  virtual ~Trainer() = default;

  // Runs one step on the given rows of `data`: exactly plan.batch_rows() of them. InvalidArgument:
  // another number of rows, or data that does not fit the model and its loss (CheckFits).
  // FailedPrecondition: the plan has no backward pass.
  //
  // `next_rows`: those of the following step, if known: the host prepares them while GPUs compute
  // this step. They are rows of the same data, which must then not change until that step; they are
  // ignored if their number is not that of a step.
  virtual absl::StatusOr<StepResult> Step(const Dataset& data, absl::Span<const int64_t> rows,
                                          absl::Span<const int64_t> next_rows) = 0;
  absl::StatusOr<StepResult> Step(const Dataset& data, absl::Span<const int64_t> rows) {
    return Step(data, rows, {});
  }

  // Evaluate, Predict and EvaluateRows use the averages of parameters, if there are any
  // (Optimizer::has_ema); training continues from the same bits as without them.

  // Returns loss and accuracy over all rows of `data`; changes nothing. `stop` is asked before each
  // batch: if it says so, the result is over the rows done until then.
  virtual absl::StatusOr<Evaluation> Evaluate(const Dataset& data, const StopFunction& stop) = 0;
  absl::StatusOr<Evaluation> Evaluate(const Dataset& data) { return Evaluate(data, nullptr); }

  // Hands the outputs of all rows of `data` on to `take`, in order, a batch at a time: the
  // model's results before the loss. Without a `take` they are not asked for. Changes nothing. The
  // outputs are gathered from all replicas in host memory: that of this process, or, among
  // processes, of each, so that all are given all. An error of `take` in one process is one for
  // all. The result is that of Evaluate if the data has targets; else it has rows alone.
  // InvalidArgument: a model of ModelForGeneration.
  virtual absl::StatusOr<Evaluation> Predict(const Dataset& data, const TakeOutputs& take) = 0;
  // Hands the evaluation of each row of `data` on to `take`, in order, a batch at a time; changes
  // nothing. It is that of Evaluate with a data set of this row alone, and has the same bits
  // whatever the other rows and the plan. Among processes all are given all, and an error of `take`
  // in one is one for all. The result is that of Evaluate. InvalidArgument: the micro-batches of
  // the plan have several rows.
  virtual absl::StatusOr<Evaluation> EvaluateRows(const Dataset& /*data*/,
                                                  const TakeEvaluations& /*take*/) {
    return absl::UnimplementedError("the trainer does not evaluate single rows");
  }
  // For a model of ModelForGeneration, whose caches then have these positions: passes rows of
  // `sequences` through the stages, of which row s T + t is position t of the sequence s, if each
  // has at most T. Returns the outputs of the model, if they are wanted: (rows, output).
  virtual absl::StatusOr<std::vector<float>> Pass(const Dataset& /*sequences*/,
                                                  const PassedRows& /*passed*/) {
    return absl::UnimplementedError("the trainer does not generate");
  }
  // Prepares for Choose, before a sequence begins, to choose among the first `ids` ids. The layers'
  // caches are lost. False: this trainer does not choose, since the model's last layer does not
  // compute the loss, or there are several processes.
  virtual absl::StatusOr<bool> PrepareChoice(int64_t /*ids*/) { return false; }
  // For a model of ModelForGeneration: chooses the likeliest id (ChooseToken with a temperature of
  // 0) to follow the row `last` of the first sequence, whose earlier rows have passed, and gives it
  // to `take`; kernels::kNoClass if a number is not finite. Then maybe the one that follows that,
  // and so on, until there are `most`, at least 1, or no more are wanted: each but the last given
  // has then passed as well. The devices may compute another one meanwhile. Pre-condition:
  // PrepareChoice.
  virtual absl::Status Choose(const Dataset& /*sequence*/, int64_t /*last*/, int64_t /*most*/,
                              const TakeId& /*take*/) {
    return absl::UnimplementedError("the trainer does not choose");
  }
  // Returns all outputs at once: (rows of the data, output of the model).
  absl::StatusOr<std::vector<float>> Predict(const Dataset& data);

  // Saves what the run needs to resume, with the parameters, in a folder "step-00000200" of
  // `folder` (engine/checkpoint/checkpoint.h): copies it, and returns while it is written
  // concurrently with the following steps. Every process must see the folder. The copies take as
  // much host memory as parameters and optimizer state, from the first save on. FailedPrecondition:
  // another save has not been finished, or the plan does not train.
  virtual absl::Status BeginSave(const std::string& folder, const SaveOptions& options) = 0;
  // Waits until the checkpoint is on disk, and returns its path. An error, usually of the file
  // system (WriteCheckpoint), does not end the run: older checkpoints are unchanged.
  virtual absl::StatusOr<std::string> FinishSave() = 0;
  virtual bool is_saving() const = 0;  // BeginSave has been called and FinishSave has not
  // Does both.
  absl::StatusOr<std::string> Save(const std::string& folder, const SaveOptions& options = {});

  // Resumes from the checkpoint at `path` or, if that is the folder of a run, from the newest one
  // that is not damaged: with its parameters, optimizer state (not if the plan only predicts) and
  // number of steps, whatever plan, devices or precision it was saved with. NotFound: there is
  // none. FailedPrecondition: it is that of another model or optimizer. DataLoss: it is damaged, or
  // all are; the parameters are then undefined.
  virtual absl::StatusOr<RestoredCheckpoint> Restore(const std::string& path) = 0;

  // Describes what is trained, and how: the plan, the schedules as the ranks run them, predicted
  // memory.
  virtual const PreparedRun& run() const = 0;
  const partition::Plan& plan() const { return run().plan(); }
  virtual int64_t steps() const = 0;  // completed so far, including those before a checkpoint
  // Returns all devices of the run: those of each rank one after the other, in the order of
  // replicas. run().compiled says which stages a rank holds.
  virtual absl::StatusOr<std::vector<DeviceReport>> Devices() = 0;

  // Returns when everything in the last step happened in the first replica, on one clock for all
  // ranks, which began with the call of Step. FailedPrecondition unless options.trace is set and a
  // step has been done.
  virtual absl::StatusOr<schedule::Trace> LastTrace() = 0;

  // Returns the costs of the last kTracedSteps steps (engine/train/measure/measured_costs.h), for
  //   Simulate(run().compiled.lowered->training, costs, {.sends =
  //   SendsOf(run().compiled.lowered->transfers)})
  // to predict a step. Errors: those of LastTrace.
  virtual absl::StatusOr<schedule::Costs> MeasuredCosts() = 0;

  // Returns a fingerprint of all parameters, in order of layers: 32 hexadecimal digits. Equal for
  // equal bits, wherever the cuts are; with a plan that only predicts, those of Parameter.
  virtual absl::StatusOr<std::string> ParametersHash() = 0;

  // Returns a copy of one parameter, named "layer 3: weight": as layers read it, if the plan only
  // predicts. NotFound lists the names.
  virtual absl::StatusOr<std::vector<float>> Parameter(const std::string& name) = 0;
  // Calls `function` while the parameters have the values of their averages, so that the functions
  // above return those. Without averages, it just calls it. In `function`, Step and BeginSave fail.
  virtual absl::Status WithAverages(absl::FunctionRef<absl::Status()> function) {
    return function();
  }
  // Sets its values, between steps; the optimizer's states do not change. Among processes, all pass
  // the same. InvalidArgument: another number of values than the parameter has.
  virtual absl::Status SetParameter(const std::string& name, absl::Span<const float> values) = 0;

  // Sets the values of all parameters except adapters, before the first step: asks for those of
  // each that a device of this process has, from several threads concurrently, to be written to a
  // tensor in host memory: float32; bfloat16 if the parameter is frozen, or a plan that only
  // predicts has no other values; uint8 if it is a quantized matrix (kernels::Quantize). Of two
  // tied parameters, it asks for the first. An error of `values_of` ends the run.
  using ValuesOf =
      std::function<absl::Status(const ModelParameter& parameter, const kernels::Tensor& values)>;
  virtual absl::Status SetParameters(const ValuesOf& values_of) = 0;
  // Does the same for all adapters.
  virtual absl::Status SetAdapters(const ValuesOf& values_of) = 0;

  // ---- For processes that continue when another one is lost (recovery/state_snapshot.h).

  // True if they can: they train replicas, without a sharded optimizer, and the run was prepared
  // with schedule::ResultsPlace::kBeforeSteps.
  virtual bool can_lose_processes() const { return false; }
  // Returns, after an error, whether other processes may have done the step that failed here. Once
  // all have what a step takes, the loss of a process is no error of Step, but of the call after
  // it.
  virtual bool may_complete_step() const { return false; }
  // Completes that step, without the others; those know its loss. FailedPrecondition unless
  // may_complete_step().
  virtual absl::Status CompleteStep();
  // Copies what this process trains, without the others, also after an error; the caller fills in
  // its position. FailedPrecondition unless can_lose_processes().
  virtual absl::StatusOr<StateSnapshot> TakeSnapshot();
  // Called in a new trainer of the same run, in place of Restore: resumes from what each process
  // has kept or, if `own` is null, what another replica has. Returns the position that came with
  // it. Aborted: no replica has it, or the processes have kept different steps.
  virtual absl::StatusOr<DataPosition> RestoreSnapshot(const StateSnapshot* own);
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_TRAINER_H_
