#ifndef STAGECOACH_ENGINE_TRAIN_TRAINER_H_
#define STAGECOACH_ENGINE_TRAIN_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/retention.h"
#include "engine/data/dataset.h"
#include "engine/device/device_report.h"
#include "engine/device/device_spec.h"
#include "engine/diagnosis/rings.h"
#include "engine/model/model.h"
#include "engine/run/rank_group.h"
#include "engine/stage/optimizer.h"
#include "engine/train/kept_state.h"
#include "engine/train/learning_rate.h"
#include "engine/train/prepared_run.h"
#include "engine/train/step_traces.h"
#include "partition/plan/plan.h"
#include "schedule/costs.h"
#include "schedule/trace.h"

namespace stagecoach::engine {

// What comes of a step with a number that is not finite.
//
// If updates wait for the norm of all gradients (Optimizer::waits_for_norm), such a step changes no
// parameter and no state of the optimizer, on any rank. It is then repeated without updates, layer
// by layer, to find the first that made such a number, of the first micro-batch; the answer does
// not depend on partition and schedule. Else only the loss of each step is looked at, once it is
// done, which costs nothing; parameters have been updated by then.
enum class OnNonFinite : uint8_t {
  kStop,  // Step fails with OutOfRange
  // The run goes on. The step counts as one, for the learning rate and AdamW's t, too. Needs
  // Optimizer::waits_for_norm.
  kSkip,
  kIgnore,  // nothing is looked at: for runs whose times alone are wanted
};

struct TrainerOptions {
  Optimizer optimizer;
  LearningRate learning_rate;
  uint64_t seed = 1;  // of all that is random: the initial parameters, and what layers draw
  // False: SetParameters, Restore or Adopt gives all parameters their values before anything else.
  // They are 0 until then, which spares the time of drawing them.
  bool draws_parameters = true;
  OnNonFinite on_nonfinite = OnNonFinite::kStop;
  DeviceSpec device;  // each of them
  Exchange exchange = Exchange::kAuto;
  // For one process per device: this process has device rendezvous->rank() of the plan, and every
  // process makes a trainer of the same model, plan and options and calls it alike. It outlives the
  // trainer. Null: all devices are in this process.
  Rendezvous* rendezvous = nullptr;
  // What processes must have alike besides model, plan and these options: lines "name: value".
  std::string fingerprint;
  absl::Duration deadline = absl::Minutes(5);  // of any wait of one rank for another
  // Replicas compare their parameters after every so many steps (0: never by themselves). Step then
  // fails with DataLoss, which names the tensor, if they differ; nothing mends that but a restart.
  int64_t replica_check_steps = 1000;
  // Where the last actions of each device are kept (engine/diagnosis/action_ring.h), so that others
  // can read them if this process is killed.
  RingOptions rings;
  // Told when a rank has become slow (SlowRanks): of all that are in this process, or, among
  // processes, in that of rank 0. In Step. May be empty.
  std::function<void(const std::string& sentence)> on_slow_rank;
  bool trace = false;  // record when each action of a step is performed
};

struct StepResult {
  double loss = 0.0;            // mean over the batch, before the update
  int64_t correct = 0;          // answers of the batch whose largest output is at their label
  int64_t rows = 0;             // of the batch
  int64_t answers_per_row = 1;  // TargetSpec::answers
  float learning_rate = 0.0F;
  double gradient_norm = 0.0;  // global, before clipping; 0 unless Optimizer::waits_for_norm
  std::string skipped_for;     // why the step has changed nothing (OnNonFinite::kSkip); else empty
};

struct Evaluation {
  double loss = 0.0;  // mean over the data
  int64_t correct = 0;
  int64_t rows = 0;
  int64_t answers_per_row = 1;  // TargetSpec::answers
  int64_t answers() const { return rows * answers_per_row; }
  double accuracy() const {
    return rows > 0 ? static_cast<double>(correct) / static_cast<double>(answers()) : 0.0;
  }
};

// What the last layer gives for consecutive rows of a data set.
struct Outputs {
  int64_t first_row = 0;
  int64_t rows = 0;
  absl::Span<const float> values;  // (rows, output of the model); valid during the call
};
// Is given outputs. An error of it ends what gives them.
using TakeOutputs = std::function<absl::Status(const Outputs&)>;

// Is given an id that a model chooses, from a job of a device; false: no more are wanted.
using TakeId = std::function<bool(int32_t id)>;

// Asked whether to end early; among processes, by all at the same places, and all must be given the
// same answer (launch/vote.h). Empty: no. An error ends what asks.
using StopFunction = std::function<absl::StatusOr<bool>()>;

// What a checkpoint says besides what the trainer knows.
struct SaveOptions {
  DataPosition position;
  Retention retention;
  // For who resumes or predicts; may be empty.
  std::string program;
  std::string model_source;
  DataEncoding encoding;
  DataFingerprint data;
  std::vector<SavedOption> options;
};

// Unimplemented, with the reason, if the plan asks for what trainers do not do yet: UNSHARD and
// RESHARD in its schedule, layers in another order than the model's.
absl::Status CheckSupported(const partition::Plan& plan);

// Trains a model that is spread over devices. By a plan that only predicts (PlanOptions::predicts),
// it evaluates and predicts, and takes no memory for gradients and the optimizer. The same model,
// data, seed, optimizer, batch, number of micro-batches and number of gradient blocks give the same
// bits whatever the number of stages, replicas and devices, the schedule and the threads per
// device.
//
// After the first error of a step, every later call returns that error. Among processes all make
// the same calls, but for the const ones, and have the same results; an error of one ends the calls
// of all. Not thread-safe.
class Trainer {
 public:
  // Prepares the run (PrepareRun), makes the devices, and gives every stage its initial parameters.
  // InvalidArgument: the plan does not fit the model, or an option is out of range.
  // FailedPrecondition: the plan's schedule cannot be performed. ResourceExhausted: a device's
  // budget is too small. Unavailable: there are no such devices. Unimplemented: CheckSupported.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const Model& model,
                                                         const partition::Plan& plan,
                                                         const TrainerOptions& options);
  // The same of a run that is prepared, with the same optimizer and devices, and for transfers as
  // these exchange them; else InvalidArgument.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(PreparedRun run,
                                                         const TrainerOptions& options);
  virtual ~Trainer() = default;

  // One step on the given rows of `data`: exactly plan.batch_rows() of them. InvalidArgument:
  // another number of rows, or data that does not fit the model and its loss (CheckFits).
  // FailedPrecondition: the plan has no backward pass.
  //
  // `next_rows`: those of the step that will follow, if they are known: the host brings them into
  // form while GPUs compute this step. They are rows of the same data, which must then stay as it
  // is until that step; another number of them than a step takes means nothing.
  virtual absl::StatusOr<StepResult> Step(const Dataset& data, absl::Span<const int64_t> rows,
                                          absl::Span<const int64_t> next_rows) = 0;
  absl::StatusOr<StepResult> Step(const Dataset& data, absl::Span<const int64_t> rows) {
    return Step(data, rows, {});
  }

  // Loss and accuracy over all rows of `data`; changes nothing. `stop` is asked before each batch:
  // if it says so, the result is over the rows done until then.
  virtual absl::StatusOr<Evaluation> Evaluate(const Dataset& data, const StopFunction& stop) = 0;
  absl::StatusOr<Evaluation> Evaluate(const Dataset& data) { return Evaluate(data, nullptr); }

  // Hands the outputs of all rows of `data` from `first_row` on to `take`, in order, a batch at a
  // time: what the model gives before the loss. Without a `take` they are not asked for. Changes
  // nothing but the caches of a model that has them (Model::cached_positions). The outputs are
  // gathered from all replicas in host memory: that of this process, or, among processes, of each,
  // so that all are given all. An error of `take` in one process is one for all. The result is that
  // of Evaluate if the data has targets, over those rows; else it has rows alone. InvalidArgument:
  // a model with caches is to give outputs of several rows, or has no loss for the targets.
  virtual absl::StatusOr<Evaluation> PredictFrom(const Dataset& data, int64_t first_row,
                                                 const TakeOutputs& take) = 0;
  absl::StatusOr<Evaluation> Predict(const Dataset& data, const TakeOutputs& take) {
    return PredictFrom(data, 0, take);
  }
  // For Choose, before a sequence begins: that it chooses among the first `ids` ids. What layers
  // keep in caches is lost. False: this trainer does not choose, since the model's last layer does
  // not compute the loss, or there are several processes.
  virtual absl::StatusOr<bool> PrepareChoice(int64_t /*ids*/) { return false; }
  // Of a model of ModelForGeneration: chooses the likeliest id (ChooseToken with a temperature of
  // 0) to follow the last row of a sequence, whose other rows have passed, and gives it to `take`;
  // kernels::kNoClass if a number is not finite. Then maybe the one that follows that, and so on,
  // until there are `most`, at least 1, or no more are wanted: each but the last given has then
  // passed as well. The devices may compute another one meanwhile. Pre-condition: PrepareChoice.
  virtual absl::Status Choose(const Dataset& /*sequence*/, int64_t /*most*/,
                              const TakeId& /*take*/) {
    return absl::UnimplementedError("the trainer does not choose");
  }
  // All at once: (rows of the data, output of the model).
  absl::StatusOr<std::vector<float>> Predict(const Dataset& data);

  // Saves what the run must keep to go on, with the parameters, in a folder "step-00000200" of
  // `folder` (engine/checkpoint/checkpoint.h): copies it, and returns while it is written beside
  // the steps that follow. Every process must see the folder. The copies take as much host memory
  // as parameters and optimizer state, from the first save on. FailedPrecondition: another save has
  // not been finished, or the plan does not train.
  virtual absl::Status BeginSave(const std::string& folder, const SaveOptions& options) = 0;
  // Waits until the checkpoint is on disk: its path. An error, of the file system as a rule
  // (WriteCheckpoint), does not end the run: older checkpoints are as they were.
  virtual absl::StatusOr<std::string> FinishSave() = 0;
  virtual bool is_saving() const = 0;  // BeginSave has been called and FinishSave has not
  // Both.
  absl::StatusOr<std::string> Save(const std::string& folder, const SaveOptions& options = {});

  // Goes on from the checkpoint at `path` or, if that is the folder of a run, from the newest one
  // that is not damaged: with its parameters, optimizer state (not if the plan only predicts) and
  // number of steps, whatever plan,
  // devices or precision it was saved with. NotFound: there is none. FailedPrecondition: it is of
  // another model or optimizer. DataLoss: it is damaged, or all are; the parameters are then
  // undefined.
  virtual absl::StatusOr<RestoredCheckpoint> Restore(const std::string& path) = 0;

  // What it trains, and how: plan, schedules as the ranks perform them, predicted memory.
  virtual const PreparedRun& run() const = 0;
  const partition::Plan& plan() const { return run().plan; }
  virtual int64_t steps() const = 0;  // done so far, those before a checkpoint included
  // All devices of the run: those of each rank one after the other, in the order of replicas.
  // run().report says which stages a rank holds.
  virtual absl::StatusOr<std::vector<DeviceReport>> Devices() = 0;

  // When everything of the last step happened in the first replica, on one clock for all ranks,
  // which began with the call of Step. FailedPrecondition unless options.trace is set and a step
  // has been done.
  virtual absl::StatusOr<schedule::Trace> LastTrace() = 0;

  // What the last kTracedSteps steps cost (engine/train/measured_costs.h), for
  //   Simulate(run().lowered->training, costs, {.sends = SendsOf(run().lowered->transfers)})
  // to predict a step. Errors: those of LastTrace.
  virtual absl::StatusOr<schedule::Costs> MeasuredCosts() = 0;

  // Fingerprint of all parameters, in order of layers: 32 hexadecimal digits. Equal for equal bits,
  // wherever the cuts are; of a plan that only predicts, those of Parameter.
  virtual absl::StatusOr<std::string> ParametersHash() = 0;

  // A copy of one parameter, named "layer 3: weight": as layers read it, if the plan only predicts.
  // NotFound lists the names.
  virtual absl::StatusOr<std::vector<float>> Parameter(const std::string& name) = 0;
  // Gives it other values, between steps; the optimizer's states stay. Among processes all give the
  // same. InvalidArgument: another number of them than the parameter has.
  virtual absl::Status SetParameter(const std::string& name, absl::Span<const float> values) = 0;

  // Gives all parameters values, before the first step: asks for those of each that a device of
  // this process has, from several threads at once, to be written to a tensor in host memory:
  // float32 or, where a plan that only predicts has no other values, bfloat16. One that is tied has
  // the name of the first of the two. An error of `values_of` ends the run.
  using ValuesOf =
      std::function<absl::Status(const std::string& name, const kernels::Tensor& values)>;
  virtual absl::Status SetParameters(const ValuesOf& values_of) = 0;

  // ---- For processes that go on when another one is lost (kept_state.h).

  // Whether they can: they train replicas on CPU devices, without a sharded optimizer, and the run
  // was prepared with schedule::ResultsPlace::kBeforeSteps.
  virtual bool can_lose_processes() const { return false; }
  // After an error, whether other processes may have done the step that failed here. Once all have
  // what a step takes, it is no error of Step if a process is lost, but of the call after it.
  virtual bool may_complete_step() const { return false; }
  // Does it, without the others; those know its loss. FailedPrecondition unless
  // may_complete_step().
  virtual absl::Status CompleteStep();
  // Copies what this process trains, without the others, also after an error; its position is for
  // the caller to fill in. FailedPrecondition unless can_lose_processes().
  virtual absl::StatusOr<KeptState> Keep();
  // In a new trainer of the same run, in place of Restore: goes on from what each process has kept
  // or, if `own` is null, what another replica has. Returns the position that came with it.
  // Aborted: no replica has it, or the processes have kept different steps.
  virtual absl::StatusOr<DataPosition> Adopt(const KeptState* own);
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_TRAINER_H_
