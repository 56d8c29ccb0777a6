#ifndef STAGECOACH_TOOLS_CLI_RUN_OPTIONS_H_
#define STAGECOACH_TOOLS_CLI_RUN_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/checkpoint/retention.h"
#include "engine/data/dataset.h"
#include "engine/data/idx.h"
#include "engine/model/model.h"
#include "engine/model/model_file.h"
#include "engine/stage/optimizer.h"
#include "engine/train/prepared_run.h"
#include "engine/train/trainer.h"
#include "partition/layer_cost.h"
#include "partition/plan/plan.h"
#include "tools/cli/cli11_fwd.h"
#include "tools/cli/device_choice.h"
#include "tools/cli/stop_condition.h"

namespace stagecoach::tools {

// What `train`, `plan` and `profile` ask for. The defaults are the program's: tuned for
// Fashion-MNIST.
struct RunOptions {
  std::optional<std::string> data;  // unset: the next
  std::string default_data = engine::kFashionMnistDirectory;
  std::string label = "label";                   // column of a .csv file
  std::optional<engine::ChannelOrder> channels;  // of arrays; unset: ArrayOptions'
  // "cross-entropy" or "mse", of which the second takes labels that are numbers; unset: that of the
  // model's file, or else cross-entropy.
  std::optional<std::string> loss;
  // Where the test set comes from; "": the data's own, which of a file is this share of it (unset:
  // DataSource's).
  std::string test_data;
  std::optional<double> test_fraction;
  // Of the data, for a run that is saved, compared with what was saved, or one of several
  // processes.
  bool takes_fingerprint = false;
  // Training rows: unset for the default (kDefaultImageRows for images, all of anything else); 0
  // for all.
  std::optional<int64_t> rows;
  // Of tokens; unset: the model's own (ParseModelTokens), or else TokenOptions'.
  std::optional<int64_t> context, vocabulary;
  std::string tokenizer;  // file by which text is, or ids were, made tokens, or "bytes"; "": none

  std::string model_file;  // or a name (ModelFileNamed); "": the default network
  std::string model_text;  // that of a checkpoint; instead of the file's
  // A folder of Hugging Face's, from which the parameters start, and the model is where it is not
  // named; "": none.
  std::string initial_parameters;
  int layers = 20;
  int64_t width = 2304;

  // Devices of each replica; unset: kDefaultStages, or those of a schedule file.
  std::optional<int> stages;
  int replicas = 1;
  std::optional<int> gradient_blocks;  // unset: as many as replicas
  bool shards_optimizer = false;
  partition::ReductionKind reduction = partition::ReductionKind::kTree;
  // Name, "auto" or file (schedule_option.h); "": "1f1b", or "auto" where that is faster and fits.
  std::string schedule;
  int chunks = 0;  // stages per device; 0: the schedule's own number
  // Of all replicas; unset: kDefaultMicroBatches, or as many as there are gradient blocks, or those
  // of a schedule file for each replica.
  std::optional<int> micro_batches;
  int64_t batch = 128;
  engine::Recompute recompute = engine::Recompute::kPlanned;
  DeviceChoice device;
  std::optional<int> rank;  // the only one whose device is in this process; unset: all are
  bool is_supervised =
      false;  // by a launcher that can replace a process (engine/launch/supervisor.h)
  // So many are left of a run: unless a plan or schedule that is given is for as many, the fastest
  // plan over them, as stages and replicas, is taken.
  std::optional<int> devices_left;
  int64_t device_memory_bytes = 0;  // 0: no limit
  std::string profile = "analytic";
  // Read from there rather than made; then nothing from `stages` to `batch` is read, nor `profile`.
  std::string plan_file;  // "": none
  // That of a checkpoint; instead of the file's.
  std::optional<partition::Plan> plan;

  std::string optimizer = "adamw";
  std::optional<float> weight_decay;  // unset: the optimizer's own
  std::optional<float> beta1, beta2;  // of adamw alone
  std::optional<float> momentum;      // of sgd alone
  float clip_norm = 0.0F;
  std::optional<engine::OnNonFinite>
      on_nonfinite;  // unset: kStop, by the loss alone unless clipped

  // Of a run that is saved; "": it is not.
  std::string checkpoints;
  bool resume = false;
  bool data_changed = false;           // since it was saved, which is known
  std::optional<int64_t> every_steps;  // between saves; unset: as often as it pays (SaveInterval)
  std::vector<std::string> taken;      // flags that are those of a checkpoint
  std::vector<std::string> taken_defaults;  // flags that a checkpoint had, and had not been given
  int kept_checkpoints = engine::Retention{}.newest;
  int64_t kept_every_steps = 0;

  int epochs = 2;
  std::optional<int64_t> steps;  // of the run, in place of epochs
  // Between evaluations, besides those after epochs; 0: none.
  int64_t evaluate_every_steps = 0;
  // Test rows that are evaluated, spread over all (SpreadSubset); 0 for all.
  int64_t evaluation_rows = 0;
  std::optional<StopCondition> stop_when;
  int64_t log_every_steps = 0;  // between lines of steps; 0: none, but in a file of metrics all
  std::optional<float> learning_rate;  // unset: LearningRateOf decides, as of the next two
  std::string learning_rate_schedule = "warmup-cosine";
  std::optional<int64_t> warmup_steps;     // of warmup-cosine alone, and so is the next
  std::optional<float> min_learning_rate;  // it ends with
  uint64_t seed = 1;
  double deadline_seconds = 300.0;
  int64_t replica_check_steps = 1000;  // 0: never

  // File and folder for the figures of steps and evaluations (tools/cli/run_log.h); "": none.
  std::string metrics, tensorboard;
  // Files to write traces of the last step to; "": none.
  std::string trace;            // as it was measured
  std::string simulated_trace;  // as a simulation at the measured times of actions has it

  bool explain = false;  // print the shapes of a step first
  bool json = false;
};

inline engine::LabelKind LabelsOf(const RunOptions& options) {
  return options.loss == "mse" ? engine::LabelKind::kNumbers : engine::LabelKind::kClasses;
}

inline std::string DataOf(const RunOptions& options) {
  return options.data.value_or(options.default_data);
}

// The same for the test set alone.
inline std::string TestDataOf(const RunOptions& options) {
  return options.test_data.empty() ? DataOf(options) : options.test_data;
}

// "reads data.csv (1.2 GB)", for a SlowNotice.
std::string DescribeReading(const std::string& data);

// "measures the layers, with micro-batches of 8 and 16 rows", for a SlowNotice.
std::string DescribeMeasuring(absl::Span<const int64_t> micro_batch_rows);

// What `predict` asks for.
struct PredictOptions {
  RunOptions run;          // data, model, devices: those of the checkpoint, but for flags
  std::string checkpoint;  // a checkpoint, or the folder of a run
  std::optional<int64_t> micro_batch_rows;  // unset: those of the run
  bool has_threads = false;                 // else each device gets its share of the processors
  std::string outputs, classes;             // files; "": none
};

// What `replay` asks for.
struct ReplayOptions {
  // Devices and plan of the second time. What it was trained on and with is the checkpoint's, but
  // for flags.
  RunOptions run;
  std::string checkpoint;  // a checkpoint, or the folder of a run
  int64_t steps = 3;
};

inline bool WantsTraces(const RunOptions& options) {
  return !options.trace.empty() || !options.simulated_trace.empty();
}

inline constexpr int64_t kDefaultImageRows = 10'000;
inline constexpr char kUsualSchedule[] = "1f1b";
inline constexpr int kDefaultStages = 4;
inline constexpr int kDefaultMicroBatches = 4;
// Of the warm-up, as a share of all steps.
inline constexpr double kWarmupShare = 0.1;

// InvalidArgument, with the nearest batch that would do, unless the batch divides into that many
// equal micro-batches.
absl::Status CheckBatch(int64_t batch, int64_t micro_batches);

// How many of the devices can be measured at once: CPU devices need cores, and layers are measured
// on one GPU.
int DevicesAtOnce(int devices, const engine::DeviceSpec& device);

// How many of the devices can compute at the same moment: CPU devices share the cores that this
// process may use; there is no limit to GPUs.
double CoresFor(const engine::DeviceSpec& device);

// ResourceExhausted if this machine has too little memory to train all layers at once on CPU
// devices, which measuring them does.
absl::Status CheckCanMeasure(const std::vector<partition::LayerCost>& layers,
                             const engine::DeviceSpec& device);

// What messages and checkpoints call the model: its name or file, or the folder of --init.
inline constexpr char kDefaultModel[] = "default";
std::string NameOfModel(const RunOptions& options);

// Where the processes of a run are to learn the results of the loss: before steps, if one that is
// lost can then be replaced (engine/train/kept_state.h).
schedule::ResultsPlace ResultsOf(const RunOptions& options,
                                 const partition::Replication& replication);

// The learning rates of a run of so many steps. Of what is not given: the rate, or its peak, is
// 0.01 for sgd, and for adamw 0.09 / width, at most 1e-3. (An update of Adam moves every weight by
// about the rate, so what it moves an activation by grows with the number of inputs; a model file's
// widths are unknown here: 1e-3.) The warm-up takes kWarmupShare of the steps, and at the end the
// rate is 0. InvalidArgument: an option that its schedule does not have, or that is out of range.
absl::StatusOr<engine::LearningRate> LearningRateOf(const RunOptions& options, int64_t steps);

// Adds the flags of data, model, optimizer and devices: all that decides a profile. `options` must
// outlive the parse.
void AddModelAndDataFlags(CLI::App& app, RunOptions& options);

// Adds the flags of data, model, plan and optimizer, and --seed and --json: all that decides a
// plan. `options` must outlive the parse.
void AddPlanFlags(CLI::App& app, RunOptions& options);

// Adds the flags that say what the test set is, which predict takes from checkpoints as well.
void AddTestSetFlags(CLI::App& app, RunOptions& options);

// Adds the flags that only training needs, after those of AddPlanFlags: those of AddTestSetFlags,
// too.
void AddTrainingFlags(CLI::App& app, RunOptions& options);

// Adds the flags of `predict`, likewise.
void AddPredictFlags(CLI::App& app, PredictOptions& options);

// Adds the flags of `replay`, likewise.
void AddReplayFlags(CLI::App& app, ReplayOptions& options);

// What each of so many devices is.
absl::StatusOr<engine::DeviceSpec> ChooseDevices(const RunOptions& options, int devices);

// Reads the model from `text` or, if that is "", makes the default network, which takes numbers.
absl::StatusOr<engine::Model> MakeModel(const RunOptions& options, const std::string& text,
                                        const engine::ModelData& data);

// Unavailable if the plan does not fit the free memory of the GPUs that this process takes.
absl::Status CheckGpusHaveRoom(const RunOptions& options, const engine::PreparedRun& run);

// What is trained.
struct Workload {
  engine::TrainTest data;
  engine::Model model;
  std::string model_text;  // what it was read from; "": it is the default network
  engine::Optimizer optimizer;
};

// The tokenizer in the folder of --init, where --data is text and no tokenizer is named; "": there
// is none. A line says why it is not the folder's first, unless `is_silent`. Errors are marked with
// their origin.
absl::StatusOr<std::string> FindFolderTokenizer(const RunOptions& options, bool is_silent);

// Loads the data and makes or reads the model. Errors are marked with their origin
// (tools/cli/exit_status.h).
absl::StatusOr<Workload> PrepareWorkload(const RunOptions& options);

// The same without data, for commands that need none: of a model of tokens, unless --data names
// some. There is a context and a vocabulary then, from flags or the model.
struct PlannedModel {
  engine::Model model;
  engine::Optimizer optimizer;
};
absl::StatusOr<PlannedModel> PrepareModel(const RunOptions& options);

// Profiles the model and cuts it over the devices that the options choose. Errors are marked with
// their origin.
absl::StatusOr<engine::PreparedRun> CutOverDevices(const RunOptions& options,
                                                   const PlannedModel& planned);

// Everything that is settled before the first step.
struct Run {
  // Rows of an epoch that are left over by its batches.
  int64_t rows_left_over() const { return data.train->rows() % prepared.plan.batch_rows(); }

  engine::TrainTest data;
  std::string model_text;  // Workload's
  engine::PreparedRun prepared;
  std::string choice = {};  // of a plan that was not asked for: why it is this one
  engine::LearningRate learning_rate;
};

// What MakeRun finds wrong with flags and files alone, before it reads data or asks for devices.
absl::Status CheckPlanFlags(const RunOptions& options);

// Prepares the workload, of which there must be a batch, profiles the model and cuts it, or reads
// how it is cut. Errors are marked with their origin.
absl::StatusOr<Run> MakeRun(const RunOptions& options);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_RUN_OPTIONS_H_
